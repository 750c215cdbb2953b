"""What one device keeps from run to run: its pieces of variables, its random generators and the session."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels  # no public name says what kernels there are

from tensoropt.errors import CollectiveError, PlanError, SessionError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.global_order import why_not_in_order
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.program.fetch import SET_BYTES
from tensoropt.exec.program.generators import Generator, is_drawn_by_kernel, set_states
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.local_session import has_one_thread, ordered, session_of
from tensoropt.exec.program.outside_variable import REPLACED_BYTES, OutsideVariable
from tensoropt.exec.program.replicas import LEVEL_STEPS, level
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import draws_by_state, generator_of, is_counted
from tensoropt.graph.registry import rule_of, traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.in_time import in_time
from tensoropt.plan.places import places_of
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.stages import working

__all__ = ["DeviceState"]


class DeviceState:
    """One device's variables, optimizer slots and random generators, and the session that runs programs on them.

    Attributes:
        session: the ``tf.compat.v1.Session`` that runs the local graph.
        config: its ``tf.compat.v1.ConfigProto``.
        unsaved_generators: the random operators whose states are in TensorFlow's kernels.
        fetched: values of variables, until the next run or change.
        trained: training steps, which say when copies are made equal.
        told_order: whether a line has said that what touches a variable in no order has one.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        engine: CollectiveEngine,
        *,
        agree: Callable[[str, str], None] | None = None,
        gather: Callable[[Any], Sequence[Any]] | None = None,
        config: Any = None,
        outside: Callable[[str], Any] | None = None,
    ) -> None:
        """Makes the local graph with the variables, which :meth:`set_variables` fills.

        Args:
            graph: the logical graph.
            plan: checked against it.
            engine: does the collectives.
            agree: called as ``agree(what, fingerprint)`` before a new program first runs; raises if ranks differ.
            gather: gives what each rank gives; called before a new program of a plan whose ranks differ first runs.
            config: ``tf.compat.v1.ConfigProto`` of the session.
            outside: gives the handle of a variable that eager code has, by name. One that this device stores whole is
                stored there, and nowhere else, unless it is on a graphics card, or large and a step replaces its value.
        """
        plan.check(graph)
        if engine.size != plan.mesh.size:
            raise PlanError(
                f"Plan: is for {plan.mesh.size} devices, this job has {engine.size}. "
                f"Run it with mpirun -n {plan.mesh.size}, or call find_strategy again."
            )
        uncache_products(graph, engine.size)
        self._agree = agree
        self._gather = gather
        tf_graph = tf.Graph()
        rules = rules_of(graph)
        steps = in_time(graph, rules, plan.micro_batches)
        places = places_of(graph, plan, steps)
        self._root = LocalGraph(graph, plan, engine, rules, tf_graph, has_one_thread(config), steps, places)
        self._outside, self._is_outside = outside, set[str]()
        self._assigns: dict[str, tuple[Any, Any]] = {}
        self._states: dict[str, np.ndarray] = {}  # of generators that are not there yet
        self._initialized: set[str] = set()
        self._levelling: Any = None
        self.config = ordered(config)
        self.session: Any = None
        self.unsaved_generators: list[Operator] = []
        self.fetched: dict[Any, Any] = {}
        self.trained = 0
        self.told_order = False
        with tf_graph.as_default():
            # The seeds of operators are attributes already; this one is for what only this device draws.
            tf.compat.v1.set_random_seed(0)
        self._make_variables(graph.variables())
        self.session = session_of(tf_graph, config)
        self._link(self.outside)
        self._add_generators(graph)

    def local_graph(self, graph: Graph, plan: Plan) -> LocalGraph:
        """The local graph for a logical graph, whose variables and generators are added if they are not there.

        Raises:
            PlanError: a plan for another graph, or one that stores variables in another way.
        """
        plan.check(graph)
        for op in graph.variables():
            if op.name in self.names and plan.configuration(op.name) != self._root.plan.configuration(op.name):
                raise PlanError(
                    f"{op}: is stored as {self._root.plan.configuration(op.name)}, and is to be shared by a program "
                    f"that wants {plan.configuration(op.name)}. Make the plan with tensoropt.plan.adapt.adapted."
                )
        self._add_variables([op for op in graph.variables() if op.name not in self.names], plan)
        self._add_generators(graph)
        return self._root.beside(graph, plan, rules_of(graph))

    def _add_variables(self, added: Sequence[Operator], plan: Plan) -> None:
        if not added:
            return
        root, graph = self._root, self._root.graph
        operators = {**root.plan.operators, **{op.name: plan.operators[op.name] for op in added}}
        # They go first: nothing of what is there reads them, and they read nothing.
        root.graph = replace(graph, operators=(*added, *graph.operators))
        root.plan = replace(root.plan, fingerprint=root.graph.fingerprint(), operators=operators)
        root.rules = {**root.rules, **{op.name: rule_of(op, ()) for op in added}}
        root.places = places_of(root.graph, root.plan, root.in_time)
        self._levelling = None
        self._make_variables(added)
        self._link(op.name for op in added if op.name in self.outside)

    def _add_generators(self, graph: Graph) -> None:
        known = self._root.generators
        unsaved = {op.name for op in self.unsaved_generators}
        drawing = [op for op in graph.operators if is_drawn_by_kernel(op) or draws_by_state(op) or is_counted(op)]
        drawing += [draw for op in graph.operators for draw in op.draws]
        added: dict[Generator, Any] = {}
        for op in drawing:
            name = generator_of(op)
            if name in known or name in unsaved:
                continue
            if not draws_by_state(op):
                self.unsaved_generators.append(op)
                continue
            with self.tf_graph.as_default():
                known[name] = Generator(op)
            added[known[name]] = self._states.pop(name, None)
        set_states(self.session, added)

    @property
    def own_graph(self) -> LocalGraph:
        """The local graph for the logical graph that this was made for, with the variables that were added."""
        return self._root

    @property
    def engine(self) -> CollectiveEngine:
        """The engine that does the collectives."""
        return self._root.engine

    @property
    def tf_graph(self) -> Any:
        """The graph that all programs are in."""
        return self._root.tf_graph

    @property
    def variables(self) -> Mapping[str, Any]:
        """This device's pieces of the variables (``tf.Variable``), by name; only of those that it has a piece of."""
        return MappingProxyType(self._root.variables)

    @property
    def names(self) -> Set[str]:
        """The names of all variables, in their order; other devices may have the only pieces of some."""
        return dict.fromkeys(op.name for op in self._root.graph.variables()).keys()

    @property
    def outside(self) -> Set[str]:
        """The names of the variables that are stored as those of eager code, and nowhere else."""
        return self._is_outside

    def _link(self, names: Iterable[str]) -> None:
        """Makes the session find where variables of eager code are stored."""
        links = [self.variables[name].link for name in names]
        if links:
            self.session.run(links)

    @property
    def initialized(self) -> Set[str]:
        """The names of the variables that have values."""
        with self.tf_graph.as_default():
            asked = {name: variable.is_initialized() for name, variable in self.variables.items()}
        elsewhere = self._initialized - self.variables.keys()
        return elsewhere.union(name for name, there in self.session.run(asked).items() if there)

    def configure(self, config: Any) -> bool:
        """Makes a session of another config run the local graph from now on; variables keep their values.

        Args:
            config: ``tf.compat.v1.ConfigProto`` of the session.

        Returns:
            Whether the session was replaced; it is not if a program was built before.
        """
        if self._root.chains:
            return False
        states = self.states
        self.config = ordered(config)
        before, self.session = self.session, session_of(self.tf_graph, config)
        self._link(self.outside)
        self._set(
            (name, before.run(variable))
            for name, variable in self.variables.items()
            if name in self._initialized and name not in self.outside
        )
        self.set_states(states)
        before.close()
        self._root.one_thread = has_one_thread(config)
        return True

    def set_variables(self, values: Callable[[str], np.ndarray], names: Sequence[str] | None = None) -> None:
        """Sets this device's pieces from whole values, of which there is one at a time.

        Args:
            values: gives the whole value of a variable.
            names: which variables; all of them by default.
        """

        def pieces() -> Iterator[tuple[str, np.ndarray]]:
            for name in self.names if names is None else names:
                whole = np.asarray(values(name))
                spec = self._root.graph[name].outputs[0]
                if whole.shape != spec.shape:
                    raise SessionError(f"Variable '{name}': its value has shape {whole.shape}, it is {spec}.")
                self._initialized.add(name)
                if name in self.variables:
                    piece = whole[self._part(name)]
                    # A copy: TensorFlow may take the array's own memory, and with a view the whole value would stay.
                    yield name, piece.copy() if piece.size < whole.size else piece

        self._set(pieces())

    def set_pieces(self, pieces: Mapping[str, np.ndarray]) -> None:
        """Sets this device's pieces of variables, by name."""
        self._initialized.update(pieces)
        self._set((name, piece) for name, piece in pieces.items() if name in self.variables)

    def _set(self, pieces: Iterable[tuple[str, np.ndarray]]) -> None:
        """Stores pieces, several in one run: TensorFlow prepares each run of other operations anew."""
        self.fetched = {}
        together: dict[str, np.ndarray] = {}
        size = 0
        for name, piece in pieces:
            variable = self.variables[name]
            if isinstance(variable, OutsideVariable):
                variable.load(piece)
                continue
            together[name] = piece
            size += piece.nbytes
            if size > SET_BYTES:
                self._assign(together)
                together, size = {}, 0
        if together:
            self._assign(together)

    def _assign(self, pieces: Mapping[str, np.ndarray]) -> None:
        feeds = {self._assigns[name][0]: piece for name, piece in pieces.items()}
        self.session.run([self._assigns[name][1] for name in pieces], feeds)

    @property
    def generators(self) -> Mapping[str, Generator]:
        """The states of random operators, by name; those of ``unsaved_generators`` are in TensorFlow's kernels."""
        return self._root.generators

    @property
    def states(self) -> dict[str, np.ndarray]:
        """The states of random operators, by name, with those that were set for operators that are not there yet."""
        made = self.session.run({name: each.variable for name, each in self._root.generators.items()})
        return {**self._states, **made}

    def begin_states(self) -> None:
        """Sets the states of random operators to their beginnings."""
        self._states.clear()
        set_states(self.session, dict.fromkeys(self._root.generators.values()))

    def set_states(self, states: Mapping[str, np.ndarray]) -> None:
        """Sets states of random operators; of one that is not there yet, when it is."""
        known = self._root.generators
        set_states(self.session, {known[name]: state for name, state in states.items() if name in known})
        self._states.update((name, state) for name, state in states.items() if name not in known)

    def stored(self) -> dict[str, tuple[np.ndarray, tuple[slice, ...]]]:
        """Returns this device's piece of each variable, and the part of the whole that the piece is.

        The pieces that several ranks store of one part are copies of one another.
        """
        values = self.session.run(dict(sorted(self.variables.items())))
        return {name: (np.asarray(value), self._part(name)) for name, value in values.items()}

    def _make_variable(self, op: Operator) -> Any:
        layout = self._root.plan.configuration(op.name).output_layouts(self._root.rules[op.name], 0).value
        shape = layout.local_shape(op.outputs[0].shape, self._root.plan.mesh)
        if self._outside is not None and layout.is_replicated and not self._is_replaced(op):
            handle = self._outside(op.name)
            if "CPU" in handle.device:  # a handle that is a value is the host's, whose ops reach no card's storage
                self._is_outside.add(op.name)
                return OutsideVariable(handle, shape, op.outputs[0].dtype, op.name)
        feed = tf.compat.v1.placeholder(op.outputs[0].dtype, shape, name=f"{op.name}/initial")
        variable = tf.compat.v1.Variable(
            feed, use_resource=True, trainable=True, name=op.name, collections=["tensoropt_variables"]
        )
        self._assigns[op.name] = (feed, variable.initializer)
        return variable

    def _is_replaced(self, variable: Operator) -> bool:
        """Tells whether steps replace the whole value of a large variable."""
        return variable.outputs[0].size_bytes > REPLACED_BYTES and any(
            traits(op).replaces and op.inputs[0].op == variable.name for op in self._root.graph.operators
        )

    def _part(self, name: str) -> tuple[slice, ...]:
        """The part of a variable that this device's piece is."""
        root, shape = self._root, self._root.graph[name].outputs[0].shape
        return root.layout_of(TensorId(name)).slices(shape, root.plan.mesh, root.engine.rank)

    def _make_variables(self, operators: Iterable[Operator]) -> None:
        on_host = self._taken_on_the_host()
        with self.tf_graph.as_default():
            for op in operators:
                if self._root.holds(op.name):
                    with tf.device("/cpu:0" if op.name in on_host else None):
                        self._root.variables[op.name] = self._make_variable(op)

    def _taken_on_the_host(self) -> set[str]:
        """The variables that an op takes itself that has no kernel for graphics cards, and others that go with them.

        TensorFlow places a variable when it is made, and later an op where all variables are that it takes.
        """
        found: set[str] = set()
        if not tf.config.list_physical_devices("GPU"):
            return found
        graph = self._root.graph
        taken = [
            (
                _is_of_the_host(op.type, graph.spec(op.inputs[op.handles[0]]).dtype),
                {op.inputs[place].op for place in op.handles},
            )
            for op in graph.operators
            if op.handles
        ]
        while True:
            more = found.union(*(names for is_of_host, names in taken if is_of_host or names & found))
            if more == found:
                return found
            found = more

    def count_step(self) -> None:
        """Counts a training step; copies are made equal now and then."""
        self.trained += 1
        if self.trained % LEVEL_STEPS == 0 and self.engine.size > 1:
            self.level()

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
                self._levelling = level(self._root)
                self.compare_collectives("levelling", before)
        with current_watch().stepping("levelling copies"):
            self.session.run(self._levelling)

    def compare_collectives(self, what: str, before: int) -> int:
        """Every rank compares what it is about to run: a difference would pair up the wrong collectives."""
        emitted = self.engine.emitted(self.tf_graph)[before:]
        if self._root.places is not None:
            members = self.engine.members(self.tf_graph)[before:]
            if self._gather is not None:
                wrong = why_not_in_order(self._gather(list(zip(emitted, members, strict=True))))
                if wrong is not None:
                    raise CollectiveError(f"The collectives of {what} are in no order that all ranks can keep. {wrong}")
        elif self._agree is not None:
            self._agree(f"collectives of {what}", hashlib.sha256("\n".join(emitted).encode()).hexdigest())
        return len(emitted)

    def close(self) -> None:
        """Ends the session."""
        self.session.close()


@functools.cache
def _is_of_the_host(op_type: str, dtype: str) -> bool:
    """Tells whether an op has kernels for variables of a dtype on CPUs, and none on graphics cards."""
    found = kernels.get_registered_kernels_for_op(op_type).kernel
    devices = {kernel.device_type for kernel in found if _is_for(kernel, dtype)}
    return "CPU" in devices and devices.isdisjoint(("GPU", "DEFAULT"))


def _is_for(kernel: Any, dtype: str) -> bool:
    """Tells whether a kernel (``KernelDef``) is for variables of a dtype."""
    limits = [limit.allowed_values.list.type for limit in kernel.constraint if limit.name in ("T", "dtype")]
    return all(tf.as_dtype(dtype).as_datatype_enum in types for types in limits)
