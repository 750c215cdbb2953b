"""One device's part of a plan: its variables, its local graph and the programs that a job runs on it."""

from __future__ import annotations

import copy
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
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
from tensoropt.exec.program.fed_tensors import check_not_differentiated, copies, fed_array
from tensoropt.exec.program.feeding import Feeding, checksum, is_compared
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.exec.program.generators import Generator
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.local_session import has_one_thread, session_of
from tensoropt.exec.program.op_errors import failed_operator, operator_error
from tensoropt.exec.program.outside_variable import REPLACED_BYTES, OutsideVariable
from tensoropt.exec.program.recording import Owner, current_recording, owners_of
from tensoropt.exec.program.replicas import LEVEL_STEPS, level
from tensoropt.exec.program.summation_order import keep_order
from tensoropt.exec.schedule.merging import prevent_merging
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.exec.schedule.segments import keep_segments
from tensoropt.exec.schedule.touching import in_order, order_line
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import draws_by_state
from tensoropt.graph.registry import rule_of, traits
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.stages import announce, working
from tensoropt.terms import FEEDS, Terms

__all__ = ["Executor"]

_log = logging.getLogger("tensoropt")


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
    and the collectives of what it fetches and no other. Variables, optimizer slots and random generators are shared.

    All ranks must call :meth:`run` with the same fetches in the same order.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        engine: CollectiveEngine,
        *,
        agree: Callable[[str, str], None] | None = None,
        guard: Guard | None = None,
        config: Any = None,
        outside: Callable[[str], Any] | None = None,
        terms: Terms = FEEDS,
    ) -> None:
        """Makes the local graph with its variables, which :meth:`set_variables` fills.

        Args:
            graph: the logical graph.
            plan: checked against it.
            engine: does the collectives.
            agree: called as ``agree(what, fingerprint)`` before a new program first runs; raises if ranks differ.
            guard: lets all ranks run the same program or none.
            config: ``tf.compat.v1.ConfigProto`` of the session.
            outside: gives the handle of a variable that eager code has, by name. One that this device stores whole is
                stored there, and nowhere else, unless it is large and a step replaces its value.
            terms: in which errors speak of inputs.
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
        self._needs: dict[Any, tuple[tuple[Operator, ...], tuple[Operator, ...]]] = {}
        self.tf_graph = tf.Graph()
        self._local = LocalGraph(
            graph,
            plan,
            engine,
            rules_of(graph),
            self.tf_graph,
            one_thread=has_one_thread(config),
        )
        self._feeding = Feeding(self._local)
        self._outside, self._is_outside = outside, set[str]()
        self._assigns: dict[str, tuple[Any, Any]] = {}
        self._terms = terms
        self._feeding = Feeding(self._local, terms)
        with self.tf_graph.as_default():
            # The seeds of operators are attributes already; this one is for what only this device draws.
            tf.compat.v1.set_random_seed(0)
            for op in graph.variables():
                self._local.variables[op.name] = self._make_variable(op)
        self._session = session_of(self.tf_graph, config)
        self._origin = self
        self._link(self.outside)
        self._told_order = False  # that what touches a variable in no order has one
        self._states: dict[str, np.ndarray] = {}  # of generators that are not there yet
        self.unsaved_generators: list[Operator] = []
        self._add_generators(graph)
        self.trained = 0  # training steps, which say when copies are made equal
        self._initialized: set[str] = set()
        self._levelling: Any = None

    def beside(self, graph: Graph, plan: Plan) -> Executor:
        """An executor of another graph on the same variables and generators: one for batches of another size, say, or
        with operators that were made later. It ends with this one.

        Variables that this one has not are added to it, without values; so are states of random operators.

        Args:
            graph: the other logical graph.
            plan: for it; variables are stored as here.

        Raises:
            PlanError: a plan for another graph, or one that stores variables in another way.
        """
        plan.check(graph)
        for op in graph.variables():
            if op.name in self._local.variables and plan.configuration(op.name) != self.plan.configuration(op.name):
                raise PlanError(
                    f"{op}: is stored as {self.plan.configuration(op.name)}, and is to be shared by a program that "
                    f"wants {plan.configuration(op.name)}. Make the plan with tensoropt.plan.adapt.adapted."
                )
        self._add_variables([op for op in graph.variables() if op.name not in self._local.variables], plan)
        self._add_generators(graph)
        other = copy.copy(self)
        other.graph, other.plan = graph, plan
        other._labels, other._runs, other._programs, other._needs = {}, {}, {}, {}
        other._local = self._local.beside(graph, plan, rules_of(graph))
        other._feeding = Feeding(other._local, self._terms)
        return other

    def _add_variables(self, added: Sequence[Operator], plan: Plan) -> None:
        if not added:
            return
        graph, local = self.graph, self._local
        operators = {**self.plan.operators, **{op.name: plan.operators[op.name] for op in added}}
        # They go first: nothing of what is there reads them, and they read nothing.
        self.graph = local.graph = Graph((*added, *graph.operators), graph.training, graph.differentiable)
        self.plan = local.plan = replace(self.plan, fingerprint=self.graph.fingerprint(), operators=operators)
        local.rules = {**local.rules, **{op.name: rule_of(op, ()) for op in added}}
        self._needs.clear()
        self._levelling = None
        with self.tf_graph.as_default():
            for op in added:
                local.variables[op.name] = self._make_variable(op)
        self._link([op.name for op in added if op.name in self.outside])

    def _add_generators(self, graph: Graph) -> None:
        known = self._local.generators
        unsaved = {op.name for op in self.unsaved_generators}
        drawing = (each for op in graph.operators for each in ((op,) if self._local.is_shared(op) else op.draws))
        for op in drawing:
            if op.name in known or op.name in unsaved:
                continue
            if not draws_by_state(op):
                self.unsaved_generators.append(op)
                continue
            with self.tf_graph.as_default():
                known[op.name] = Generator(op)
            known[op.name].set(self.session, self._states.pop(op.name, None))

    # ------------------------------------------------------------------------------------------------ variables

    @property
    def variables(self) -> Mapping[str, Any]:
        """This device's pieces of the variables (``tf.Variable``), by name."""
        return MappingProxyType(self._local.variables)

    @property
    def outside(self) -> Set[str]:
        """The names of the variables that are stored as those of eager code, and nowhere else."""
        return self._is_outside

    def _link(self, names: Iterable[str]) -> None:
        """Makes the session find where variables of eager code are stored."""
        links = [self._local.variables[name].link for name in names]
        if links:
            self.session.run(links)

    @property
    def session(self) -> Any:
        """The ``tf.compat.v1.Session`` that runs the local graph."""
        return self._origin._session

    @property
    def initialized(self) -> frozenset[str]:
        """The names of the variables that have values."""
        with self.tf_graph.as_default():
            asked = {name: variable.is_initialized() for name, variable in self._local.variables.items()}
        return frozenset(name for name, there in self.session.run(asked).items() if there)

    def configure(self, config: Any) -> bool:
        """Makes a session of another config run the local graph from now on; variables keep their values.

        Args:
            config: ``tf.compat.v1.ConfigProto`` of the session.

        Returns:
            Whether the session was replaced; it is not if a program was built before.
        """
        if self._local.chains:
            return False
        states = self.states
        before, self._session = self.session, session_of(self.tf_graph, config)
        self._link(self.outside)
        for name, variable in self._local.variables.items():
            if name in self._initialized and name not in self.outside:
                self._set(name, before.run(variable))
        self.set_states(states)
        before.close()
        self._local.one_thread = has_one_thread(config)
        return True

    def layout_of(self, tensor: TensorId) -> Layout:
        """Returns the layout of an operator's output."""
        return self._local.layout_of(tensor)

    def set_variables(self, values: Callable[[str], np.ndarray], names: Sequence[str] | None = None) -> None:
        """Sets this device's pieces from whole values, one variable at a time.

        Args:
            values: gives the whole value of a variable.
            names: which variables; all of them by default.
        """
        for name in self._local.variables if names is None else names:
            whole = np.asarray(values(name))
            spec = self.graph[name].outputs[0]
            if whole.shape != spec.shape:
                raise SessionError(f"Variable '{name}': its value has shape {whole.shape}, it is {spec}.")
            piece = whole[self.layout_of(TensorId(name)).slices(spec.shape, self.plan.mesh, self.engine.rank)]
            # A copy: TensorFlow may take the array's own memory, and with a view of it the whole value would stay.
            self._set(name, piece.copy() if piece.size < whole.size else piece)

    def set_pieces(self, pieces: Mapping[str, np.ndarray]) -> None:
        """Sets this device's pieces of variables, by name."""
        for name, piece in pieces.items():
            self._set(name, piece)

    def _set(self, name: str, piece: np.ndarray) -> None:
        variable = self._local.variables[name]
        if isinstance(variable, OutsideVariable):
            variable.load(piece)
        else:
            feed, assign = self._assigns[name]
            self.session.run(assign, {feed: piece})
        self._initialized.add(name)

    @property
    def generators(self) -> Mapping[str, Generator]:
        """The states of random operators, by name; those of ``unsaved_generators`` are in TensorFlow's kernels."""
        return self._local.generators

    @property
    def states(self) -> dict[str, np.ndarray]:
        """The states of random operators, by name, with those that were set for operators that are not there yet."""
        made = self.session.run({name: each.variable for name, each in self._local.generators.items()})
        return {**self._states, **made}

    def set_states(self, states: Mapping[str, np.ndarray]) -> None:
        """Sets states of random operators; of one that is not there yet, when it is."""
        for name, state in states.items():
            if name in self._local.generators:
                self._local.generators[name].set(self.session, state)
            else:
                self._states[name] = state

    def stored(self) -> dict[str, tuple[np.ndarray, tuple[slice, ...]]]:
        """Returns this device's piece of each variable, and the part of the whole that the piece is.

        The pieces that several ranks store of one part are copies of one another.
        """
        result = {}
        for name, value in self.session.run(dict(sorted(self._local.variables.items()))).items():
            shape = self.graph[name].outputs[0].shape
            part = self.layout_of(TensorId(name)).slices(shape, self.plan.mesh, self.engine.rank)
            result[name] = (np.asarray(value), part)
        return result

    def _make_variable(self, op: Operator) -> Any:
        layout = self.plan.configuration(op.name).output_layouts(self._local.rules[op.name], 0).value
        shape = layout.local_shape(op.outputs[0].shape, self.plan.mesh)
        if self._outside is not None and layout.is_replicated and not self._is_replaced(op):
            self._is_outside.add(op.name)
            return OutsideVariable(self._outside(op.name), shape, op.outputs[0].dtype, op.name)
        feed = tf.compat.v1.placeholder(op.outputs[0].dtype, shape, name=f"{op.name}/initial")
        variable = tf.compat.v1.Variable(
            feed, use_resource=True, trainable=True, name=op.name, collections=["tensoropt_variables"]
        )
        self._assigns[op.name] = (feed, variable.initializer)
        return variable

    def _is_replaced(self, variable: Operator) -> bool:
        """Tells whether steps replace the whole value of a large variable."""
        return variable.outputs[0].size_bytes > REPLACED_BYTES and any(
            traits(op).replaces and op.inputs[0].op == variable.name for op in self.graph.operators
        )

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
                with working(f"building {label}"):
                    program = self._programs[key] = self._build(*key)
            with current_watch().stepping(label):
                values = self._call(program, [local[name] for name in program.feeds], options, run_metadata)
            if program.trains:
                self._origin._count_step()
        except Exception as error:
            # The other ranks may be inside of this program's collectives, where they would wait forever.
            self._meet(label, error, FAILURE_PATIENCE_S)
            raise
        return [None if isinstance(fetch, str) else value for fetch, value in zip(fetches, values, strict=True)]

    def _count_step(self) -> None:
        """After a training step, of this executor or one beside it; copies are made equal now and then."""
        self.trained += 1
        if self.trained % LEVEL_STEPS == 0 and self.engine.size > 1:
            self.level()

    def inputs_of(self, fetches: Sequence[Fetch], feeds: _Feeds) -> list[str]:
        """The names of the placeholders that fetches need where some tensors are fed."""
        return [op.name for op in self._inputs(tuple(fetches), self._cut(feeds))[1]]

    def level(self) -> None:
        """Makes the copies that ranks have of one another's pieces equal."""
        if self._levelling is None:
            with (
                working("building what levels copies"),
                self.tf_graph.as_default(),
                self.engine.program(),
                tf.name_scope("level"),
            ):
                before = len(self.engine.emitted(self.tf_graph))
                self._levelling = level(self._local)
                self._compare_collectives("levelling", before)
        with current_watch().stepping("levelling copies"):
            self.session.run(self._levelling)

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

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def has(self, fetch: Fetch) -> bool:
        """Tells whether a fetch belongs to the graph."""
        return names_of([fetch])[0] in self.graph

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
        if any(traits(op).is_gradient for op in needed):
            check_not_differentiated(self.graph, needed, sorted(cut))
        return needed

    # ------------------------------------------------------------------------------------------------- building

    def _build(
        self, fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...], fed: tuple[TensorId, ...]
    ) -> _Program:
        """Adds the program's ops to the local graph, in the same order on every rank."""
        needed, _ = self._inputs(fetches, self._cut([*(name for name, _ in modes), *fed]))
        number = len(self._local.chains)
        with self.tf_graph.as_default(), self.engine.program() as chain, tf.name_scope(f"program_{number}"):
            self._local.chains.append(chain)
            before = len(self.engine.emitted(self.tf_graph))
            built = len(self.tf_graph.get_operations())
            ordered, waits = in_order(needed, self.graph.after_gradients())  # the forward pass first
            builder = Builder(self._local, dict(modes), needed, fed, waits)
            for op in ordered:
                builder.add(op)
            builder.finish()
            values = tuple(builder.fetched(fetch) for fetch in fetches)
            targets = [getattr(value, "op", value) for value in values]
            if self._local.one_thread:
                keep_segments(targets, chain.names, built, builder.backward)
            prevent_merging(targets, built)
            keep_order(self.tf_graph, built)
        if waits and not self._origin._told_order:
            self._origin._told_order = True
            announce(order_line(needed, waits))
        emitted = self._compare_collectives(", ".join(map(str, fetches)), before)
        _log.debug("program %d for %s: %d collectives", number, list(map(str, fetches)), emitted)
        names = tuple(builder.feeds)
        trains = any(traits(op).is_gradient for op in needed) and any(traits(op).has_effect for op in needed)
        call = callable_of(self.session, values, [builder.feeds[name] for name in names])
        # Worked out only if steps are recorded.
        made_for = self.tf_graph, built, self.tf_graph.version, builder.ranges, chain.names
        owners = functools.cache(functools.partial(owners_of, *made_for))
        return _Program(call, names, trains, builder.made, owners)

    def _compare_collectives(self, what: str, before: int) -> int:
        """Every rank compares what it is about to run: a difference would pair up the wrong collectives."""
        emitted = self.engine.emitted(self.tf_graph)[before:]
        if self._agree is not None:
            self._agree(f"collectives of {what}", hashlib.sha256("\n".join(emitted).encode()).hexdigest())
        return len(emitted)


def _label(fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...], fed: tuple[TensorId, ...]) -> str:
    """Returns the unique name of a program in messages."""
    label = f"run [{', '.join(map(str, fetches))}]" + "".join(f", {tensor} fed whole" for tensor in fed)
    return label + "".join(f", {name} fed {'a share' if share else 'whole'}" for name, share in modes)
