"""One device's part of a plan: its variables, its local graph and the programs that a job runs on it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import FeedError, SessionError
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, DifferenceError, Guard
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.program.building import Builder
from tensoropt.exec.program.calling import callable_of
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.fed_tensors import check_not_differentiated, copies, fed_array
from tensoropt.exec.program.feeding import Feeding, checksum, is_compared
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.micro_batches import MicroBatches
from tensoropt.exec.program.op_errors import failed_operator, operator_error
from tensoropt.exec.program.recording import Owner, current_recording, owners_of
from tensoropt.exec.program.summation_order import keep_order
from tensoropt.exec.schedule.merging import prevent_merging
from tensoropt.exec.schedule.segments import keep_segments
from tensoropt.exec.schedule.touching import in_order, order_line
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import generator_of, is_counted
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce, stage
from tensoropt.storage.document import shortened
from tensoropt.terms import FEEDS, Terms

__all__ = ["Executor"]

_log = logging.getLogger("tensoropt")
_SHOWN = 60
"""Letters of what a program is asked for, on the line that says how long its first run takes to build."""


# What makes a program: the fetches, per placeholder that is fed whether it is a share of the batch, and other tensors
# that are fed.
_Key = tuple[tuple[Fetch, ...], tuple[tuple[str, bool], ...], tuple[TensorId, ...]]
# What may be fed: placeholders by name, other tensors (``TensorId``).
_Feeds = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class _Program:
    """The local tensors of one set of fetches; everything that differs from run to run is a feed."""

    call: Callable[..., Sequence[Any]]  # takes the feeds in order, gives one value per fetch (None for an operation)
    feeds: tuple[str, ...]  # names of the logical placeholders
    trains: bool  # whether variables are changed after gradients
    made: Mapping[str, str]  # the operator that gives a local tensor, by the tensor's name
    owners: Callable[[], Mapping[str, Owner]]  # gives whose work a local op does, by the op's name


class Executor:
    """Builds local programs from a plan and runs them.

    A program is made for each distinct set of fetches, the first time that it is run, so that a run does the work
    and the collectives of what it fetches and no other. All programs of a device share its state.

    All ranks must call :meth:`run` with the same fetches in the same order.

    Attributes:
        state: the variables and random generators, on which other executors run programs, too.
    """

    def __init__(
        self,
        state: DeviceState,
        local_graph: LocalGraph | None = None,
        *,
        guard: Guard | None = None,
        terms: Terms = FEEDS,
    ) -> None:
        """Runs nothing yet.

        Args:
            state: on which programs run.
            local_graph: of the state; by default that which it was made for.
            guard: lets all ranks run the same program or none.
            terms: in which errors speak of inputs.
        """
        self.state = state
        self._local = state.own_graph if local_graph is None else local_graph
        self._guard = guard
        self._terms = terms
        self._feeding = Feeding(self._local, terms)
        self._labels: dict[_Key, str] = {}
        self._runs: dict[_Key, int] = {}
        self._programs: dict[_Key, _Program] = {}
        self._needs: dict[Any, tuple[tuple[Operator, ...], tuple[Operator, ...]]] = {}

    def beside(self, graph: Graph, plan: Plan) -> Executor:
        """An executor of another graph on the same state: one for batches of another size, say, or with more operators.

        Variables that the state has not are added to it, without values; so are states of random operators.

        Args:
            graph: the other logical graph.
            plan: for it; variables are stored as in the state.

        Raises:
            PlanError: a plan for another graph, or one that stores variables in another way.
        """
        return Executor(self.state, self.state.local_graph(graph, plan), guard=self._guard, terms=self._terms)

    @property
    def graph(self) -> Graph:
        """The logical graph; that of the state gets the variables that were added."""
        return self._local.graph

    @property
    def plan(self) -> Plan:
        """The plan for the graph."""
        return self._local.plan

    def layout_of(self, tensor: TensorId) -> Layout:
        """Returns the layout of an operator's output."""
        return self._local.layout_of(tensor)

    # --------------------------------------------------------------------------------------------------- running

    def run(
        self,
        fetches: Sequence[Fetch],
        feeds: _Feeds | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> list[Any]:
        """Runs one program.

        Args:
            fetches: tensors (their whole values come back) and operations (None comes back).
            feeds: by placeholder name: the whole array, the same on every rank, or this rank's share of the batch
                (its ``rank``-th part of the first dimension). By any other tensor: the whole array.
            options: a ``tf.compat.v1.RunOptions`` for this device's step.
            run_metadata: a ``tf.compat.v1.RunMetadata``, filled with what TensorFlow says of it.

        Raises:
            FeedError: if a feed is missing, or has another shape or dtype than a whole or a share.
            CollectiveError: on the other ranks, if this fails on some or if ranks run different programs.
            OpError: if TensorFlow fails in an operator, such as a lookup of an index that is out of range.
        """
        try:
            key, local = self._prepare(tuple(fetches), feeds or {})
            checksums = self._checksums(key, feeds or {}, local)
        except Exception as error:
            self._meet("run", error)
            raise
        label = self._labels.get(key)
        if label is None:
            label = self._labels[key] = _label(*key)
        self._meet_fed(label, checksums)
        self._runs[key] = self._runs.get(key, 0) + 1  # not before, since ranks that failed have not counted
        try:
            program = self._programs.get(key)
            if program is None:
                first = f"first run of {shortened(', '.join(map(str, key[0])), _SHOWN)}"
                with stage(first, f"building {label}", if_long=True):
                    program = self._programs[key] = self._build(*key)
            self.state.fetched = {}
            with current_watch().stepping(label):
                values = self._call(program, [local[name] for name in program.feeds], options, run_metadata)
            if program.trains:
                self.state.count_step()
        except Exception as error:
            # The other ranks may be inside of this program's collectives, where they would wait forever.
            self._meet(label, error, FAILURE_PATIENCE_S)
            raise
        return [None if isinstance(fetch, str) else value for fetch, value in zip(fetches, values, strict=False)]

    def _call(self, program: _Program, feeds: Sequence[np.ndarray], options: Any, run_metadata: Any) -> Sequence[Any]:
        """Runs a program and returns its results; an error of TensorFlow's in an operator names the user's."""
        try:
            if options is None and run_metadata is None:
                recording = current_recording() if program.trains else None
                if recording is None or not recording.wants(self):
                    return program.call(*feeds)
                return recording.run(
                    lambda options, metadata: program.call(*feeds, options=options, run_metadata=metadata),
                    program.owners,
                )
            return program.call(*feeds, options=options, run_metadata=run_metadata)
        except tf.errors.OpError as error:
            for kernel in self._local.kernels.values():
                kernel.forget(self.state.session)
            found = failed_operator(error.message, self.state.tf_graph, program.made, program.owners)
            if found is None or found[0] not in self.graph:
                raise
            op, said = self.graph[found[0]], found[1]
            inputs = self.graph.input_specs(op)
            layouts = [self._local.wanted(Edge(tensor, op.name, i)).value for i, tensor in enumerate(op.inputs)]
            pieces = [
                TensorSpec(layout.local_shape(spec.shape, self.plan.mesh), spec.dtype)
                for spec, layout in zip(inputs, layouts, strict=True)
            ]
            rank, peak_bytes = self.state.engine.rank, self.plan.peak_bytes
            in_time = self._local.in_time
            times = in_time.times if in_time is not None and in_time.is_each(op.name) else 1
            raise operator_error(error, op, inputs, pieces, said, rank, peak_bytes, times) from error

    def _meet(self, what: str, error: Exception | None = None, patience_s: float | None = None) -> None:
        if self._guard is not None:
            self._guard.meet(what, error, patience_s=patience_s)

    def _checksums(self, key: _Key, given: _Feeds, local: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Returns checksums of whole feeds, in a program's first runs and now and then; ranks count the same runs."""
        whole = [name for name, share in key[1] if not share]
        if not (whole or key[2]) or self._guard is None or self._guard.size == 1:
            return {}
        runs = self._runs.get(key, 0)
        if not is_compared(runs):
            return {}
        sums = {name: self._feeding.checksum(self.graph[name], given[name]) for name in whole}
        return sums | {str(tensor): checksum(local[str(tensor)]) for tensor in key[2]}

    def _meet_fed(self, label: str, checksums: Mapping[str, int]) -> None:
        """Meets before a run, and compares what is fed whole.

        Raises:
            FeedError: on all ranks, if it differs.
        """
        if self._guard is None:
            return
        try:
            self._guard.meet(label, shared=checksums)
        except DifferenceError as error:
            name = error.differing[0]
            parts = written_holders(f"{rank[name]:#010x}" for rank in error.ranks)
            op = self.graph[name if name in self.graph else name.rpartition(":")[0]]
            share = self._feeding.share_of(op) if name in self.graph else None
            subject, words = self._feeding.subject(op), self._terms
            remedy = f"{words.give.capitalize()} the same everywhere (seed what shuffles or draws the batches)"
            if share is not None:
                remedy += (
                    f", or {words.give} each rank its own share, the rank-th part of the batch, of shape {share}. "
                )
                remedy += "The batch is that of all ranks: who has such a one for each makes it as many times larger"
            raise FeedError(
                f"{subject}: was {words.given} as a whole {op.outputs[0]}, which must be the same on all "
                f"{len(error.ranks)} ranks. Got arrays with the checksums {parts}. {remedy}."
            ) from None

    def _prepare(self, fetches: tuple[Fetch, ...], given: _Feeds) -> tuple[_Key, dict[str, np.ndarray]]:
        """Returns the program to run, and its feeds: the preparation that needs no other rank."""
        for name in given:
            if isinstance(name, str) and (name not in self.graph or not traits(self.graph[name]).is_input):
                raise FeedError(f"Feed '{name}': is not a placeholder of the graph that was planned.")
        fed = tuple(sorted(key for key in given if isinstance(key, TensorId)))
        local = {str(tensor): fed_array(self.graph, tensor, given[tensor]) for tensor in fed}
        _, inputs = self._inputs(fetches, self._cut(given))
        modes: dict[str, bool] = {}
        for op in inputs:
            if op.name in given:
                modes[op.name] = self._feeding.is_share(op, given[op.name])
                local[op.name] = self._feeding.piece(op, given[op.name], modes[op.name])
            elif traits(op).must_be_fed:
                raise FeedError(
                    f"{self._feeding.subject(op)}: is needed for {', '.join(map(str, fetches))} and was not "
                    f"{self._terms.given}. {self._terms.remedy} an array of {op.outputs[0]}."
                )
        return (fetches, tuple(sorted(modes.items())), fed), local

    def has(self, fetch: Fetch) -> bool:
        """Tells whether a fetch belongs to the graph."""
        if isinstance(fetch, str):
            return fetch in self.graph
        return fetch.op in self.graph and fetch.index < len(self.graph[fetch.op].outputs)

    def _cut(self, given: Iterable[str | TensorId]) -> frozenset[TensorId]:
        """The tensors that need not be computed where these are fed: they, and the defaults of placeholders."""
        tensors = [each for key in given if isinstance(key, TensorId) for each in copies(self.graph, key)]
        names = (key for key in given if isinstance(key, str))
        return frozenset([*tensors, *(TensorId(name) for name in names if traits(self.graph[name]).has_default)])

    def _inputs(
        self, fetches: tuple[Fetch, ...], cut: frozenset[TensorId]
    ) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """The operators that the fetches need, and the placeholders among them; worked out once."""
        if (fetches, cut) not in self._needs:
            needed = self._needed(fetches, cut)
            self._needs[fetches, cut] = needed, tuple(op for op in needed if traits(op).is_input)
        return self._needs[fetches, cut]

    def _needed(self, fetches: Sequence[Fetch], cut: frozenset[TensorId]) -> tuple[Operator, ...]:
        """The operators that the fetches need where some tensors are there already."""
        given = {tensor for tensor in cut if not traits(self.graph[tensor.op]).is_input}
        names = names_of(fetch for fetch in fetches if fetch not in given)
        for name in names:
            if name not in self.graph:
                raise SessionError(
                    f"Fetch '{name}': is not in the graph that was planned. Make it before find_strategy; "
                    "ops with unknown shapes, strings or sessions of their own cannot be planned."
                )
        needed = self.graph.needed_for(names, cut)
        # A state goes on from the last turn of a loop, which TensorFlow runs whoever reads what that draws.
        while behind := self._last_draws(needed).difference(op.name for op in needed):
            needed = self.graph.needed_for((*(op.name for op in needed), *behind), cut)
        if any(traits(op).is_gradient for op in needed):
            check_not_differentiated(self.graph, needed, sorted(cut))
        return needed

    def _last_draws(self, operators: Iterable[Operator]) -> set[str]:
        """The last operators that draw by the generators that operators draw by, if draws are counted."""
        counted = [op for op in operators if is_counted(op)]
        if not counted:
            return set()
        last = {generator_of(op): op.name for op in self.graph.operators if is_counted(op)}
        return {last[generator_of(op)] for op in counted}

    # ------------------------------------------------------------------------------------------------- building

    def _build(
        self, fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...], fed: tuple[TensorId, ...]
    ) -> _Program:
        """Adds the program's ops to the local graph, in the same order on every rank."""
        needed, _ = self._inputs(fetches, self._cut([*(name for name, _ in modes), *fed]))
        number = len(self._local.chains)
        with (
            self.state.tf_graph.as_default(),
            self.state.engine.program() as chain,
            tf.name_scope(f"program_{number}"),
        ):
            self._local.chains.append(chain)
            before = len(self.state.engine.emitted(self.state.tf_graph))
            built = len(self.state.tf_graph.get_operations())
            ordered, waits = in_order(needed, self.graph.after_gradients())  # the forward pass first
            make = Builder if self._local.in_time is None else MicroBatches
            builder = make(self._local, dict(modes), needed, fed, waits)
            builder.build(ordered)
            builder.finish()
            values = [builder.fetched(fetch) for fetch in fetches]
            if self._local.places is not None:
                # What this device does for what others have of the fetches; none of its fetches may need that.
                values.append(tf.group(*builder.effects(), *([] if chain.last is None else [chain.last])))
            moved = builder.moved_states()
            if moved:
                values.append(tf.group(*moved))
            targets = [getattr(value, "op", value) for value in values]
            made = range(built, len(self.state.tf_graph.get_operations()))
            if self._local.one_thread:
                keep_segments(targets, chain.names, built, builder.backward)
            prevent_merging(targets, built)
            keep_order(self.state.tf_graph, built)
            builder.complete(targets, made, self.state.config)
        if waits and not self.state.told_order:
            self.state.told_order = True
            announce(order_line(needed, waits))
        emitted = self.state.compare_collectives(", ".join(map(str, fetches)), before)
        _log.debug("program %d for %s: %d collectives", number, list(map(str, fetches)), emitted)
        names = tuple(builder.feeds)
        trains = any(traits(op).is_gradient for op in needed) and any(traits(op).has_effect for op in needed)
        call = callable_of(self.state.session, values, [builder.feeds[name] for name in names])
        # Worked out only if steps are recorded.
        made_for = self.state.tf_graph, built, self.state.tf_graph.version, builder.ranges, chain.names
        owners = functools.cache(functools.partial(owners_of, *made_for))
        return _Program(call, names, trains, builder.made, owners)


def _label(fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...], fed: tuple[TensorId, ...]) -> str:
    """Returns the unique name of a program in messages."""
    label = f"run [{', '.join(map(str, fetches))}]" + "".join(f", {tensor} fed whole" for tensor in fed)
    return label + "".join(f", {name} fed {'a share' if share else 'whole'}" for name, share in modes)
