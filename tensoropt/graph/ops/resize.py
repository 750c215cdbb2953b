"""Images brought to another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

# Arithmetic operations per element of the result: the neighbours' weighted sum.
_FLOPS = {"ResizeNearestNeighbor": 0.0, "ResizeBilinear": 8.0, "ResizeBicubic": 40.0, "ResizeArea": 8.0}


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "ResizeNearestNeighbor",
    lower=_same,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[Sample("ResizeNearestNeighbor", (floats(6, 4, 4, 8), [8, 6]), {"half_pixel_centers": True})],
)
@register_op(
    "ResizeBilinear",
    lower=_same,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[
        Sample("ResizeBilinear", (floats(6, 4, 4, 8), [8, 6]), {"half_pixel_centers": True}),
        Sample("ResizeBilinear", (floats(12, 6, 4, 3), [3, 3]), {"align_corners": True}),
    ],
)
@register_op(
    "ResizeBicubic",
    lower=_same,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[Sample("ResizeBicubic", (floats(4, 4, 5, 12), [6, 8]), {"half_pixel_centers": True})],
)
@register_op(
    "ResizeArea",
    lower=_same,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[Sample("ResizeArea", (floats(2, 4, 3, 6), [2, 3]))],
)
def resize(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and channels are splittable, rows and columns are not."""
    dims = passed(4, whole={1, 2})
    flops = _FLOPS[op.type] * op.outputs[0].elements
    # TensorFlow's gradient takes the images for their size, but for the nearest pixels'; of areas there is none.
    saved = () if op.type in ("ResizeArea", "ResizeNearestNeighbor") else (0,)
    return movement(inputs, op.outputs, (dims,), (dims,), flops=flops, backward_flops=flops, saved_inputs=saved)
