"""Runs of a job's model: nested fetches and feeds, input pipelines, initializers, and whose turn it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.input_pipelines import Pipelines, read_of
from tensoropt.api.mirror.model import model_to_plan
from tensoropt.api.session.fetches import flat_feeds, nested_fetches, note_parts
from tensoropt.api.session.job import Job
from tensoropt.api.session.naming import Initialize, feed_of, fetch_of, tensor_name
from tensoropt.api.session.pipeline_session import Piped
from tensoropt.errors import SessionError
from tensoropt.exec.engines.guard import EndedError
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.graph.spec import TensorId
from tensoropt.stages import working

__all__ = ["run", "turn"]


@contextlib.contextmanager
def turn(job: Job, what: str) -> Iterator[None]:
    """Surrounds what one thread of a job does alone.

    Threads of the only rank take turns. Those of several ranks would take them in another order on each.

    Raises:
        SessionError: with several ranks, if another thread is in a run.
    """
    world = job.world
    if not job.lock.acquire(blocking=world.size == 1):
        error = SessionError(
            f"{what}: another thread of rank {world.rank} is in a run. With {world.size} ranks all must take the "
            "same steps in the same order, which threads do not. Call run from one thread, and let others fill a "
            "queue for it."
        )
        with job.lock:  # the other ranks hear of it instead of this thread's step
            world.meet(what, error)
        raise error
    try:
        yield
    finally:
        job.lock.release()


def run(
    job: Job,
    fetches: Any,
    feed_dict: Mapping[Any, Any] | None,
    *,
    session: Any = None,
    options: Any = None,
    run_metadata: Any = None,
) -> Any:
    """Runs nested fetches of a job's model; see :func:`tensoropt.run`, and for the options ``tensoropt.Session.run``.

    The session is the script's, if it has one; of that session's graph the execution graph must be.

    Raises:
        SessionError: with several ranks, if another thread is in a run.
    """
    with turn(job, "run"):
        return _run(job, fetches, feed_dict, session, options, run_metadata)


def _run(
    job: Job, fetches: Any, feed_dict: Mapping[Any, Any] | None, session: Any, options: Any, run_metadata: Any
) -> Any:
    try:
        job.world.require_member("run")
        if job.executor is None and job.deferral is None:
            job.begin(model_to_plan().graph)
        if session is not None and job.model is not None and session.graph is not job.model.graph:
            raise SessionError(
                "Session.run: the session is of another graph than the one that build_execution_graph built. Open "
                "it with that graph, Session(graph=…), or build the execution graph of the session's model."
            )
        items, build = nested_fetches(fetches)
        resolved = [_resolved(job, item) for item in items]
        model = job.model or model_to_plan()
        pipelines = _piped(job)
        fed = flat_feeds(feed_dict)
        feeds = {feed_of(model, key, pipelines): value for key, value in fed}
        note_parts(model, feed_dict)
        feeds = {key: value for key, value in feeds.items() if key not in pipelines.inside}
        given = {tensor_name(key): value for key, value in fed}
        wanted = [other for item in resolved for other in (item.others if isinstance(item, Initialize) else (item,))]
        unique = list(dict.fromkeys(wanted))
        piped = [item for item in unique if isinstance(item, Piped)]
        steps = [item for item in unique if not isinstance(item, Piped)]
        initialized = {name for item in resolved if isinstance(item, Initialize) for name in item.variables}
        if steps or initialized:
            job.require_built("run")
    except Exception as error:
        job.world.meet("run", error)
        raise
    if initialized and session is not None:
        job.begin_draws(session.number)
    if initialized and not feeds and job.executor is None and job.deferral is not None:
        job.deferral.initialized.append(initialized)
    elif initialized:
        job.initialize(initialized, given)
        known = job.require_executor("run").graph
        feeds = {key: value for key, value in feeds.items() if isinstance(key, str) or key.op in known}
    try:
        number = None if session is None else session.number
        values, elements = _read(job, steps, piped, feeds, given, number)
        if steps:
            fed_steps: dict[Any, Any] = {**feeds, **elements}
            made = job.prepared(steps, fed_steps).run(steps, fed_steps, options, run_metadata)
            values |= dict(zip(steps, made, strict=True))
    except EndedError as error:
        raise tf.errors.OutOfRangeError(None, None, str(error)) from error
    return build([None if isinstance(item, Initialize) else values[item] for item in resolved])


def _piped(job: Job) -> Pipelines:
    return Pipelines() if job.pipelines is None else job.pipelines.pipelines


def _read(
    job: Job,
    steps: list[Fetch],
    piped: list[Piped],
    feeds: Mapping[Any, Any],
    given: Mapping[str, Any],
    session: int | None,
) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Reads pipelines: returns the values of fetches, and the elements that steps need, by placeholder.

    Raises:
        tf.errors.OutOfRangeError: at the end of this rank's data, which is that of all ranks.
        EndedError: nothing but pipelines runs, and the data of another rank have ended.
    """
    if job.pipelines is None:
        return {}, {}
    elements = _piped(job).elements
    try:
        places, waited = _read_of_pipelines(job, steps, feeds)
        names = [*(item.name for item in piped), *(elements[place].name for place in places), *waited]
        if not names:
            return {}, {}
        with working("reading the input pipeline"):
            found = job.pipelines.run(names, given, session)
    except Exception as error:
        job.world.meet("run", error, ended=isinstance(error, tf.errors.OutOfRangeError))
        raise
    if not steps:
        job.world.meet(f"run [{', '.join(names)}] of an input pipeline")
    return dict(zip(piped, found, strict=False)), dict(zip(places, found[len(piped) :], strict=False))


def _read_of_pipelines(
    job: Job, steps: list[Fetch], feeds: Mapping[Any, Any]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What steps read of pipelines: placeholders of elements, and operations to run; worked out once."""
    pipelines, model = _piped(job), job.model
    if not (pipelines.inside and steps) or model is None:
        return (), ()
    key = tuple(steps), frozenset(feeds)
    if key not in job.read:
        given = {str(tensor) for tensor in feeds if isinstance(tensor, TensorId)}
        names = names_of(fetch for fetch in steps if fetch not in feeds)
        job.read[key] = read_of(model, pipelines, names, given, [name for name in feeds if isinstance(name, str)])
    return job.read[key]


def _resolved(job: Job, item: Any) -> Any:
    """Returns the executor's name of a fetch; looked up once per object."""
    key = item if isinstance(item, str) else id(item)
    known = job.fetched.get(key)
    if known is None or known[0] is not item:
        job.fetched[key] = known = (item, fetch_of(job.model or model_to_plan(), item, _piped(job)))
    return known[1]
