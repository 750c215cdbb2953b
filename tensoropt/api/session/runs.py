"""Runs of a job's model: nested fetches and feeds, input pipelines, initializers, and whose turn it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.pipelines import Pipelines
from tensoropt.api.mirror.model import model_to_plan
from tensoropt.api.session.fetches import flat_feeds, nested_fetches
from tensoropt.api.session.naming import Initialize, feed_of, fetch_of, tensor_name
from tensoropt.api.session.pipelines import Piped, PipelineSession
from tensoropt.errors import SessionError
from tensoropt.exec.engines.guard import EndedError
from tensoropt.exec.program.fetch import Fetch
from tensoropt.stages import working

__all__ = ["Runs"]


class Runs:
    """What runs of one model have in common."""

    def __init__(self, job: Any) -> None:
        """Takes the :class:`~tensoropt.api.session.job.Job`."""
        self._job = job
        self._lock = threading.Lock()
        self._known: dict[Any, tuple[Any, Any]] = {}
        self._pipelines: PipelineSession | None = None

    def begin(self, graph: Any) -> None:
        """Goes over to a model's graph: makes the session of its pipelines, if there is none. Collective.

        They run before there is an execution graph, too.
        """
        job = self._job
        self._known.clear()
        if self._pipelines is not None and self._pipelines.graph is graph:
            return
        job.start_once()
        if self._pipelines is not None:
            self._pipelines.close()
        self._pipelines = PipelineSession(graph, job.draw_seed())

    @contextlib.contextmanager
    def turn(self, what: str) -> Iterator[None]:
        """What one thread does alone; see :meth:`Job.turn`."""
        job = self._job
        if not self._lock.acquire(blocking=job.size == 1):
            error = SessionError(
                f"{what}: another thread of rank {job.rank} is in a run. With {job.size} ranks all must take the "
                "same steps in the same order, which threads do not. Call run from one thread, and let others fill a "
                "queue for it."
            )
            with self._lock:  # the other ranks hear of it instead of this thread's step
                if job.guard is not None:
                    job.guard.meet(what, error)
            raise error
        try:
            yield
        finally:
            self._lock.release()

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None, graph: Any, options: Any, run_metadata: Any
    ) -> Any:
        """One run; see :meth:`Job.run`."""
        job = self._job
        try:
            job.require_member("run")
            if job.executor is None and job.deferral is None:
                self.begin(model_to_plan().graph)
            if graph is not None and job.model is not None and graph is not job.model.graph:
                raise SessionError(
                    "Session.run: the session is of another graph than the one that build_execution_graph built. Open "
                    "it with that graph, Session(graph=…), or build the execution graph of the session's model."
                )
            items, build = nested_fetches(fetches)
            resolved = [self._resolved(item) for item in items]
            model = job.model or model_to_plan()
            pipelines = self._piped()
            fed = flat_feeds(feed_dict)
            feeds = {feed_of(model, key, pipelines): value for key, value in fed}
            feeds = {key: value for key, value in feeds.items() if key not in pipelines.inside}
            given = {tensor_name(key): value for key, value in fed}
            wanted = [
                other for item in resolved for other in (item.others if isinstance(item, Initialize) else (item,))
            ]
            unique = list(dict.fromkeys(wanted))
            piped = [item for item in unique if isinstance(item, Piped)]
            steps = [item for item in unique if not isinstance(item, Piped)]
            initialized = {name for item in resolved if isinstance(item, Initialize) for name in item.variables}
            if steps or initialized:
                job.require_built("run")
        except Exception as error:
            if job.guard is not None:
                job.guard.meet("run", error)
            raise
        if initialized and not feeds and job.executor is None and job.deferral is not None:
            job.deferral.initialized.append(initialized)
        elif initialized:
            job.initialize(initialized, given)
            known = job.require_executor("run").graph
            feeds = {key: value for key, value in feeds.items() if isinstance(key, str) or key.op in known}
        try:
            values, elements = self._read(steps, piped, feeds, given)
            if steps:
                made = self._values(steps, {**feeds, **elements}, options, run_metadata)
                values |= dict(zip(steps, made, strict=True))
        except EndedError as error:
            raise tf.errors.OutOfRangeError(None, None, str(error)) from error
        return build([None if isinstance(item, Initialize) else values[item] for item in resolved])

    def _piped(self) -> Pipelines:
        return Pipelines() if self._pipelines is None else self._pipelines.pipelines

    def _read(
        self, steps: list[Fetch], piped: list[Piped], feeds: Mapping[Any, Any], given: Mapping[str, Any]
    ) -> tuple[dict[Any, Any], dict[str, Any]]:
        """What pipelines give for fetches, and the elements that steps need, by placeholder.

        Raises:
            tf.errors.OutOfRangeError: at the end of this rank's data, which is that of all ranks.
            EndedError: nothing but pipelines runs, and the data of another rank have ended.
        """
        job = self._job
        if self._pipelines is None:
            return {}, {}
        elements = self._piped().elements
        try:
            runs = job.deferral or job.variants
            read = runs.read_by(steps, feeds) if runs is not None and elements and steps else ()
            places = [place for place in elements if place in read]
            names = [*(item.name for item in piped), *(elements[place].name for place in places)]
            if not names:
                return {}, {}
            with working("reading the input pipeline"):
                found = self._pipelines.run(names, given)
        except Exception as error:
            if job.guard is not None:
                job.guard.meet("run", error, ended=isinstance(error, tf.errors.OutOfRangeError))
            raise
        if not steps and job.guard is not None:
            job.guard.meet(f"run [{', '.join(names)}] of an input pipeline")
        return dict(zip(piped, found, strict=False)), dict(zip(places, found[len(piped) :], strict=True))

    def _values(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any], options: Any, run_metadata: Any) -> list[Any]:
        job = self._job
        if job.deferral is not None:
            job.deferral.prepare(fetches, feeds)
        job.require_executor("run")
        return job.variants.run(fetches, feeds, options, run_metadata)

    def _resolved(self, item: Any) -> Any:
        """What the executor calls a fetch; looked up once per object."""
        job = self._job
        key = item if isinstance(item, str) else id(item)
        known = self._known.get(key)
        if known is None or known[0] is not item:
            self._known[key] = known = (item, fetch_of(job.model or model_to_plan(), item, self._piped()))
        return known[1]
