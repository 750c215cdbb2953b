"""Traces that are planned and run together: one model, one plan, one set of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.arguments import check_micro_batches, check_sizes
from tensoropt.api.find.deferred_plan import DeferredPlan, as_plan
from tensoropt.api.functions.planning import Planning
from tensoropt.api.functions.traced_model import Trace, Traceable
from tensoropt.api.functions.values import Values
from tensoropt.api.session import runs
from tensoropt.api.session.costs import check_costs
from tensoropt.api.session.job import current_job
from tensoropt.api.session.runtime import build_execution_graph
from tensoropt.api.session.strategy_search import check_request, find_strategy
from tensoropt.errors import CollectiveError, PlanError
from tensoropt.exec.engines.guard import DifferenceError
from tensoropt.exec.engines.select import check_collectives
from tensoropt.exec.program.feeding import checksum, is_compared
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce
from tensoropt.terms import ARGUMENTS, Terms

__all__ = ["Program", "check_asked"]

_NOT_HERE = ("profiling", "mini_parallelism")


def check_asked(caller: str, option: Any, arguments: Mapping[str, Any]) -> None:
    """Checks the request for a plan of a :class:`Program`, as far as possible before anything is traced.

    Args:
        caller: the name of the function that the user has called.
        option: see :func:`tensoropt.find_strategy`.
        arguments: others, of ``find_strategy`` and ``build_execution_graph``.

    Raises:
        PlanError: an unknown option, search or way to price, or an option that gives no plan for all ranks.
        EngineError: unknown collectives.
    """
    if option in _NOT_HERE:
        raise PlanError(
            f"option={option!r}: is not for functions and Keras models, whose ranks all go on. Choose a plan for "
            "all ranks, such as 'mini_time'."
        )
    check_sizes(caller, arguments.get("batch_size"), arguments.get("memory_bytes"))
    check_micro_batches(caller, arguments.get("micro_batches", 1))
    check_request(as_plan(option), arguments.get("search", "ft"))
    check_costs(arguments.get("costs"))
    check_collectives(arguments.get("collectives", "auto"))


class Program(Planning):
    """Runs traces by a plan that is searched for the first of them.

    Traces that are added later take their splits from the plan, as operators do that a script makes later. Variables
    begin with the values that rank 0 has of them.

    Attributes:
        values: of the variables.
    """

    def __init__(
        self,
        named: Callable[[Any], str | None] = lambda variable: None,
        terms: Terms = ARGUMENTS,
        *,
        shares: bool | None = None,
    ) -> None:
        """Begins with no trace.

        Args:
            named: the name that a variable is to have in plans and messages, or None.
            terms: in which errors speak of inputs.
            shares: whether each rank gives its share of a batch, or all of them the whole; None where contents tell.
        """
        current_job().start_once()
        super().__init__(named, terms)
        self.values = Values(self._traced.variables, self._entered)
        self._traced.model.outside = self.values
        self._job.shares = self._shares = shares
        self._plan: Any = None
        self._runs: dict[Any, int] = {}  # with whole batches, by shapes

    @property
    def plan(self) -> Plan | None:
        """The plan, once it is made."""
        given = self._plan
        return given.plan if isinstance(given, DeferredPlan) else given

    @property
    def is_planned(self) -> bool:
        """True if a plan was asked for; the plan may wait for the first run."""
        return self._plan is not None

    @property
    def is_rehearsed(self) -> bool:
        """True if the job is a rehearsal: nothing runs on devices before the first training step."""
        return self._job.rehearsal is not None

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._job.world.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._job.world.size

    def trace(self, traceable: Traceable) -> Trace:
        """Traces a function of tensors; collective. See :meth:`TracedModel.trace`."""
        trace = super().trace(traceable)
        self.values.take(trace.variables)
        self.values.share(trace.variables)
        return trace

    def search(
        self, option: Any = "mini_time", *, collectives: str = "auto", config: Any = None, **arguments: Any
    ) -> None:
        """Searches a plan for what was traced, and builds it; collective.

        Arguments are those of :func:`tensoropt.find_strategy` and :func:`tensoropt.build_execution_graph`.

        Raises:
            PlanError: an option that gives no plan for all ranks.
            TensorOptError: what those raise.
        """
        check_asked("find_strategy", option, arguments)
        with self._entered():
            plan = find_strategy(option, **arguments)
            build_execution_graph(plan=plan, collectives=collectives, config=config)
        self._plan = plan

    def run(self, trace: Trace, arguments: Sequence[Any], *, whole: bool = False) -> Any:
        """Runs a trace on all ranks; collective.

        Args:
            trace: of this program's.
            arguments: an array for each of its inputs: the whole batch, or this rank's share.
            whole: whether it is always the whole batch, which is compared in the first runs and then now and then.

        Returns:
            What the function returns, of whole values.

        Raises:
            CollectiveError: on all ranks, if whole batches differ.
        """
        whole = whole or self._shares is False
        if whole or (self._shares is None and not self._job.saw_shares):
            self._compare(trace, arguments, whole=whole)
        self.values.take(trace.variables)
        with self._entered() as job:
            self.values.give(job, trace.variables)
            feeds = dict(zip(trace.inputs, arguments, strict=True))
            _, *values = runs.run(job, [trace.target, *trace.outputs], feeds)
            self.values.ran(trace.written, job.require_executor("run"))
        return trace.pack([tf.convert_to_tensor(value) for value in values])

    def shared_sizes(self, arrays: Sequence[Any]) -> frozenset[int]:
        """The first sizes of arrays that differ between ranks, which are shares of a batch; collective."""
        if not self._job.world.are_several or not arrays:
            return frozenset()
        named = {str(place): value for place, value in enumerate(arrays) if np.ndim(value)}
        error = self._difference(f"arguments of {len(arrays)} tensors", named)
        return frozenset() if error is None else frozenset(len(named[name]) for name in error.differing)

    def _difference(self, what: str, arrays: Mapping[str, Any]) -> DifferenceError | None:
        """The error that tells which arrays differ between ranks, None if all are the same; collective."""
        try:
            self._job.world.meet(what, shared={name: checksum(np.asarray(value)) for name, value in arrays.items()})
        except DifferenceError as error:
            return error
        return None

    def _compare(self, trace: Trace, arguments: Sequence[Any], *, whole: bool) -> None:
        """Compares what ranks give, in the first runs and then now and then; where they may be shares, to say so."""
        world, shapes = self._job.world, (trace.target, *(np.shape(value) for value in arguments))
        runs = self._runs.get(shapes, 0)
        self._runs[shapes] = runs + 1
        if not world.are_several or not is_compared(runs):
            return
        error = self._difference(f"a batch for {shapes}", dict(zip(trace.inputs, arguments, strict=True)))
        if error is None:
            return
        if not whole:
            self._job.saw_shares = True
            rows = {len(value) * world.size for value in arguments if np.ndim(value)}
            announce(
                f"{', '.join(error.differing)}: ranks give different arrays, which are taken as shares of one "
                f"batch ({'/'.join(map(str, sorted(rows)))} rows). tensoropt.function(shard=False) says that they "
                "are, shard=True that all ranks are to give the whole batch, which is then compared"
            )
            return
        raise CollectiveError(
            f"{', '.join(error.differing)}: every rank must have the same whole batch, and they differ. Seed what "
            "shuffles or draws the data alike on all ranks (keras.utils.set_random_seed before the data are made). "
            "If they are shares of one batch, as in a script for Horovod, say so by shard=False: the batch and the "
            "learning rate are those of all ranks together."
        ) from error

    def sync(self, *, large: bool = True) -> None:
        """Gives the script's variables the values that they have here; collective. See :meth:`Values.sync`."""
        self.values.sync(large=large)
