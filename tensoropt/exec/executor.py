"""One device's part of a plan: its variables, its local graph and the programs that a job runs on it."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tensoropt.errors import FeedError, PlanError, SessionError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.base import Program as Chain
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, Guard
from tensoropt.exec.gradient import with_gradient
from tensoropt.exec.lowering import OpLowering, lower_operator
from tensoropt.exec.ordering import Backward, after_readers
from tensoropt.exec.resharding import reshard, reshard_edge
from tensoropt.exec.reuse import Reuse
from tensoropt.exec.segments import keep_segments
from tensoropt.exec.training import Training
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, has_rule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, canonical_path
from tensoropt.plan.configuration import TensorLayouts
from tensoropt.plan.plan import Plan, rules_of

__all__ = ["Executor", "Fetch", "GradientOf", "share_slots"]

_log = logging.getLogger("tensoropt")
_INPUTS = ("Placeholder", "PlaceholderWithDefault")
_READS = ("Variable", "ReadVariableOp")
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


@dataclass(frozen=True, slots=True)
class GradientOf:
    """The whole gradient that a training step uses for a variable."""

    training: str
    variable: str


# What a user fetches: the whole value of a tensor, an operation run for its effect, or a gradient.
Fetch = TensorId | str | GradientOf
# What makes a program: the fetches, and per placeholder that is fed whether it is a share of the batch.
_Key = tuple[tuple[Fetch, ...], tuple[tuple[str, bool], ...]]


@dataclass(frozen=True, slots=True)
class _Program:
    """The local tensors of one set of fetches; everything that differs from run to run is a feed."""

    call: Callable[..., Sequence[Any]]  # takes the feeds in order, gives one value per fetch (None for an operation)
    feeds: tuple[str, ...]  # names of the logical placeholders


@dataclass(frozen=True, slots=True)
class _Feeding:
    """What may be fed to a placeholder on this device, beside the whole array."""

    dtype: Any  # NumPy's
    share: tuple[int, ...] | None  # shape of a share of the batch, where the batch can be shared
    slices: tuple[slice, ...]  # this device's piece of the whole


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
        self.graph = graph
        self.plan = plan
        self.engine = engine
        self._rules = rules_of(graph)
        self._trainings = {training.op: training for training in trainings}
        self._agree = agree
        self._guard = guard
        self._labels: dict[_Key, str] = {}
        self._feedings: dict[str, _Feeding] = {}
        self._programs: dict[_Key, _Program] = {}
        self._needs: dict[tuple[Fetch, ...], tuple[tuple[Operator, ...], tuple[Operator, ...]]] = {}
        self._shared: dict[str, list[Any]] = {}
        self._chains: list[Chain] = []  # the collectives of each program that was built, or of which a part was
        self._optimizers: dict[int, Any] = {}
        self.tf_graph = tf.Graph()
        with self.tf_graph.as_default():
            # The seeds of operators are attributes already; this one is for what only this device draws.
            tf.compat.v1.set_random_seed(0)
            self._variables = {op.name: self._make_variable(op) for op in graph.of_type("Variable")}
        self._session = tf.compat.v1.Session(graph=self.tf_graph, config=config)
        given = 0 if config is None else config.inter_op_parallelism_threads
        # Nothing else runs during a collective then, so there is no harm in waiting for it.
        self._one_thread = (given or os.environ.get("TF_NUM_INTEROP_THREADS")) in (1, "1")
        self._initialized: set[str] = set()

    # ------------------------------------------------------------------------------------------------ variables

    @property
    def variables(self) -> Mapping[str, Any]:
        """This device's pieces of the variables (``tf.Variable``), by name."""
        return dict(self._variables)

    @property
    def session(self) -> Any:
        """The ``tf.compat.v1.Session`` that runs the local graph."""
        return self._session

    def layout_of(self, tensor: TensorId) -> Layout:
        """How an operator's output lies on the mesh."""
        return self._given(tensor).value

    def set_variables(self, values: Callable[[str], np.ndarray], names: Sequence[str] | None = None) -> None:
        """Sets this device's pieces from whole values, one variable at a time.

        Args:
            values: gives the whole value of a variable.
            names: which variables; all of them by default.
        """
        for name in self._variables if names is None else names:
            variable, feed, assign = self._variables[name], *self._assigns[name]
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
        self._initialized &= {variable.name for variable in self._variables.values()}
        self._initialize_rest()

    def _make_variable(self, op: Operator) -> Any:
        layout = self.plan.configuration(op.name).output_layouts(self._rules[op.name], 0).value
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
        """
        try:
            key, local = self._prepare(tuple(fetches), feeds or {})
        except Exception as error:
            self._meet("run", error)
            raise
        label = self._labels.get(key)
        if label is None:
            label = self._labels[key] = _label(*key)
        self._meet(label)
        try:
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self._build(*key)
            values = program.call(*(local[name] for name in program.feeds))
        except Exception as error:
            # The other ranks may be inside of this program's collectives, where they would wait forever.
            self._meet(label, error, FAILURE_PATIENCE_S)
            raise
        return [None if isinstance(fetch, str) else value for fetch, value in zip(fetches, values, strict=True)]

    def _meet(self, what: str, error: Exception | None = None, patience_s: float | None = None) -> None:
        if self._guard is not None:
            self._guard.meet(what, error, patience_s=patience_s)

    def _prepare(self, fetches: tuple[Fetch, ...], given: Mapping[str, Any]) -> tuple[_Key, dict[str, np.ndarray]]:
        """Which program to run, and what is fed to it: all that needs no other rank."""
        _, inputs = self._inputs(fetches)
        for name in given:
            if name not in self.graph or self.graph[name].type not in _INPUTS:
                raise FeedError(f"Feed '{name}': is not a placeholder of the graph that was planned.")
        modes: dict[str, bool] = {}
        local: dict[str, np.ndarray] = {}
        for op in inputs:
            if op.name in given:
                modes[op.name] = self._is_share(op, given[op.name])
                local[op.name] = self._piece(op, given[op.name], modes[op.name])
            elif op.type == "Placeholder":
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
            self._needs[fetches] = needed, tuple(op for op in needed if op.type in _INPUTS)
        return self._needs[fetches]

    def _needed(self, fetches: Sequence[Fetch]) -> tuple[Operator, ...]:
        """The operators that the fetches need, with what the training steps among them need."""
        names: list[str] = []
        for fetch in fetches:
            name = fetch.training if isinstance(fetch, GradientOf) else fetch if isinstance(fetch, str) else fetch.op
            if name not in self._trainings and name not in self.graph:
                raise SessionError(
                    f"Fetch '{fetch}': is not in the graph that was planned. Make it before find_strategy; "
                    "ops with unknown shapes, strings or sessions of their own cannot be planned."
                )
            names.append(name)
        needed: tuple[Operator, ...] = ()
        done: set[str] = set()
        while True:
            reached = [name for name in (*names, *(op.name for op in needed)) if name in self._trainings]
            fresh = [name for name in dict.fromkeys(reached) if name not in done]
            if needed and not fresh:
                return needed
            for name in fresh:
                done.add(name)
                training = self._trainings[name]
                names += [training.loss, *(tensor.op for tensor in training.parameters.values()), *training.after]
                names += training.variables
                names += [] if training.global_step is None else [training.global_step]
            needed = self.graph.needed_for(name for name in names if name in self.graph)

    # -------------------------------------------------------------------------------------------------- feeding

    def _feeding(self, op: Operator) -> _Feeding:
        """How a placeholder is fed; worked out once."""
        known = self._feedings.get(op.name)
        if known is None:
            spec, mesh = op.outputs[0], self.plan.mesh
            share = self._share_layout(spec)
            known = self._feedings[op.name] = _Feeding(
                tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype,
                None if share is None else share.local_shape(spec.shape, mesh),
                self.layout_of(TensorId(op.name)).slices(spec.shape, mesh, self.engine.rank),
            )
        return known

    def _is_share(self, op: Operator, value: Any) -> bool:
        spec, feeding = op.outputs[0], self._feeding(op)
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise FeedError(f"{op}: wants an array of {spec}, got {type(value).__name__}: {error}.") from error
        if array.dtype != feeding.dtype and not _can_feed(array, feeding.dtype):
            got = f"{type(value).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
            raise FeedError(f"{op}: wants {spec.dtype}, got {got}. Cast it with .astype({spec.dtype!r}).")
        if array.shape == spec.shape:
            return False
        if array.shape == feeding.share:
            return True
        accepted = f"the whole batch {spec.shape}"
        if feeding.share is not None:
            accepted += f" or this rank's share {feeding.share}"
        raise FeedError(f"{op}: wants {accepted}, got shape {array.shape}. The plan is made for one batch size.")

    def _share_layout(self, spec: TensorSpec) -> Layout | None:
        if not spec.shape or self.plan.mesh.size == 1 or spec.shape[0] % self.plan.mesh.size:
            return None
        return Layout((self.plan.mesh.axes, *((),) * (spec.rank - 1)))

    def _piece(self, op: Operator, value: Any, share: bool) -> np.ndarray:
        feeding = self._feeding(op)
        array = np.asarray(value, dtype=feeding.dtype)
        return array if share else array[feeding.slices]

    # ------------------------------------------------------------------------------------------------- building

    def _build(self, fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...]) -> _Program:
        """Adds the program's ops to the local graph, in the same order on every rank."""
        needed, _ = self._inputs(fetches)
        number = len(self._programs)
        # A program that fetches gradients alone must not update variables.
        fetched = {fetch for fetch in fetches if isinstance(fetch, str)}
        builder = _Builder(self, dict(modes), fetched if any(isinstance(f, GradientOf) for f in fetches) else None)
        with self.tf_graph.as_default(), self.engine.program() as chain, tf.name_scope(f"program_{number}"):
            self._chains.append(chain)
            before = len(self.engine.emitted(self.tf_graph))
            built = len(self.tf_graph.get_operations())
            late = self._after_training(needed)
            for op in needed:
                if op.name not in late:
                    builder.add(op)
            for fetch in fetches:
                if isinstance(fetch, GradientOf) or fetch in self._trainings:
                    builder.operation(fetch.training if isinstance(fetch, GradientOf) else str(fetch))
            for op in needed:
                if op.name in late:
                    builder.add(op)
            values = tuple(builder.fetched(fetch) for fetch in fetches)
            if self._one_thread:
                targets = [getattr(value, "op", value) for value in values]
                keep_segments(targets, chain.names, built, builder.backward)
            emitted = self.engine.emitted(self.tf_graph)[before:]
        # Every rank compares what it is about to run: a difference would pair up the wrong collectives.
        if self._agree is not None:
            self._agree(
                f"collectives of {', '.join(map(str, fetches))}",
                hashlib.sha256("\n".join(emitted).encode()).hexdigest(),
            )
        _log.debug("program %d for %s: %d collectives", number, list(map(str, fetches)), len(emitted))
        # Slots are made while the update is built; they must have values before the first run.
        self._initialize_rest()
        names = tuple(builder.feeds)
        return _Program(_callable(self._session, values, [builder.feeds[name] for name in names]), names)

    def _after_training(self, needed: Sequence[Operator]) -> set[str]:
        """Operators that wait for a training step (a moving average of variables, say), and its marker itself."""
        late: set[str] = set()
        for op in needed:
            waits_for = (*op.control_inputs, *(tensor.op for tensor in op.inputs))
            if op.name in self._trainings or any(name in late or name in self._trainings for name in waits_for):
                late.add(op.name)
        return late

    def _shared_outputs(self, op: Operator) -> list[Any]:
        """The outputs of a random operator that another program has built; one operator has one state.

        Raises:
            SessionError: if it waits for or reads what only that program has: its feeds, its collectives.
        """
        outputs = self._shared[op.name]
        collectives = set().union(*(chain.names for chain in self._chains))
        pending = [tensor.op for tensor in outputs if tensor is not None]
        seen = set(pending)
        while pending:
            local = pending.pop()
            if op.control_inputs or local.type == "Placeholder" or local.name in collectives:
                raise SessionError(
                    f"{op}: draws numbers that depend on other tensors, and keeps its state from run to run, so it can "
                    "be part of one set of fetches only. Fetch the same tensors in every run that needs it, or use "
                    "tensoropt.random.stateless_* with a seed that is fed."
                )
            before = {*(tensor.op for tensor in local.inputs), *local.control_inputs} - seen
            seen |= before
            pending += before
        return outputs

    def _given(self, tensor: TensorId) -> TensorLayouts:
        return self.plan.configuration(tensor.op).output_layouts(self._rules[tensor.op], tensor.index)

    def _wanted(self, edge: Edge) -> TensorLayouts:
        return self.plan.configuration(edge.consumer).input_layouts(self._rules[edge.consumer], edge.position)


class _Builder:
    """Lowers operators one by one into the default graph."""

    def __init__(self, executor: Executor, modes: Mapping[str, bool], updating: Container[str] | None) -> None:
        self._executor = executor
        self._modes = modes
        # The training steps that are certain to run; None for all that are built.
        self._updating = updating
        self._values: dict[TensorId, Any] = {}
        self._reuse = Reuse(executor.graph, executor._rules, executor.plan, executor.engine, self._values)
        self._operations: dict[str, Any] = {}
        self._added: set[str] = set()
        self._gradients: dict[tuple[str, str], Any] = {}
        self.feeds: dict[str, Any] = {}
        # How many ops the graph had before the first backward pass; all of them come before none.
        self.backward = sys.maxsize

    def add(self, op: Operator) -> None:
        """Builds one operator, unless it is there; those that it needs are."""
        if op.name in self._added:
            return
        self._added.add(op.name)
        with tf.control_dependencies([self.operation(name) for name in op.control_inputs]):
            outputs = self._outputs(op)
        for index, tensor in enumerate(outputs):
            self._values[TensorId(op.name, index)] = tensor

    def operation(self, name: str) -> Any:
        """The local operation for an operator that is run for its effect."""
        if name not in self._operations:
            if name in self._executor._trainings:
                self._operations[name] = self._train(self._executor._trainings[name])
            elif self._executor.graph[name].type == "NoOp":
                inner = self._executor.graph[name].control_inputs
                self._operations[name] = tf.group(*(self.operation(other) for other in inner))
            else:
                made = [value for key, value in self._values.items() if key.op == name and value is not None]
                self._operations[name] = tf.group(*made)
        return self._operations[name]

    def fetched(self, fetch: Fetch) -> Any:
        """What is given to ``Session.run`` for a fetch."""
        if isinstance(fetch, str):
            return self.operation(fetch)
        if isinstance(fetch, GradientOf):
            gradient = tf.convert_to_tensor(self._gradients[fetch.training, fetch.variable])
            layout = self._executor.layout_of(TensorId(fetch.variable))
            return self._whole(gradient, layout)
        return self._whole_tensor(fetch)

    def _whole(self, piece: Any, layout: Layout) -> Any:
        executor = self._executor
        path = canonical_path(layout, Layout.replicated(layout.rank))
        return reshard(tf.identity(piece), layout, path, executor.plan.mesh, executor.engine)

    def _whole_tensor(self, tensor: TensorId) -> Any:
        if self._values[tensor] is None:
            raise SessionError(f"Fetch '{tensor}': this output is only used by TensorFlow's own gradient.")
        return self._whole(self._values[tensor], self._executor.layout_of(tensor))

    def _train(self, training: Training) -> Any:
        """Gradients and update of a training step."""
        executor = self._executor
        # What waits for another training step is not there yet.
        needs = (training.loss, *(tensor.op for tensor in training.parameters.values()), *training.after)
        for op in executor.graph.needed_for(name for name in needs if name in executor.graph):
            self.add(op)
        others = [self.operation(name) for name in training.after]
        loss = self._values[TensorId(training.loss)]
        variables = [executor._variables[name] for name in training.variables]
        reads = [self._values[TensorId(name)] for name in training.variables]
        self._reuse.start_backward()
        built = len(executor.tf_graph.get_operations())
        self.backward = min(self.backward, built)
        # Gradients of a weight that is read many times are added up one after the other. Where TensorFlow's optimizer
        # makes one sum of them again, they are all held at once; `tensoropt.search.peak` counts them so.
        gradients = tf.gradients(loss, reads, aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE)
        pairs = []
        for name, gradient in zip(training.variables, gradients, strict=True):
            if gradient is None:
                raise SessionError(f"Variable '{name}': loss '{training.loss}' has no gradient with respect to it.")
            self._gradients[training.op, name] = gradient
        backward = Backward(gradients, built)
        backward.wait_for_gradients()
        late = after_readers(gradients, reads, loss)
        for gradient, variable in zip(late, variables, strict=True):
            pairs.append((_own_rows(gradient) if executor.engine.size > 1 else gradient, variable))
        parameters = {argument: self._values[tensor] for argument, tensor in training.parameters.items()}
        optimizer = training.make_optimizer(parameters)  # its hyperparameters may be of this step alone
        share_slots(executor._optimizers.setdefault(training.optimizer, optimizer), optimizer)
        step = None if training.global_step is None else executor._variables[training.global_step]
        # A variable that its own gradient does not depend on may otherwise be updated before the loss reads it, or
        # before what the step waits for.
        # A random operator that programs share has reads of its own.
        early = (key for key in self._values if executor.graph[key.op].type in _READS or key.op in executor._shared)
        read = [self._values[key] for key in early]
        with tf.control_dependencies([loss, *read, *others]):
            update = optimizer.apply_gradients(pairs, global_step=step)
        needed = [*(tensor.op for tensor in parameters.values()), *others]
        if self._updating is None or training.op in self._updating:
            backward.wait_for_updates(late, () if executor._one_thread else executor._chains[-1].names, needed)
        return tf.group(update, *others)

    def _outputs(self, op: Operator) -> list[Any]:
        executor = self._executor
        if op.type == "Variable":
            return [executor._variables[op.name].read_value()]
        if op.type in _INPUTS:
            return [self._input(op)]
        if op.type == "NoOp":
            self.operation(op.name)
            return []
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        inputs = [self._reuse.arrived(edge, self._arrive(edge)) for edge in edges]
        if op.type in ("Fanout", "Sink"):
            return [tf.identity(inputs[0])]
        if op.type == "ReadVariableOp":
            now = executor._variables[op.inputs[0].op].read_value()
            return with_gradient(inputs, [now], lambda gradient: [gradient])
        if op.type in _ASSIGNMENTS:
            variable = executor._variables[op.inputs[0].op]
            assign = {
                "AssignVariableOp": variable.assign,
                "AssignAddVariableOp": variable.assign_add,
                "AssignSubVariableOp": variable.assign_sub,
            }[op.type]
            with tf.control_dependencies([inputs[0]]):  # who reads the variable without waiting gets the old value
                self._operations[op.name] = assign(inputs[1], read_value=False)
            return []
        shared = has_rule(op.type) and declaration(op.type).shared
        if shared and op.name in executor._shared:
            return executor._shared_outputs(op)
        context = OpLowering(
            op,
            executor._rules[op.name],
            executor.graph.input_specs(op),
            executor.plan.configuration(op.name),
            executor.plan.mesh,
            executor.engine,
        )
        outputs = self._reuse.outputs(edges, inputs, lower_operator(context, inputs), context)
        if shared:
            executor._shared[op.name] = outputs
        return outputs

    def _input(self, op: Operator) -> Any:
        executor = self._executor
        spec = op.outputs[0]
        layout = executor.layout_of(TensorId(op.name))
        if op.name not in self._modes:
            raise FeedError(f"{op}: placeholders with a default must be fed when they run on several devices.")
        share = executor._share_layout(spec) if self._modes[op.name] else None
        fed = layout if share is None else share
        placeholder = tf.compat.v1.placeholder(spec.dtype, fed.local_shape(spec.shape, executor.plan.mesh), op.name)
        self.feeds[op.name] = placeholder
        return reshard(placeholder, fed, canonical_path(fed, layout), executor.plan.mesh, executor.engine)

    def _arrive(self, edge: Edge) -> Any:
        executor = self._executor
        given, wanted = executor._given(edge.tensor), executor._wanted(edge)
        steps = executor.plan.edge(edge)
        tensor = self._reuse.source(edge)
        if edge not in executor.graph.differentiable:
            return reshard(tensor, given.value, steps.forward, executor.plan.mesh, executor.engine)
        return reshard_edge(
            tensor,
            given.value,
            steps.forward,
            wanted.gradient,
            steps.backward,
            given.gradient,
            executor.plan.mesh,
            executor.engine,
        )


def _callable(session: Any, values: Sequence[Any], feeds: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A function of the feeds that gives a value per fetch, None for an operation.

    What ``Session.make_callable`` gives goes through ``Session.run``, whose Python takes twice as long as a small step.
    """
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable(list(values), list(feeds))
    fetched = [value for value in values if not isinstance(value, tf.Operation)]
    if not fetched and values:
        # TensorFlow says nothing if an operation never comes to run, since others wait for one another; that a value is
        # missing, it does.
        with values[0].graph.as_default(), tf.control_dependencies(values):
            fetched = [tf.timestamp(name="done")]
    options = config_pb2.CallableOptions(
        feed=[feed.name for feed in feeds],
        fetch=[tensor.name for tensor in fetched],
        target=[value.name for value in values if isinstance(value, tf.Operation)],
    )
    run = make(options)
    is_operation = [isinstance(value, tf.Operation) for value in values]

    def call(*arrays: np.ndarray) -> list[Any]:
        found = iter(run(*arrays))
        return [None if nothing else next(found) for nothing in is_operation]

    return call


def _label(fetches: tuple[Fetch, ...], modes: tuple[tuple[str, bool], ...]) -> str:
    """What a program is called in messages; another one for every other program."""
    label = f"run [{', '.join(map(str, fetches))}]"
    return label + "".join(f", {name} fed {'a share' if share else 'whole'}" for name, share in modes)


def _own_rows(gradient: Any) -> Any:
    """Rows without those that belong to other devices, which carry the index -1."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    own = tf.reshape(tf.where(gradient.indices >= 0), [-1])
    return tf.IndexedSlices(tf.gather(gradient.values, own), tf.gather(gradient.indices, own), gradient.dense_shape)


def share_slots(first: Any, second: Any) -> None:
    """Lets an optimizer that is made for another program or step use the slots of the first one."""
    second._slots = first._slots
    second._non_slot_dict = first._non_slot_dict


def _can_feed(array: np.ndarray, wanted: Any) -> bool:
    """Whether the numbers keep their meaning in the wanted dtype; floats may be rounded, but not to integers."""
    if np.can_cast(array.dtype, wanted, casting="same_kind"):
        return True
    if array.dtype.kind != "i" or np.dtype(wanted).kind != "u":
        return False
    return array.size == 0 or (array.min() >= 0 and array.max() <= np.iinfo(wanted).max)
