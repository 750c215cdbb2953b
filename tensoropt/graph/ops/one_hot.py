"""One-hot vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _one_hot(ctx: Lowering, indices: Any, on_value: Any, off_value: Any) -> Any:
    """A device that has a piece of the classes counts them from its first one; all others are off."""
    tf = ctx.tf
    if indices.dtype not in (tf.int32, tf.int64):  # unsigned ones cannot be shifted
        indices = tf.cast(indices, tf.int32)
    shifted = indices - tf.constant(ctx.offset("c"), indices.dtype) if ctx.pieces("c") > 1 else indices
    return tf.one_hot(shifted, ctx.local_size("c"), on_value, off_value, axis=ctx.op.attrs["axis"])


@register_op(
    "OneHot",
    lower=_one_hot,
    static={1: "depth"},
    samples=[
        Sample("OneHot", (integers(12, high=24), 24, floats(), floats())),
        Sample("OneHot", (integers(8, 6, low=-2, high=9, dtype="int64"), 8, floats(), floats()), {"axis": 1}),
        Sample("OneHot", (integers(4, 3, high=14, dtype="uint8"), 12, integers(high=9), integers()), {"axis": 0}),
    ],
    traits=Traits(indices={0: lambda op, inputs: int(op.static[1])}),
)
def one_hot(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Indices and classes (axis ``c``) are splittable."""
    names: list[str | None] = [f"d{i}" for i in range(inputs[0].rank)]
    result = list(names)
    result.insert(op.attrs["axis"] % (len(names) + 1), "c")
    return movement(
        inputs, op.outputs, (dimensions(names), (), ()), (dimensions(result),), sizes={"c": int(op.static[1])}
    )
