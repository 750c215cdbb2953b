"""The same model in one process with plain TensorFlow: what initial values are, and what numbers must be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.effects import only_reads, varies
from tensoropt.api.mirror.model import Model, TrainStep
from tensoropt.api.session.difference import Expected, largest, tolerance_of
from tensoropt.api.session.seeds import Seeds, with_seeds_in_meta_graph
from tensoropt.errors import SessionError
from tensoropt.exec.program.building import share_slots
from tensoropt.exec.program.stored import Stored, stored_variables

__all__ = ["InitialValues", "Observed", "Reference"]


def _copy(graph: Any, seeds: Seeds) -> Any:
    """A copy of a ``tf.Graph`` with seeds, whose variables are in its collections."""
    with graph.as_default():  # TensorFlow exports no graph of a thread that is in eager mode
        meta = with_seeds_in_meta_graph(tf.compat.v1.train.export_meta_graph(graph=graph), seeds)
    copy = tf.Graph()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    return copy


class InitialValues:
    """Whole initial values of variables, by the initializers of the logical graph.

    Each rank works out the whole of one variable at a time and keeps its piece, so values do not depend on the
    layout and no message is needed; the price is one whole variable of memory at a time.

    As in TensorFlow, initializing once draws each random number once, for all variables that are made of it, and
    initializing again draws the next ones.
    """

    def __init__(self, graph: Any, seeds: Seeds) -> None:
        self._graph = _copy(graph, seeds)
        with self._graph.as_default():
            self._variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        self._session = tf.compat.v1.Session(graph=self._graph)
        self._together: dict[str, list[str]] = {}
        self._values: dict[str, np.ndarray] = {}
        self.begin(self._variables)

    def begin(self, names: Collection[str]) -> None:
        """Begins to initialize variables, each of which is asked for once; all of them, until it is said.

        Raises:
            SessionError: one is not in TensorFlow's collection of global variables.
        """
        self._values.clear()
        self._together = {name: [name] for name in names}
        drawing: dict[str, str] = {}  # a variable that draws it, by operation
        for name in names:
            for op in sorted(_stateful_ops(self._initial(name))):
                one, other = self._together[name], self._together[drawing.setdefault(op, name)]
                if one is not other:
                    other += one
                    self._together |= dict.fromkeys(one, other)

    def __call__(self, name: str) -> np.ndarray:
        """The whole initial value of a variable.

        Raises:
            SessionError: if it is not in TensorFlow's collection of global variables, or cannot be computed alone.
        """
        if name in self._values:
            return self._values.pop(name)
        # Variables that start from the same random numbers (a variable and its moving average) come together.
        together = self._together.get(name, [name])
        try:
            values = self._session.run([self._initial(each) for each in together])
        except tf.errors.OpError as error:
            raise SessionError(
                f"Variable '{name}': its initial value cannot be computed: {error.message}. "
                "An initial value may not depend on feeds or on other variables."
            ) from error
        self._values |= {each: np.asarray(value) for each, value in zip(together, values, strict=True)}
        return self._values.pop(name)

    def _initial(self, name: str) -> Any:
        if name not in self._variables:
            raise SessionError(
                f"Variable '{name}': is not in the collection GLOBAL_VARIABLES, so its initializer is unknown. "
                "Make it with tensoropt.get_variable."
            )
        return self._variables[name].initializer.inputs[1]

    def close(self) -> None:
        """Ends the session and frees the copy."""
        self._session.close()


def _stateful_ops(tensor: Any) -> set[str]:
    """Names of the operations that a tensor is computed by and that give something else each time, or may."""
    found: set[str] = set()
    pending, seen = [tensor.op], {tensor.op.name}
    while pending:
        op = pending.pop()
        if varies(op):
            found.add(op.name)
        for other in (*(value.op for value in op.inputs), *op.control_inputs):
            if other.name not in seen:
                seen.add(other.name)
                pending.append(other)
    return found


@dataclass(frozen=True, slots=True)
class Observed:
    """A value, and what it is computed from.

    Attributes:
        name: The tensor's.
        value: The value.
        sources: Tensors that it follows from alone; none where computing it again would do something, such as draw.
        inputs: Their values.
    """

    name: str
    value: Any
    sources: Sequence[Any]
    inputs: Sequence[Any]


class Reference:
    """The model trained by TensorFlow alone, with the same seeds: the numbers that every plan must give."""

    def __init__(self, model: Model, seeds: Seeds, graph: Any = None) -> None:
        """Copies the model and adds TensorFlow's own gradients and updates.

        Args:
            model: the model.
            seeds: of its random operators.
            graph: the ``tf.Graph`` to copy, if not the model's own (open shapes filled in).
        """
        self._graph = _copy(model.graph if graph is None else graph, seeds)
        self._gradients: dict[tuple[str, str], Any] = {}
        self._updates: dict[str, Any] = {}
        self._steps = {step.op: step for step in model.train_steps}
        self._pairs: dict[str, list[tuple[Any, Any]]] = {}
        self._waits: dict[str, list[Any]] = {}
        self._followed: dict[str, tuple[list[Any], Any]] = {}
        self._assigned: dict[str, dict[Stored, Any]] = {}
        with self._graph.as_default():
            self._variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
            self._reads = {name: variable.read_value() for name, variable in self._variables.items()}
            self._optimizers: dict[int, Any] = {}
            for step in model.train_steps:
                self._add(step)
            # TensorFlow's remapper fuses what is fetched, such as the sigmoid of a swish, and then does not find it.
            config = tf.compat.v1.ConfigProto()
            config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
            self._session = tf.compat.v1.Session(graph=self._graph, config=config)
            self._session.run([v.initializer for v in tf.compat.v1.global_variables()])

    def run(self, fetches: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Runs tensors (``name:0``) and operations of the logical graph by name; None for an operation."""
        values = self._session.run(
            [self._updates.get(name) or self._graph.as_graph_element(name) for name in fetches], _named(feeds)
        )
        return list(values)

    def run_step(
        self, step: str, loss: str, variables: Sequence[str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """One training step: the loss and the gradients that it used."""
        gradients = [self._gradients[step, name] for name in variables]
        loss_value, values, _ = self._session.run(
            [self._graph.get_tensor_by_name(loss), gradients, self._updates[step]], _named(feeds)
        )
        return np.asarray(loss_value), values

    def run_operators(self, tensors: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Observed]:
        """Values of tensors, with what they are computed from."""
        sources = [_sources(self._graph.get_tensor_by_name(name).op) for name in tensors]
        values, inputs = self._session.run([list(tensors), sources], _named(feeds))
        return [Observed(*found) for found in zip(tensors, values, sources, inputs, strict=True)]

    def noise(self, observed: Observed) -> float:
        """By how much a value moves, at most, if what it is computed from moves by its rounding."""
        random = np.random.default_rng(0)
        moved = {}
        for tensor, value in zip(observed.sources, observed.inputs, strict=True):
            by = tolerance_of([tensor.dtype.name]).noise
            moved[tensor] = value
            if by:
                shift = by * random.choice([-1.0, 1.0], np.shape(value))
                moved[tensor] = (value * (1.0 + shift)).astype(tensor.dtype.as_numpy_dtype)
        if not moved:
            return 0.0
        other = self._session.run(observed.name, moved)
        with np.errstate(invalid="ignore"):
            return largest(np.subtract(observed.value, other, dtype=np.complex128))

    def follow_step(
        self,
        step: str,
        loss: str,
        variables: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        gradients: Sequence[np.ndarray],
    ) -> tuple[Expected, list[np.ndarray], dict[Stored, float]]:
        """One training step whose update is by the gradients of another run, which it follows so.

        Rounding would otherwise lead the two runs apart: Adam's first steps are as long for a gradient that is nothing
        but rounding as for any other.

        Args:
            step: the step.
            loss: the loss tensor's name.
            variables: the trained variables.
            feeds: arrays by placeholder.
            gradients: whole ones, by which the variables are updated.

        Returns:
            The loss, the gradients that the step has itself, and by variable that the step assigns to the largest of
            the numbers that the assigned value is made of: a mean of numbers that cancel is all rounding.
        """
        if step not in self._followed:
            self._followed[step] = self._follow(self._steps[step])
            self._assigned[step] = self._made_of(self._waits[step])
        fed, update = self._followed[step]
        sources = _sources(self._graph.get_tensor_by_name(loss).op)
        value, inputs, own, made_of, _ = self._session.run(
            [loss, sources, [self._gradients[step, name] for name in variables], self._assigned[step], update],
            {**_named(feeds), **dict(zip(fed, gradients, strict=True))},
        )
        return Expected.of(value, self.noise(Observed(loss, value, sources, inputs))), own, made_of

    def stored(self) -> dict[Stored, np.ndarray]:
        """The values of the variables and of the optimizers' slots."""
        return self._session.run(stored_variables(self._variables, self._optimizers))

    def variable(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return np.asarray(self._session.run(self._reads[name]))

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _add(self, step: TrainStep) -> None:
        optimizer = self._optimizer(step)
        variables = [self._variables[name] for name in step.variables]
        loss = self._graph.get_tensor_by_name(step.loss)
        marker = self._graph.get_operation_by_name(step.op)
        # A variable that its own gradient does not depend on may otherwise be updated before the loss reads it.
        self._waits[step.op] = [*marker.control_inputs, loss]
        with tf.control_dependencies(list(marker.control_inputs)):
            pairs = self._pairs[step.op] = optimizer.compute_gradients(loss, variables)
        update = self._update(step, optimizer, pairs, ())
        for (gradient, _), name in zip(pairs, step.variables, strict=True):
            self._gradients[step.op, name] = tf.convert_to_tensor(gradient)
        # The marker does nothing by itself; what waits for it waits for the step.
        marker._add_control_input(update)
        self._updates[step.op] = marker

    def _optimizer(self, step: TrainStep) -> Any:
        """TensorFlow's optimizer of a step, with the slots of the first one that was made."""
        tensors = {key: self._graph.get_tensor_by_name(name) for key, name in step.optimizer.tensors.items()}
        optimizer = step.optimizer.build(tf, tensors)
        share_slots(self._optimizers.setdefault(step.optimizer_index, optimizer), optimizer)
        return optimizer

    def _update(self, step: TrainStep, optimizer: Any, pairs: Sequence[tuple[Any, Any]], after: Sequence[Any]) -> Any:
        global_step = None if step.global_step is None else self._variables[step.global_step]
        with tf.control_dependencies([*self._waits[step.op], *after]):
            return optimizer.apply_gradients(pairs, global_step=global_step)

    def _made_of(self, waits: Sequence[Any]) -> dict[Stored, Any]:
        """For each variable that is assigned before, the largest of the numbers that its new value is made of."""
        pending = [getattr(each, "op", each) for each in waits]
        seen = set(pending)
        found: dict[str, list[Any]] = {}
        for op in pending:
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - seen
            seen |= before
            pending += sorted(before, key=lambda other: other.name)
            takes = op.inputs[0].op if op.inputs and op.inputs[0].dtype == tf.resource else None
            if takes is not None and takes.name in self._variables and not only_reads(op):
                values = [tensor for tensor in op.inputs if tensor.dtype.is_floating]
                made_of = _summed(values, self._variables[takes.name].shape.num_elements())
                found.setdefault(takes.name, []).extend(each for each in made_of if each.dtype.is_floating)
        with self._graph.as_default():
            largest_of = {
                name: [tf.reduce_max(tf.abs(tf.cast(tensor, tf.float64))) for tensor in tensors]
                for name, tensors in found.items()
            }
            return {Stored(name): tf.reduce_max(tensors) for name, tensors in largest_of.items() if tensors}

    def _follow(self, step: TrainStep) -> tuple[list[Any], Any]:
        """Placeholders of whole gradients, and the step's update by what is fed to them."""
        fed, pairs = [], []
        with self._graph.as_default():
            for gradient, variable in self._pairs[step.op]:
                given = tf.compat.v1.placeholder(gradient.dtype, variable.shape)
                fed.append(given)
                if isinstance(gradient, tf.IndexedSlices):  # optimizers leave the rows alone that it has not
                    rows = tf.unique(gradient.indices)[0]
                    pairs.append((tf.IndexedSlices(tf.gather(given, rows), rows, gradient.dense_shape), variable))
                else:
                    pairs.append((given, variable))
            own = [self._gradients[step.op, name] for name in step.variables]
            update = self._update(step, self._optimizer(step), pairs, own)
            return fed, tf.group(update, *self._waits[step.op])


def _named(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}:0": value for name, value in feeds.items()}


def _sources(op: Any) -> list[Any]:
    """The tensors that an operator's outputs are computed from, back through single numbers to what these are sums of.

    With all of them fed, nothing runs but the operators between. None where that would do something, such as draw.
    """
    if not _is_pure(op):
        return []
    # What TensorFlow has relied upon while it built the graph (an axis) may not be fed, and is a constant.
    return [tensor for tensor in _summed(op.inputs, 1) if op.graph.is_feedable(tensor)]


def _summed(tensors: Iterable[Any], elements: int) -> list[Any]:
    """Tensors, but for those of up to so many elements what these are computed from."""
    found: dict[str, Any] = {}
    pending = list(tensors)
    seen = {tensor.name for tensor in pending}
    while pending:
        tensor = pending.pop()
        size = tensor.shape.num_elements()
        if size is not None and size <= elements and tensor.op.inputs and _is_pure(tensor.op):
            pending += [other for other in tensor.op.inputs if other.name not in seen]
            seen |= {other.name for other in tensor.op.inputs}
        else:
            found[tensor.name] = tensor
    return list(found.values())


def _is_pure(op: Any) -> bool:
    """Whether running an operator again with the same inputs changes nothing."""
    plain = all(tensor.dtype.is_numpy_compatible for tensor in op.inputs)
    return plain and not op.op_def.is_stateful and not op.control_inputs
