"""Builds one operator's local part: the implementation of :class:`tensoropt.graph.lowering.Lowering`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tensoropt.errors import OpError
from tensoropt.exec.program.bodies import add_functions, body_outputs
from tensoropt.exec.program.generators import Draws
from tensoropt.exec.program.gradient import late, with_gradient
from tensoropt.exec.program.summands import held_dtype, in_sum_dtype, widened_operator
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, is_declared, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorSpec, is_differentiable, sum_dtype
from tensoropt.layout import Layout, Mesh
from tensoropt.plan.configuration import Configuration

__all__ = ["Device", "OpLowering", "lower_operator"]


class Device(Protocol):
    """One device, to the operators on it."""

    @property
    def rank(self) -> int:
        """Its number in the mesh."""
        ...

    def all_reduce(self, x: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        """See :meth:`tensoropt.exec.engines.base.CollectiveEngine.all_reduce`."""
        ...

    def shift(self, x: Any, axes: Sequence[int], by: int) -> Any:
        """See :meth:`tensoropt.exec.engines.base.CollectiveEngine.shift`."""
        ...


class OpLowering:
    """One operator on one device under one configuration."""

    def __init__(
        self,
        op: Operator,
        rule: OpRule,
        input_specs: Sequence[TensorSpec],
        configuration: Configuration,
        mesh: Mesh,
        engine: Device,
        draws: Draws | None = None,
    ) -> None:
        self.tf = tf
        self.op = op
        self.rule = rule
        self.operation: Any = None  # TensorFlow's, which emit made last
        self.input_specs = input_specs
        self.placed_along: set[int] = set()  # the axes of the mesh along which its place was asked for
        self.is_first = engine.rank == 0
        self._configuration = configuration
        self._mesh = mesh
        self._engine = engine
        self._draws = draws or Draws()

    def widened(self) -> OpLowering:
        """The same operator on float32 wherever it is on 16-bit floats."""
        specs = [spec.widened for spec in self.input_specs]
        wide = OpLowering(widened_operator(self.op), self.rule, specs, self._configuration, self._mesh, self._engine)
        wide.placed_along = self.placed_along
        return wide

    def summed_outputs(self) -> tuple[int, ...]:
        """The outputs of which each device makes a part of a sum, in a wider dtype than theirs."""
        return tuple(index for index, spec in enumerate(self.op.outputs) if self.output_dtype(index) != spec.dtype)

    def summed_gradients(self) -> tuple[int, ...]:
        """The inputs of whose gradients each device makes a part of a sum, in a wider dtype than theirs.

        Rows of a gradient are no parts of a sum: they stay apart.
        """
        layouts = [self._configuration.input_layouts(self.rule, i).gradient for i in range(len(self.input_specs))]
        return tuple(
            index
            for index, (spec, layout) in enumerate(zip(self.input_specs, layouts, strict=True))
            if held_dtype(spec.dtype, layout) != spec.dtype and index != self.rule.sparse_input
        )

    def emit(
        self,
        inputs: Sequence[Any],
        *,
        static: Mapping[int, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """See :meth:`tensoropt.graph.lowering.Lowering.emit`."""
        if self.op.body is not None:
            outputs, operations = body_outputs(self.op, inputs, self._draws)
            # Who waits for it wants all of its effects, and what it reads to be read: TensorFlow leaves out branches
            # and loops that give nobody anything.
            self.operation = tf.group(*operations, *inputs)
            return outputs
        values = dict(self.op.static) | dict(static or {})
        unknown = sorted(set(values) - set(self.op.static))
        if unknown:
            raise OpError(f"{self.op}: its lowering sets static operands {unknown}, which it has not.")
        operands: list[Any] = []
        dynamic = iter(inputs)
        for position in range(len(inputs) + len(values)):
            if position in values:
                whole = np.asarray(self.op.static[position])
                operands.append(tf.constant(np.asarray(values[position], dtype=whole.dtype)))
            else:
                operands.append(next(dynamic))
        node_attrs = {key: value for key, value in self.op.node.items() if not key.startswith("_")}
        for key, value in (attrs or {}).items():
            node_attrs[key] = _like(node_attrs[key], value)
        add_functions(self.op.functions)

        def create(operands: Sequence[Any]) -> list[Any]:
            self.operation = tf.compat.v1.get_default_graph().create_op(
                self.op.type,
                operands,
                [tf.dtypes.as_dtype(spec.dtype) for spec in self.op.outputs],
                attrs=node_attrs,
                name=self.op.name,
            )
            return list(self.operation.outputs)

        return list(self._draws.by_kernel(self.op, operands, create))

    def input_shape(self, index: int) -> tuple[int, ...]:
        """Local shape of an input."""
        layout = self._configuration.input_layouts(self.rule, index).value
        return layout.local_shape(self.input_specs[index].shape, self._mesh)

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Local shape of an output."""
        return self._output_layout(index).local_shape(self.op.outputs[index].shape, self._mesh)

    def output_dtype(self, index: int = 0) -> str:
        """Dtype of a device's output: that of the operator's, unless it is a part of a sum."""
        return str(held_dtype(self.op.outputs[index].dtype, self._output_layout(index)).name)

    def pieces(self, axis: str) -> int:
        """Into how many pieces an iteration axis is split."""
        return self._mesh.extent(self._configuration.mesh_axes(axis))

    def local_size(self, axis: str) -> int:
        """Size of this device's piece of an iteration axis."""
        return self.rule.size(axis) // self.pieces(axis)

    def offset(self, axis: str) -> int:
        """Returns where this device's piece of an iteration axis starts."""
        return self._place(self._configuration.mesh_axes(axis)) * self.local_size(axis)

    def slice_output(self, tensor: Any, index: int = 0) -> Any:
        """This device's piece of a whole output."""
        layout = self._output_layout(index)
        if not any(layout.dims):
            return tensor
        size = layout.local_shape(self.op.outputs[index].shape, self._mesh)
        return tf.slice(
            tensor, [self._place(axes) * extent for axes, extent in zip(layout.dims, size, strict=True)], size
        )

    def _place(self, axes: Sequence[int]) -> int:
        """The number of this device's piece of what axes of the mesh split."""
        self.placed_along.update(axes)
        return self._mesh.group_index(self._engine.rank, axes)

    def next_state(self, step: int, counts: Any = None) -> Any:
        """See :meth:`tensoropt.graph.lowering.Lowering.next_state`."""
        return self._draws.next_state(self.op, step, counts)

    def all_reduce(self, tensor: Any, axes: str | Sequence[str], *, op: str = "sum", gradient: str | None) -> Any:
        """See :meth:`tensoropt.graph.lowering.Lowering.all_reduce`."""
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        group = tuple(sorted(axis for name in names for axis in self._configuration.mesh_axes(name)))
        if not group:
            return tensor

        def reduce(part: Any) -> Any:
            wide = in_sum_dtype(part) if op == "sum" else part
            return tf.cast(self._engine.all_reduce(wide, group, op=op), part.dtype)

        reduced = reduce(tensor)
        if gradient is None:
            return tf.stop_gradient(reduced)
        if op != "sum" or gradient not in ("partial", "complete"):
            raise OpError(f"{self.op}: all_reduce of {op!r} has no gradient {gradient!r}; give None.")

        def backward(incoming: Any) -> list[Any]:
            incoming = tf.convert_to_tensor(incoming)
            return [incoming if gradient == "complete" else reduce(incoming)]

        return with_gradient([tensor], [reduced], backward)[0]

    def shift(self, tensor: Any, axis: str, by: int) -> Any:
        """See :meth:`tensoropt.graph.lowering.Lowering.shift`."""
        moved = self._engine.shift(tensor, self._configuration.mesh_axes(axis), by)
        if not is_differentiable(tensor.dtype):
            return moved
        return with_gradient([tensor], [moved], lambda dy: [self.shift(tf.convert_to_tensor(dy), axis, -by)])[0]

    def late(self, tensor: Any, after: Any) -> Any:
        """See :meth:`tensoropt.graph.lowering.Lowering.late`."""
        return late(tensor, [after])

    def with_gradient(
        self, inputs: Sequence[Any], outputs: Sequence[Any], backward: Callable[..., Sequence[Any]]
    ) -> list[Any]:
        """See :meth:`tensoropt.graph.lowering.Lowering.with_gradient`."""

        def of_tensors(*incoming: Any) -> Sequence[Any]:
            return backward(*(None if dy is None else tf.convert_to_tensor(dy) for dy in incoming))

        return with_gradient(inputs, outputs, of_tensors)

    def _output_layout(self, index: int) -> Layout:
        return self._configuration.output_layouts(self.rule, index).value


def lower_operator(context: OpLowering, inputs: Sequence[Any]) -> list[Any]:
    """Builds the operator's local outputs, with their gradients, and checks their shapes against the configuration.

    Parts of sums of 16-bit floats, among outputs and gradients of inputs, are made by the op on float32, and so is all
    that an op makes of such parts (which a micro-batch may hand on). All else is computed in the dtypes of one process.

    Raises:
        OpError: if the lowering gives other shapes or dtypes than the rule.
    """
    given = zip(inputs, context.input_specs, strict=False)  # some ops are built before what they read, for no tensors
    if any(x.dtype.name == sum_dtype(spec.dtype) != spec.dtype for x, spec in given):
        wide_context = context.widened()
        outputs = _lowered(wide_context, [in_sum_dtype(x) for x in inputs])
        context.operation = wide_context.operation
        return [None if x is None else tf.cast(x, context.output_dtype(index)) for index, x in enumerate(outputs)]
    summed, summed_gradients = context.summed_outputs(), context.summed_gradients()
    if not summed and not summed_gradients:
        return _lowered(context, inputs)
    # Each its own: an input that is read twice would get the gradients of both readings from each.
    inputs = [tf.identity(tensor) for tensor in inputs]
    made = _lowered(context, inputs)
    outputs = list(made)
    if summed:
        # An op that computes nothing rounds nothing.
        wide = made if context.rule.is_movement else _lowered(context.widened(), [in_sum_dtype(x) for x in inputs])
        for index in summed:
            outputs[index] = in_sum_dtype(wide[index])
    present = [index for index, tensor in enumerate(outputs) if tensor is not None]

    def backward(*incoming: Any) -> list[Any]:
        given = {index: tf.convert_to_tensor(dy) for index, dy in zip(present, incoming, strict=True) if dy is not None}
        others = [i for i, x in enumerate(inputs) if is_differentiable(x.dtype) and i not in summed_gradients]
        parts = [(inputs, made, others)]
        if summed_gradients:
            # Made from what is kept anyway: inputs in float32 would take twice the memory of those.
            again = [in_sum_dtype(late(tensor, given.values())) for tensor in inputs]
            parts.append((again, _lowered(context.widened(), again), list(summed_gradients)))
        result: list[Any] = [None] * len(inputs)
        for xs, ys, wanted in parts:
            if not wanted:
                continue
            grad_ys = [tf.cast(dy, ys[index].dtype) for index, dy in given.items()]
            found = tf.gradients([ys[index] for index in given], [xs[i] for i in wanted], grad_ys, stop_gradients=xs)
            for position, gradient in zip(wanted, found, strict=True):
                result[position] = gradient
        return result

    results = iter(with_gradient(inputs, [outputs[index] for index in present], backward))
    return [None if tensor is None else next(results) for tensor in outputs]


def _lowered(context: OpLowering, inputs: Sequence[Any]) -> list[Any]:
    """Returns the outputs of the declaration's lowering, after checking their number."""
    op = context.op
    if traits(op).once and not context.is_first:
        context.operation = tf.no_op(op.name)  # so that every device has one
        return []
    if is_declared(op, context.input_specs):
        lower = declaration(op.type).lower
        if lower is None:
            raise OpError(f"{op}: is built by the device's program, not lowered by itself.")
        made = lower(context, *inputs)
        outputs = list(made) if isinstance(made, list | tuple) else [made]
    else:
        outputs = context.emit(inputs)
    if len(outputs) != len(op.outputs):
        raise OpError(f"{op}: its lowering made {len(outputs)} outputs, the operator has {len(op.outputs)}.")
    for index, (tensor, spec) in enumerate(zip(outputs, op.outputs, strict=True)):
        expected = context.output_shape(index)
        if tensor is None:  # an output that only TensorFlow's own gradient would read
            continue
        # A size of 0 stands for one that only a run knows, and a single one for such a rank. Of what is computed
        # from constants, TensorFlow may know the size all the same.
        sizes = None if tuple(expected) == (0,) else [extent or None for extent in expected]
        if not tensor.shape.is_compatible_with(sizes) or tensor.dtype.name != spec.dtype:
            raise OpError(
                f"{op}: output {index} is {tensor.dtype.name}{tensor.shape} on a device, its rule says "
                f"{spec.dtype}{list(expected)}. The rule or the lowering of {op.type} is wrong."
            )
        tensor.set_shape(sizes)
    return outputs


def _like(template: Any, value: Any) -> Any:
    """``value`` as an AttrValue of the same kind as ``template``."""
    result = type(template)()
    kind = template.WhichOneof("value")
    if kind == "i":
        result.i = int(value)
    elif kind == "list":
        result.list.SetInParent()  # it may be empty
        result.list.i.extend(int(item) for item in value)
    elif kind == "shape":
        for extent in value:
            result.shape.dim.add(size=int(extent))
    elif kind == "b":
        result.b = bool(value)
    elif kind == "s":
        result.s = str(value).encode()
    elif kind == "f":
        result.f = float(value)
    else:
        raise OpError(f"An attribute of kind {kind!r} cannot be made local; lower the op in another way.")
    return result
