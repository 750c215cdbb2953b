"""One device's part of a plan: its variables, its local graph and the programs that a job runs on it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import FeedError, PlanError, SessionError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, DifferenceError, Guard
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.program.building import Builder
from tensoropt.exec.program.calling import callable_of
from tensoropt.exec.program.feeding import Feeding
from tensoropt.exec.program.fetch import Fetch, GradientOf
from tensoropt.exec.program.local import LocalGraph
from tensoropt.exec.program.op_errors import failed_operator, operator_error
from tensoropt.exec.program.replicas import LEVEL_STEPS, level, stored_layout
from tensoropt.exec.program.stored import Stored, stored_variables
from tensoropt.exec.program.sums import keep_order
from tensoropt.exec.program.training import Training
from tensoropt.exec.schedule.merging import prevent_merging
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.exec.schedule.segments import keep_segments
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.stages import working

__all__ = ["Executor"]

_log = logging.getLogger("tensoropt")
# What is fed whole is compared over ranks in so many first runs of a program, and then in one of so many.
_FIRST_COMPARED, _COMPARED_EVERY = 10, 100


# What makes a program: the fetches, and per placeholder that is fed whether it is a share of the batch.
_Key = tuple[tuple[Fetch, ...], tuple[tuple[str, bool], ...]]


@dataclass(frozen=True, slots=True)
class _Program:
    """The local tensors of one set of fetches; everything that differs from run to run is a feed."""

    call: Callable[..., Sequence[Any]]  # takes the feeds in order, gives one value per fetch (None for an operation)
    feeds: tuple[str, ...]  # names of the logical placeholders
    trains: bool  # whether a training step is among what runs
    made: Mapping[str, str]  # the operator that gives a local tensor, by the tensor's name


class Executor:
    """Builds local programs from a plan and runs them.

    A program is made for each distinct set of fetches, the first time that it is run, so that a run does the work
    and the collectives of what it fetches and no other. Variables, optimizer slots and random generators are shared.

    All ranks must call :meth:`run` with the same fetches in the same order.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        engine: CollectiveEngine,
        trainings: Sequence[Training] = (),
        *,
        agree: Callable[[str, str], None] | None = None,
        guard: Guard | None = None,
        config: Any = None,
    ) -> None:
        """Makes the local graph with its variables, which :meth:`set_variables` fills.

        Args:
            graph: the logical graph.
            plan: checked against it.
            engine: does the collectives.
            trainings: the training steps.
            agree: called as ``agree(what, fingerprint)`` before a new program first runs; raises if ranks differ.
            guard: lets all ranks run the same program or none.
            config: ``tf.compat.v1.ConfigProto`` of the session.
        """
        plan.check(graph)
        if engine.size != plan.mesh.size:
            raise PlanError(
                f"Plan: is for {plan.mesh.size} devices, this job has {engine.size}. "
                f"Run it with mpirun -n {plan.mesh.size}, or call find_strategy again."
            )
        uncache_products(graph, engine.size)
        self.graph = graph
        self.plan = plan
        self.engine = engine
        self._agree = agree
        self._guard = guard
        self._labels: dict[_Key, str] = {}
        self._runs: dict[_Key, int] = {}
        self._programs: dict[_Key, _Program] = {}
        self._needs: dict[tuple[Fetch, ...], tuple[tuple[Operator, ...], tuple[Operator, ...]]] = {}
        self.tf_graph = tf.Graph()
        given = 0 if config is None else config.inter_op_parallelism_threads
        self._local = LocalGraph(
            graph,
            plan,
            engine,
            rules_of(graph),
            {training.op: training for training in trainings},
            self.tf_graph,
            one_thread=(given or os.environ.get("TF_NUM_INTEROP_THREADS")) in (1, "1"),
        )
        self._feeding = Feeding(self._local)
        with self.tf_graph.as_default():
            # The seeds of operators are attributes already; this one is for what only this device draws.
            tf.compat.v1.set_random_seed(0)
            for op in graph.variables():
                self._local.variables[op.name] = self._make_variable(op)
        self._session = tf.compat.v1.Session(graph=self.tf_graph, config=config)
        self._initialized: set[str] = set()
        self._trained = 0
        self._levels: dict[int, Any] = {}

    # ------------------------------------------------------------------------------------------------ variables

    @property
    def variables(self) -> Mapping[str, Any]:
        """This device's pieces of the variables (``tf.Variable``), by name."""
        return dict(self._local.variables)

    @property
    def session(self) -> Any:
        """The ``tf.compat.v1.Session`` that runs the local graph."""
        return self._session

    def layout_of(self, tensor: TensorId) -> Layout:
        """How an operator's output lies on the mesh."""
        return self._local.layout_of(tensor)

    def set_variables(self, values: Callable[[str], np.ndarray], names: Sequence[str] | None = None) -> None:
        """Sets this device's pieces from whole values, one variable at a time.

        Args:
            values: gives the whole value of a variable.
            names: which variables; all of them by default.
        """
        for name in self._local.variables if names is None else names:
            variable, feed, assign = self._local.variables[name], *self._assigns[name]
            whole = np.asarray(values(name))
            spec = self.graph[name].outputs[0]
            if whole.shape != spec.shape:
                raise SessionError(f"Variable '{name}': its value has shape {whole.shape}, it is {spec}.")
            piece = whole[self.layout_of(TensorId(name)).slices(spec.shape, self.plan.mesh, self.engine.rank)]
            # A copy: TensorFlow may take the array's own memory, and with a view of it the whole value would stay.
            self._session.run(assign, {feed: piece.copy() if piece.size < whole.size else piece})
            self._initialized.add(variable.name)
        self._initialize_rest()

    def reset_optimizers(self) -> None:
        """Sets all slots of optimizers to their initial values."""
        self._initialized &= {variable.name for variable in self._local.variables.values()}
        self._initialize_rest()

    def stored(self) -> dict[Stored, tuple[np.ndarray, tuple[slice, ...]]]:
        """What this device stores, and which part of the whole it is; slots only of training steps that have run.

        What ranks store of equal parts are copies of one another.
        """
        stored = stored_variables(self._local.variables, self._local.optimizers)
        result = {}
        for key, value in self._session.run(stored).items():
            layout = stored_layout(self._local, key, stored[key])
            part: tuple[slice, ...] = ()
            if layout is not None:
                part = layout.slices(self.graph[key.variable].outputs[0].shape, self.plan.mesh, self.engine.rank)
            result[key] = (np.asarray(value), part)
        return result

    def _make_variable(self, op: Operator) -> Any:
        layout = self.plan.configuration(op.name).output_layouts(self._local.rules[op.name], 0).value
        shape = layout.local_shape(op.outputs[0].shape, self.plan.mesh)
        feed = tf.compat.v1.placeholder(op.outputs[0].dtype, shape, name=f"{op.name}/initial")
        variable = tf.compat.v1.Variable(
            feed, use_resource=True, trainable=True, name=op.name, collections=["tensoropt_variables"]
        )
        if not hasattr(self, "_assigns"):
            self._assigns: dict[str, tuple[Any, Any]] = {}
        self._assigns[op.name] = (feed, variable.initializer)
        return variable

    def _initialize_rest(self) -> None:
        """Initialises what optimizers made: slots and accumulators, which TensorFlow keeps in this collection."""
        with self.tf_graph.as_default():
            rest = [v for v in tf.compat.v1.global_variables() if v.name not in self._initialized]
            if rest:
                self._session.run([variable.initializer for variable in rest])
        self._initialized |= {variable.name for variable in rest}

    # --------------------------------------------------------------------------------------------------- running

    def run(self, fetches: Sequence[Fetch], feeds: Mapping[str, np.ndarray] | None = None) -> list[Any]:
        """Runs one program.

        Args:
            fetches: tensors (their whole values come back) and operations (None comes back).
            feeds: by placeholder name: the whole array, the same on every rank, or this rank's share of the batch
                (its ``rank``-th part of the first dimension).

        Raises:
            FeedError: if a feed is missing, or has another shape or dtype than a whole or a share.
            CollectiveError: on the other ranks, if this fails on some or if ranks run different programs.
            OpError: if TensorFlow fails in an operator, such as a lookup of an index that is out of range.
        """
        try:
            key, local = self._prepare(tuple(fetches), feeds or {})
            checksums = self._checksums(key, feeds or {})
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
                with working(f"building {label}"):
                    program = self._programs[key] = self._build(*key)
            with current_watch().stepping(label):
                values = self._call(program, [local[name] for name in program.feeds])
            self._trained += program.trains
            if program.trains and self._trained % LEVEL_STEPS == 0 and self.engine.size > 1:
                self._level()
        except Exception as error:
            # The other ranks may be inside of this program's collectives, where they would wait forever.
            self._meet(label, error, FAILURE_PATIENCE_S)
            raise
        return [None if isinstance(fetch, str) else value for fetch, value in zip(fetches, values, strict=True)]

    def _level(self) -> None:
        """Makes the copies that ranks have of one another's pieces equal."""
        slots = len(stored_variables(self._local.variables, self._local.optimizers))
        if slots not in self._levels:
            with (
                working("building what levels copies"),
                self.tf_graph.as_default(),
                self.engine.program(),
                tf.name_scope("level"),
            ):
                before = len(self.engine.emitted(self.tf_graph))
                self._levels[slots] = level(self._local)
                self._compare_collectives("levelling", before)
        with current_watch().stepping("levelling copies"):
            self._session.run(self._levels[slots])

    def _call(self, program: _Program, feeds: Sequence[np.ndarray]) -> Sequence[Any]:
        """What a program gives; where TensorFlow fails in an operator, the error names the user's."""
        try:
            return program.call(*feeds)
        except tf.errors.OpError as error:
            found = failed_operator(error.message, self.tf_graph, program.made)
            if found is None:
                raise
            op, said = self.graph[found[0]], found[1]
            inputs = self.graph.input_specs(op)
            layouts = [self._local.wanted(Edge(tensor, op.name, i)).value for i, tensor in enumerate(op.inputs)]
            pieces = [
                TensorSpec(layout.local_shape(spec.shape, self.plan.mesh), spec.dtype)
                for spec, layout in zip(inputs, layouts, strict=True)
            ]
            raise operator_error(error, op, inputs, pieces, said, self.engine.rank) from error

    def _meet(self, what: str, error: Exception | None = None, patience_s: float | None = None) -> None:
        if self._guard is not None:
            self._guard.meet(what, error, patience_s=patience_s)

    def _checksums(self, key: _Key, given: Mapping[str, Any]) -> dict[str, int]:
        """Of what is fed whole, in the first runs of a program and now and then; ranks count the same runs."""
        whole = [name for name, share in key[1] if not share]
        if not whole or self._guard is None or self._guard.size == 1:
            return {}
        runs = self._runs.get(key, 0)
        if runs >= _FIRST_COMPARED and runs % _COMPARED_EVERY:
            return {}
        return {name: self._feeding.checksum(self.graph[name], given[name]) for name in whole}

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
            op = self.graph[name]
            share = self._feeding.share_of(op)
            remedy = "Feed the same everywhere (seed what shuffles or draws the batches)"
            if share is not None:
                remedy += f", or feed each rank its own share, the rank-th part of the batch, of shape {share}"
            raise FeedError(
                f"{op}: was fed as a whole {op.outputs[0]}, which must be the same on all {len(error.ranks)} ranks. "
                f"Got arrays with the checksums {parts}. {remedy}."
            ) from None

    def _prepare(self, fetches: tuple[Fetch, ...], given: Mapping[str, Any]) -> tuple[_Key, dict[str, np.ndarray]]:
        """Which program to run, and what is fed to it: all that needs no other rank."""
        _, inputs = self._inputs(fetches)
        for name in given:
            if name not in self.graph or not traits(self.graph[name]).is_input:
                raise FeedError(f"Feed '{name}': is not a placeholder of the graph that was planned.")
        modes: dict[str, bool] = {}
        local: dict[str, np.ndarray] = {}
        for op in inputs:
            if op.name in given:
                modes[op.name] = self._feeding.is_share(op, given[op.name])
                local[op.name] = self._feeding.piece(op, given[op.name], modes[op.name])
            elif traits(op).must_be_fed:
                raise FeedError(
                    f"{op}: is needed for {', '.join(map(str, fetches))} and was not fed. "
                    f"Add it to feed_dict with an array of {op.outputs[0]}."
                )
        return (fetches, tuple(sorted(modes.items()))), local

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _inputs(self, fetches: tuple[Fetch, ...]) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """The operators that the fetches need, and the placeholders among them; worked out once."""
        if fetches not in self._needs:
            needed = self._needed(fetches)
            self._needs[fetches] = needed, tuple(op for op in needed if traits(op).is_input)
        return self._needs[fetches]

    def _needed(self, fetches: Sequence[Fetch]) -> tuple[Operator, ...]:
        """The operators that the fetches need, with what the training steps among them need."""
        names: list[str] = []
        for fetch in fetches:
            name = fetch.training if isinstance(fetch, GradientOf) else fetch if isinstance(fetch, str) else fetch.op
            if name not in self._local.trainings and name not in self.graph:
                raise SessionError(
                    f"Fetch '{fetch}': is not in the graph that was planned. Make it before find_strategy; "
                    "ops with unknown shapes, strings or sessions of their own cannot be planned."
                )
            names.append(name)
        needed: tuple[Operator, ...] = ()
        done: set[str] = set()
        while True:
            reached = [name for name in (*names, *(op.name for op in needed)) if name in self._local.trainings]
            fresh = [name for name in dict.fromkeys(reached) if name not in done]
            if needed and not fresh:
                return needed
            for name in fresh:
                done.add(name)
                training = self._local.trainings[name]
                names += [training.loss, *(tensor.op for tensor in training.parameters.values()), *training.after]
                names += training.variables
                names += [] if training.global_step is None else [training.global_step]
            needed = self.graph.needed_for(name for name in names if name in self.graph)

    # ------------------------------------------------------------------------------------------------- building

    def _build(self, fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...]) -> _Program:
        """Adds the program's ops to the local graph, in the same order on every rank."""
        needed, _ = self._inputs(fetches)
        number = len(self._programs)
        # A program that fetches gradients alone must not update variables.
        fetched = {fetch for fetch in fetches if isinstance(fetch, str)}
        gradients = any(isinstance(fetch, GradientOf) for fetch in fetches)
        builder = Builder(self._local, dict(modes), fetched if gradients else None)
        with self.tf_graph.as_default(), self.engine.program() as chain, tf.name_scope(f"program_{number}"):
            self._local.chains.append(chain)
            before = len(self.engine.emitted(self.tf_graph))
            built = len(self.tf_graph.get_operations())
            late = self._after_training(needed)
            for op in needed:
                if op.name not in late:
                    builder.add(op)
            for fetch in fetches:
                if isinstance(fetch, GradientOf) or fetch in self._local.trainings:
                    builder.operation(fetch.training if isinstance(fetch, GradientOf) else str(fetch))
            for op in needed:
                if op.name in late:
                    builder.add(op)
            values = tuple(builder.fetched(fetch) for fetch in fetches)
            targets = [getattr(value, "op", value) for value in values]
            if self._local.one_thread:
                keep_segments(targets, chain.names, built, builder.backward)
            prevent_merging(targets, built)
            keep_order(self.tf_graph, built)
        emitted = self._compare_collectives(", ".join(map(str, fetches)), before)
        _log.debug("program %d for %s: %d collectives", number, list(map(str, fetches)), emitted)
        # Slots are made while the update is built; they must have values before the first run.
        self._initialize_rest()
        names = tuple(builder.feeds)
        trains = any(name in self._local.trainings for name in (*fetched, *(op.name for op in needed)))
        call = callable_of(self._session, values, [builder.feeds[name] for name in names])
        return _Program(call, names, trains, builder.made)

    def _compare_collectives(self, what: str, before: int) -> int:
        """Every rank compares what it is about to run: a difference would pair up the wrong collectives."""
        emitted = self.engine.emitted(self.tf_graph)[before:]
        if self._agree is not None:
            self._agree(f"collectives of {what}", hashlib.sha256("\n".join(emitted).encode()).hexdigest())
        return len(emitted)

    def _after_training(self, needed: Sequence[Operator]) -> set[str]:
        """Operators that wait for a training step (a moving average of variables, say), and its marker itself."""
        late: set[str] = set()
        trainings = self._local.trainings
        for op in needed:
            waits_for = (*op.control_inputs, *(tensor.op for tensor in op.inputs))
            if op.name in trainings or any(name in late or name in trainings for name in waits_for):
                late.add(op.name)
        return late


def _label(fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...]) -> str:
    """What a program is called in messages; another one for every other program."""
    label = f"run [{', '.join(map(str, fetches))}]"
    return label + "".join(f", {name} fed {'a share' if share else 'whole'}" for name, share in modes)
