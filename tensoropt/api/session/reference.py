"""The reference: the same model in one process with plain TensorFlow, for initial values and expected results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.effects import WITH_DEFAULT, only_reads, varies
from tensoropt.api.frontend.functions import called_graphs
from tensoropt.api.frontend.initializers import initializers, variables_of
from tensoropt.api.frontend.input_pipelines import pipelines_of
from tensoropt.api.frontend.meta_graphs import clear_devices, exported
from tensoropt.api.frontend.walks import needs, reached
from tensoropt.api.mirror.model import GradientCall, GradientOutput, Model
from tensoropt.api.session.difference import Expected, largest, tolerance_of
from tensoropt.api.session.seeds import Seeds, with_seeds_in_meta_graph
from tensoropt.errors import SessionError
from tensoropt.exec.program.fetch import SET_BYTES, groups_read_together
from tensoropt.graph.registry import declaration, has_rule, traits

__all__ = ["InitialValues", "Observed", "Reference", "whole_gradients"]


def _copy(graph: Any, seeds: Seeds, calls: Sequence[GradientCall] = ()) -> Any:
    """A copy of a ``tf.Graph`` with seeds and without devices, whose variables are in its collections.

    What is made of gradients then comes after them, and instead of them reads what may be fed in the place of each.
    """
    meta = with_seeds_in_meta_graph(exported(graph), seeds)
    inside = frozenset().union(*(call.inside for call in calls))
    # A variable that its own gradient does not depend on may otherwise be updated before the loss reads it.
    waits = {name: (name, *call.losses) for call in calls for name in _gradient_tensors(call.outputs)}
    clear_devices(meta.graph_def)
    for node in meta.graph_def.node:
        for position, name in enumerate(node.input):
            tensor = name if ":" in name or name.startswith("^") else f"{name}:0"
            if node.name not in inside and tensor in waits:
                node.input[position] = _fed_for(tensor)
                node.input.extend(f"^{each.split(':')[0]}" for each in waits[tensor])
    for name in waits:
        node = meta.graph_def.node.add(name=_fed_for(name), op=WITH_DEFAULT)
        node.input.append(name.removesuffix(":0"))
        tensor = graph.get_tensor_by_name(name)
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    copy = tf.Graph()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    return copy


def _part(graph: Any, seeds: Seeds, tensors: Iterable[Any]) -> Any:
    """A copy of what tensors are computed by, with seeds and without devices.

    A session takes time by how large its graph is whenever it runs something else.
    """
    names = {op.name for tensor in tensors for op in _operations(tensor)}
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    part.node.extend(node for node in whole.node if node.name in names)
    meta = with_seeds_in_meta_graph(tf.compat.v1.MetaGraphDef(graph_def=part), seeds)
    clear_devices(meta.graph_def)
    for node in meta.graph_def.node:
        node.attr.pop("_class", None)  # it names operations that may not be here
    copy = tf.Graph()
    with copy.as_default():
        tf.graph_util.import_graph_def(meta.graph_def, name="")
    return copy


def _fed_for(name: str) -> str:
    """The placeholder in the place of a gradient's tensor."""
    return f"followed/{name.replace(':', '_')}"


def _gradient_tensors(outputs: Iterable[GradientOutput]) -> list[str]:
    return [name for output in outputs for name in (output.values, output.indices) if name is not None]


class InitialValues:
    """Whole initial values of variables, by the initializers of the logical graph.

    Each rank works out the whole of one variable at a time and keeps its piece, so values do not depend on the
    layout and no message is needed; the price is one whole variable of memory at a time.

    As in TensorFlow, initializing once draws each random number once, for all variables that are made of it, and
    initializing again draws the next ones.
    """

    def __init__(self, graph: Any, seeds: Seeds) -> None:
        values = {name: initializer.inputs[1] for name, initializer in initializers(graph).items()}
        self._graph = _part(graph, seeds, values.values())
        self._initial = {name: self._graph.get_tensor_by_name(tensor.name) for name, tensor in values.items()}
        self._session = tf.compat.v1.Session(graph=self._graph)
        self._together: dict[str, list[str]] = {}  # variables that start from the same random numbers
        self._beside: dict[str, list[str]] = {}
        self._values: dict[str, np.ndarray] = {}
        self._feeds: dict[str, Any] = {}
        self.begin(self._initial)

    def has(self, name: str) -> bool:
        """Tells whether a variable existed when these initial values were made."""
        return name in self._initial

    def waits_for_feeds(self, name: str) -> bool:
        """Tells whether the initial value of a variable is computed from feeds of the script."""
        return any(traits(op).must_be_fed for op in _operations(self._initial[name]))

    def begin(self, names: Collection[str], feeds: Mapping[str, Any] | None = None) -> None:
        """Begins to initialize variables, each of which is asked for once; all of them, until it is said.

        Args:
            names: of the variables.
            feeds: what is fed to the initializers, by the tensor's name.
        """
        self._values.clear()
        known = {op.name for op in self._graph.get_operations()} if feeds else set()
        self._feeds = {name: value for name, value in (feeds or {}).items() if name.split(":")[0] in known}
        self._together = {name: [name] for name in names}
        drawing: dict[str, str] = {}  # a variable that draws it, by operation
        stateful: set[str] = set()  # variables that have other states than a generator's own
        for name in names:
            varying = [op for op in _operations(self._initial[name]) if varies(op)]
            if any(map(_has_other_state, varying)):
                stateful.add(name)
            for op in sorted(op.name for op in varying):
                one, other = self._together[name], self._together[drawing.setdefault(op, name)]
                if one is not other:
                    other += one
                    self._together |= dict.fromkeys(one, other)
        self._beside = self._in_groups(stateful)

    def _in_groups(self, stateful: set[str]) -> dict[str, list[str]]:
        """The variables whose initial values are computed in one run, for each variable.

        Args:
            stateful: variables whose values are computed alone, in the same order on all ranks.
        """
        first = {name: together[0] for name, together in self._together.items()}

        def bytes_of(name: str) -> int:
            values = [self._initial[each] for each in self._together[name]]
            return sum((value.shape.num_elements() or SET_BYTES) * int(value.dtype.size) for value in values)

        alone = {first[name] for name in stateful}
        groups = [*groups_read_together({*first.values()} - alone, bytes_of, SET_BYTES), *([name] for name in alone)]
        beside = {one: [each for one in group for each in self._together[one]] for group in groups for one in group}
        return {name: beside[one] for name, one in first.items()}

    def __call__(self, name: str) -> np.ndarray:
        """The whole initial value of a variable.

        Raises:
            SessionError: if it cannot be computed alone.
        """
        if name in self._values:
            return self._values.pop(name)
        together, alone = self._beside.get(name, [name]), self._together.get(name, [name])
        try:
            values = self._session.run([self._initial[each] for each in together], self._feeds)
        except tf.errors.OpError as error:
            if together != alone:  # it may be another one's error
                self._beside[name] = alone
                return self(name)
            raise SessionError(
                f"Variable '{name}': its initial value cannot be computed: {error.message}. "
                "An initial value may not depend on other variables, and on a placeholder only if that is fed to the "
                "variable's initializer."
            ) from error
        self._values |= {each: np.asarray(value) for each, value in zip(together, values, strict=True)}
        return self._values.pop(name)

    def close(self) -> None:
        """Ends the session and frees the copy."""
        self._session.close()


def _operations(tensor: Any) -> Iterable[Any]:
    """The operations that a tensor is computed by."""
    return reached([tensor.op], needs)


def _has_other_state(op: Any) -> bool:
    """Tells whether an operation has a state that is neither a variable's nor that of a generator of its own."""
    inside = [each for function in called_graphs(op) for each in function.get_operations()]
    if inside:  # such as a moving average's, which begins as the variable, or as that one will begin
        return any(map(varies, inside))
    return not (has_rule(op.type) and declaration(op.type).shared)


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

    def __init__(self, model: Model, seeds: Seeds, values: Mapping[str, np.ndarray] | None = None) -> None:
        """Copies the model; ``values`` are those that variables from outside of its graph begin with."""
        self._graph = _copy(model.graph, seeds, model.gradient_calls)
        self._elements = {place: tensor.name for place, tensor in pipelines_of(model.graph).elements.items()}
        self._assigned: dict[str, dict[str, Any]] = {}
        with self._graph.as_default():
            own = variables_of(self._graph)
            self._reads = {name: variable.read_value() for name, variable in own.items()}
            given = {name: self._graph.get_tensor_by_name(f"{name}:0") for name in values or ()}
            self._reads |= {
                name: tf.raw_ops.ReadVariableOp(resource=handle, dtype=handle.op.get_attr("dtype"))
                for name, handle in given.items()
            }
            # TensorFlow's rewriting fuses what is fetched, such as the sigmoid of a swish, and then does not find it;
            # and it needs what is behind a sum that is fed.
            config = tf.compat.v1.ConfigProto()
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            self._session = tf.compat.v1.Session(graph=self._graph, config=config)
            self._session.run([variable.initializer for variable in own.values()])
            for name, handle in given.items():
                fed = tf.compat.v1.placeholder(handle.op.get_attr("dtype"))
                assign = tf.raw_ops.AssignVariableOp(resource=handle, value=fed)
                self._session.run(assign, {fed: (values or {})[name]})

    def run(self, fetches: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Runs tensors (``name:0``) and operations of the logical graph by name; None for an operation."""
        values = self._session.run([self._graph.as_graph_element(name) for name in fetches], self._named(feeds))
        return list(values)

    def run_step(
        self, step: str, loss: str, outputs: Sequence[GradientOutput], feeds: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """One training step: the loss and the gradients that it used, in the shapes of what they belong to."""
        shapes = {output.name: self._shape(output) for output in outputs}
        loss_value, values, _ = self._session.run([loss, _gradient_tensors(outputs), step], self._named(feeds))
        return np.asarray(loss_value), whole_gradients(outputs, values, shapes)

    def run_operators(self, tensors: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Observed]:
        """Values of tensors, with what they are computed from."""
        sources = [_sources(self._graph.get_tensor_by_name(name).op) for name in tensors]
        values, inputs = self._session.run([list(tensors), sources], self._named(feeds))
        return [Observed(*found) for found in zip(tensors, values, sources, inputs, strict=True)]

    def noise(self, observed: Observed) -> float:
        """Returns the largest change of a value if the values that it is computed from change by their rounding."""
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
        losses: Sequence[str],
        outputs: Sequence[GradientOutput],
        feeds: Mapping[str, np.ndarray],
        gradients: Sequence[np.ndarray],
    ) -> tuple[list[Expected], list[np.ndarray], dict[str, float]]:
        """One training step whose update is by the gradients of another run, which it follows so.

        Rounding would otherwise lead the two runs apart: Adam's first steps are as long for a gradient that is nothing
        but rounding as for any other.

        Args:
            step: the operation that applies gradients.
            losses: names of the losses' tensors.
            outputs: the gradients that it needs.
            feeds: arrays by placeholder.
            gradients: the other run's: a value, and where there are any indices, for each of ``outputs``.

        Returns:
            The losses, the tensors of gradients that the step has itself, and by variable that the step assigns to
            before, the largest of the numbers that the assigned value is made of: a mean of numbers that cancel is all
            rounding.
        """
        if step not in self._assigned:
            self._assigned[step] = self._made_of(step, outputs)
        sources = [_sources(self._graph.get_tensor_by_name(loss).op) for loss in losses]
        names = _gradient_tensors(outputs)
        followed = {f"{_fed_for(name)}:0": value for name, value in zip(names, gradients, strict=True)}
        values, inputs, own, made_of, _ = self._session.run(
            [list(losses), sources, names, self._assigned[step], step], {**self._named(feeds), **followed}
        )
        seen = [Observed(*found) for found in zip(losses, values, sources, inputs, strict=True)]
        return [Expected.of(one.value, self.noise(one)) for one in seen], own, made_of

    def stored(self) -> dict[str, np.ndarray]:
        """The values of the variables."""
        return self._session.run(self._reads)

    def variable(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return np.asarray(self._session.run(self._reads[name]))

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _named(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Feeds by the names of tensors: elements of pipelines are fed in their own place."""
        return {self._elements.get(name, f"{name}:0"): value for name, value in feeds.items()}

    def _shape(self, output: GradientOutput) -> tuple[int, ...]:
        if ":" in output.source:
            return tuple(self._graph.get_tensor_by_name(output.source).shape.as_list())
        return tuple(self._reads[output.source].shape.as_list())

    def _made_of(self, step: str, outputs: Sequence[GradientOutput]) -> dict[str, Any]:
        """For each variable that is assigned before gradients are used, the largest of the numbers that its new value
        is made of."""
        late = reached(
            (self._graph.get_operation_by_name(_fed_for(name)) for name in _gradient_tensors(outputs)),
            lambda op: (*(consumer for tensor in op.outputs for consumer in tensor.consumers()), *op._control_outputs),
        )
        pending = [self._graph.get_operation_by_name(step)]
        seen = set(pending)
        found: dict[str, list[Any]] = {}
        for op in pending:
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - seen
            seen |= before
            pending += sorted(before, key=lambda other: other.name)
            if op in late:
                continue
            takes = op.inputs[0].op if op.inputs and op.inputs[0].dtype == tf.resource else None
            if takes is not None and takes.name in self._reads and not only_reads(op):
                values = [tensor for tensor in op.inputs if tensor.dtype.is_floating]
                made_of = _summed(values, self._reads[takes.name].shape.num_elements())
                found.setdefault(takes.name, []).extend(each for each in made_of if each.dtype.is_floating)
        with self._graph.as_default():
            largest_of = {
                name: [tf.reduce_max(tf.abs(tf.cast(tensor, tf.float64))) for tensor in tensors]
                for name, tensors in found.items()
            }
            return {name: tf.reduce_max(tensors) for name, tensors in largest_of.items() if tensors}


def whole_gradients(
    outputs: Sequence[GradientOutput], values: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
) -> list[np.ndarray]:
    """Gradients in the shapes of what they belong to, rows added up.

    Args:
        outputs: which gradients these are.
        values: of each, the value, and the indices if it is given as rows.
        shapes: by the name of a gradient's operator.
    """
    remaining = iter(values)
    found = []
    for output in outputs:
        value = np.asarray(next(remaining))
        if output.indices is not None:
            rows, value = value, np.zeros(shapes[output.name], value.dtype)
            np.add.at(value, np.asarray(next(remaining)), rows)
        found.append(value)
    return found


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
    """Tells whether running an operation again with the same inputs changes nothing."""
    plain = all(tensor.dtype.is_numpy_compatible for tensor in op.inputs)
    return plain and not op.op_def.is_stateful and not op.control_inputs
