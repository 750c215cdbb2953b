"""Transposes, and blocks moved between space and depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "Transpose",
    lower=_same,
    static={1: "permutation"},
    samples=[
        Sample("Transpose", (floats(12, 8), [1, 0])),
        Sample("Transpose", (floats(6, 4, 8, 3), [0, 2, 1, 3])),
        Sample("Transpose", (integers(2, 6, 12), [2, 0, 1])),
    ],
    traits=Traits(moves=True, unfused=True),
)
def transpose(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Every dimension passes through; axis ``d<i>`` is dimension ``i`` of the input."""
    dims = passed(inputs[0].rank)
    return movement(inputs, op.outputs, (dims,), (tuple(dims[int(i)] for i in op.static[1]),))


@register_op(
    "SpaceToDepth",
    lower=_same,
    samples=[
        Sample("SpaceToDepth", (floats(6, 8, 24, 2),), {"block_size": 2}),
        Sample("SpaceToDepth", (floats(2, 4, 6, 3),), {"block_size": 2, "data_format": "NHWC"}),
    ],
    traits=Traits(moves=True, in_place=False),
)
@register_op(
    "DepthToSpace",
    lower=_same,
    samples=[Sample("DepthToSpace", (floats(6, 4, 12, 8),), {"block_size": 2})],
    traits=Traits(moves=True, in_place=False),
)
def blocks(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and rows and columns of blocks are splittable, depth is not."""
    if op.attrs["data_format"] != "NHWC":
        batch = passed(inputs[0].rank, whole=range(1, inputs[0].rank))
        return movement(inputs, op.outputs, (batch,), (batch,))
    fine = (("n",), ("h", "p"), ("w", "q"), ())
    coarse = (("n",), ("h",), ("w",), ())
    sizes = {"p": int(op.attrs["block_size"]), "q": int(op.attrs["block_size"])}
    dims = (fine, coarse) if op.type == "SpaceToDepth" else (coarse, fine)
    return movement(inputs, op.outputs, dims[:1], dims[1:], sizes=sizes)
