"""Traces that are planned and run together: one model, one plan, one set of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # to be in eager mode inside of a graph has no public name

from tensoropt.api.find.deferred import DeferredPlan
from tensoropt.api.functions.held import hold, holder_of, unnoticed
from tensoropt.api.functions.traced_model import Trace, TracedModel
from tensoropt.api.session.finding import find_strategy
from tensoropt.api.session.job import Job, current_job, job_beside
from tensoropt.api.session.runtime import build_execution_graph
from tensoropt.errors import CollectiveError, PlanError
from tensoropt.exec.engines.guard import DifferenceError
from tensoropt.exec.program.feeding import checksum, is_compared
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = ["Program"]

_NOT_HERE = ("profiling", "mini_parallelism")
_BROUGHT_BYTES = 64 * 2**20  # so much of several variables is brought to the script at once


class Program:
    """Runs traces by a plan that is searched for the first of them.

    Traces that are added later take their splits from the plan, as operators do that a script makes later. Variables
    begin with the values that rank 0 has of them.
    """

    def __init__(self, named: Callable[[Any], str | None] = lambda variable: None) -> None:
        """Begins with no trace.

        Args:
            named: the name that a variable is to have in plans and messages, or None.
        """
        current_job().start_once()
        self._traced = TracedModel(named)
        self._traced.model.values = self._value
        with job_beside() as job:
            self._job: Job = job
        self._plan: Any = None
        self._shared: set[str] = set()  # variables that begin with rank 0's values
        self._stale: set[str] = set()  # variables whose value here is older than the script's
        self._ahead: set[str] = set()  # those whose value here is newer
        self._written: set[str] = set()
        self._brought = False  # whether any was brought to the script since the last run
        self._names: dict[int, str] = {}
        self._runs: dict[Any, int] = {}  # with whole batches, by shapes

    @property
    def plan(self) -> Plan | None:
        """The plan, once it is made."""
        given = self._plan
        return given.plan if isinstance(given, DeferredPlan) else given

    @property
    def is_planned(self) -> bool:
        """Whether a plan was asked for; it may wait for the first run."""
        return self._plan is not None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._job.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._job.size

    def trace(
        self,
        function: Callable[..., Any],
        specs: Sequence[Any],
        name: str,
        *,
        autograph: bool = True,
        sized: Sequence[Any] | None = None,
    ) -> Trace:
        """Traces a function of tensors; collective. See :meth:`TracedModel.trace`."""
        with job_beside(self._job) as job, job.step(f"tracing {name}"):
            trace = self._traced.trace(function, specs, name, autograph=autograph, sized=sized)
        for variable in trace.variables:
            self._names[id(self._traced.variables[variable])] = variable
        self._take(trace.variables)
        self._share([variable for variable in trace.variables if variable not in self._shared])
        return trace

    def pin(self, pins: Callable[[Mapping[str, Any]], Any]) -> None:
        """Has the search store some variables in one way only. See :meth:`TracedModel.pin`."""
        self._traced.pin(pins)

    def search(
        self, option: Any = "mini_time", *, collectives: str = "auto", config: Any = None, **arguments: Any
    ) -> None:
        """Searches a plan for what was traced, and builds it; collective.

        Args:
            option: see :func:`tensoropt.find_strategy`.
            collectives: see :func:`tensoropt.build_execution_graph`.
            config: see there.
            arguments: others of ``find_strategy``.

        Raises:
            PlanError: an option that gives no plan for all ranks.
            TensorOptError: what those raise.
        """
        if option in _NOT_HERE:
            raise PlanError(
                f"option={option!r}: is not for functions and Keras models, whose ranks all go on. Choose a plan for "
                "all ranks, such as 'mini_time'."
            )
        with self._entered():
            plan = find_strategy(option, **arguments)
            build_execution_graph(plan=plan, collectives=collectives, config=config)
        self._plan = plan

    def run(self, trace: Trace, arguments: Sequence[Any], *, whole: bool = False) -> Any:
        """Runs a trace on all ranks; collective.

        Args:
            trace: of this program's.
            arguments: an array for each of its inputs: the whole batch, or this rank's share; the whole batch, where
                the trace is for one size.
            whole: whether it is always the whole batch, which is compared in the first runs and then now and then.

        Returns:
            What the function returns, of whole values.

        Raises:
            CollectiveError: on all ranks, if whole batches differ.
        """
        if whole or trace.sized:
            self._compare(trace, arguments)
        self._take(trace.variables)
        with self._entered() as job:
            self._give(job, trace.variables)
            feeds = dict(zip(trace.inputs, arguments, strict=True))
            _, *values = job.run([trace.target, *trace.outputs], feeds)
            if job.executor is not None:
                self._stale -= job.executor.variables.keys()  # a build takes the values that there are
        self._written |= set(trace.written)
        self._ahead |= set(trace.written)
        self._brought = False
        return trace.pack([tf.convert_to_tensor(value) for value in values])

    def _compare(self, trace: Trace, arguments: Sequence[Any]) -> None:
        guard, shapes = self._job.guard, (trace.target, *(np.shape(value) for value in arguments))
        runs = self._runs.get(shapes, 0)
        self._runs[shapes] = runs + 1
        if guard is None or self._job.size == 1 or not is_compared(runs):
            return
        sums = {name: checksum(np.asarray(value)) for name, value in zip(trace.inputs, arguments, strict=True)}
        try:
            guard.meet(f"a batch for {shapes}", shared=sums)
        except DifferenceError as error:
            raise CollectiveError(
                f"{', '.join(error.differing)}: every rank must have the same whole batch, and they differ. Seed what "
                "shuffles or draws the data alike on all ranks (keras.utils.set_random_seed before the data are made)."
            ) from error

    def sync(self) -> None:
        """Gives the script's variables the values that they have here; collective."""
        for group in self._groups():
            if not self._ahead.isdisjoint(group):
                self._fetch(group)

    def asked(self, variable: Any) -> None:
        """Brings a variable's value to the script, which may also change it."""
        name = self._names.get(id(variable))
        if name is None:
            return
        if name in self._ahead:
            # One is often asked for after each run, such as a counter of steps; who asks for another one reads many.
            self._fetch([name] if not self._brought else next(group for group in self._groups() if name in group))
        self._stale.add(name)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Job]:
        with job_beside(self._job) as job, self._traced.model.graph.as_default():
            yield job

    def _fetch(self, names: Sequence[str]) -> None:
        with self._entered() as job:
            values = job.require_executor(f"reading variables {', '.join(names)}").run([*map(TensorId, names)])
        self._brought = True
        for name, value in zip(names, values, strict=True):
            if name in self._ahead:
                self._set(name, value)
                self._ahead.remove(name)

    def _groups(self) -> Iterator[list[str]]:
        """Variables that are written, such as are brought together: each time the same, as each program takes its time
        to build."""
        group: list[str] = []
        size = 0
        for name in sorted(self._written):
            variable = self._traced.variables[name]
            own = variable.shape.num_elements() * variable.dtype.size
            if group and size + own > _BROUGHT_BYTES:
                yield group
                group, size = [], 0
            group.append(name)
            size += own
        if group:
            yield group

    def _set(self, name: str, value: Any) -> None:
        with context.eager_mode(), unnoticed():
            self._traced.variables[name].assign(value)

    def _value(self, name: str) -> np.ndarray:
        with context.eager_mode(), unnoticed():
            return np.asarray(self._traced.variables[name].numpy())

    def _take(self, names: Collection[str]) -> None:
        """Makes this the holder of variables; collective, if others have newer values of them."""
        for name in names:
            variable = self._traced.variables[name]
            before = holder_of(variable)
            if before is self:
                continue
            if before is not None:
                before.asked(variable)
            hold(variable, self)
            self._stale.add(name)

    def _share(self, names: Sequence[str]) -> None:
        """Gives variables the values that rank 0 has of them; collective."""
        self._shared |= set(names)
        job = self._job
        if job.guard is None or job.size == 1 or not names:
            return
        job.guard.meet(f"sharing the values of {', '.join(names)}")
        for name in names:
            value = job.comm.bcast(self._value(name) if job.rank == 0 else None, root=0)
            if job.rank:
                self._set(name, value)

    def _give(self, job: Job, names: Collection[str]) -> None:
        """Brings values that the script may have changed to the devices."""
        if job.executor is None:
            return
        missing = [name for name in names if name not in job.executor.variables]
        if missing:
            job.initialize(missing)
            self._stale -= set(missing)
        there = sorted(self._stale & job.executor.variables.keys())
        if there:
            job.executor.set_variables(self._value, there)
            self._stale -= set(there)
