"""Tensors made from scalars or from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _fill(ctx: Lowering, value: Any) -> list[Any]:
    return ctx.emit([value], static={0: ctx.output_shape()})


@register_op(
    "Fill",
    lower=_fill,
    static={0: "shape"},
    samples=[Sample("Fill", ([12, 8], floats())), Sample("Fill", ([24], integers()))],
)
def fill(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device fills its piece."""
    return movement(inputs, op.outputs, ((),), (passed(op.outputs[0].rank),), backward_flops=op.outputs[0].elements)


@register_op(
    "Empty",
    lower=lambda ctx: ctx.emit([], static={0: ctx.output_shape()}),
    static={0: "shape"},
    samples=[Sample("Empty", ([12, 8],), {"dtype": "float32", "init": True})],
)
def empty(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device makes its piece: of zeros, or of numbers that nobody may read before they are replaced."""
    return movement(inputs, op.outputs, (), (passed(op.outputs[0].rank),))


def _piece(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs)[0])


@register_op(
    "Range",
    lower=_piece,
    static={0: "start", 1: "limit", 2: "step"},
    samples=[
        Sample("Range", (0, 24, 1)),
        Sample("Range", (np.float32(1.0), np.float32(-2.0), np.float32(-0.25))),
    ],
)
@register_op(
    "LinSpace",
    lower=_piece,
    static={2: "count"},
    samples=[Sample("LinSpace", (floats(), floats(), 12))],
)
def series(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device makes the whole series and keeps its piece, so that rounding is the same."""
    return movement(inputs, op.outputs, ((),) * len(inputs), (passed(1),))


def _of_shape(ctx: Lowering, *inputs: Any) -> list[Any]:
    """The operator's value, from the sizes of the whole input, which a device's piece does not tell."""
    made = []
    for index, spec in enumerate(ctx.op.outputs):
        shape = _input_shape(ctx.rule, index)
        value = {"Size": int(np.prod(shape, dtype=np.int64)), "Rank": len(shape)}.get(ctx.op.type, shape)
        made.append(ctx.tf.constant(np.asarray(value, spec.dtype)))
    return made


@register_op(
    "Shape",
    lower=_of_shape,
    samples=[Sample("Shape", (floats(12, 1, 8),)), Sample("Shape", (floats(24),), {"out_type": "int64"})],
    traits=Traits(gives_shape=True),
)
@register_op(
    "ShapeN",
    lower=_of_shape,
    samples=[Sample("ShapeN", ([floats(12, 6), floats(12, 4)],), {"out_type": "int32"})],
    traits=Traits(gives_shape=True),
)
@register_op(
    "VariableShape",
    lower=_of_shape,
    samples=[Sample("VariableShape", (floats(24, 6),), {"out_type": "int32"})],
    traits=Traits(gives_shape=True),
)
@register_op("Size", lower=_of_shape, samples=[Sample("Size", (floats(12, 4),))], traits=Traits(gives_shape=True))
@register_op("Rank", lower=_of_shape, samples=[Sample("Rank", (floats(6, 8),))], traits=Traits(gives_shape=True))
def of_shape(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Constants: every device knows the whole shape, however the input is split."""
    dims = tuple(tuple((f"x{number}_{i}",) for i in range(spec.rank)) for number, spec in enumerate(inputs))
    axes = [dim[0] for tensor in dims for dim in tensor]
    return movement(inputs, op.outputs, dims, tuple(((),) * spec.rank for spec in op.outputs), internal=axes)


def _input_shape(rule: OpRule, index: int) -> tuple[int, ...]:
    return tuple(rule.size(dim[0]) for dim in rule.inputs[index])
