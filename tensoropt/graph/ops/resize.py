"""Images brought to another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.halo import Halo
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.rims import EDGE, first_read, over_window, own_part
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

# Arithmetic operations per element of the result: the neighbours' weighted sum.
_FLOPS = {"ResizeNearestNeighbor": 0.0, "ResizeBilinear": 8.0, "ResizeBicubic": 40.0, "ResizeArea": 8.0}


def _resize(ctx: Lowering, image: Any) -> list[Any]:
    cut = [halo if ctx.pieces(halo.axis) > 1 else None for halo in ctx.rule.halos]

    def window(piece: Any) -> Any:
        size = list(ctx.output_shape()[1:3])
        for halo in filter(None, cut):
            size[halo.dim - 1] = piece.shape[halo.dim] * halo.up // halo.stride
        starts = [None if halo is None else first_read(ctx, halo) * halo.up // halo.stride for halo in cut]
        return own_part(ctx, ctx.emit([piece], static={1: size})[0], starts)

    return [over_window(ctx, window, image, padding=EDGE)]


def _halos(op: Operator, image: TensorSpec) -> tuple[Halo, ...]:
    """Height and width that become a whole number of times as large or small; not where corners are aligned."""
    result = []
    if op.attrs["align_corners"] or op.type not in ("ResizeNearestNeighbor", "ResizeBilinear"):
        return ()
    centred, linear = op.attrs["half_pixel_centers"], op.type == "ResizeBilinear"
    for dim, name in ((1, "height"), (2, "width")):
        size_in, size_out = image.shape[dim], op.outputs[0].shape[dim]
        if size_out % size_in == 0:
            up = size_out // size_in
            if not linear and not centred and up & (up - 1):
                continue  # TensorFlow rounds the places of pixels, which depends on where a piece is
            # Between two pixels, from the one before on; the first one's place is half of the way back if centred.
            back = up // 2 if linear and centred else 0
            window = 2 * up if linear else up
            result.append(Halo(name, dim, size_in, size_out, window, 1, up - 1 + back, up=up))
        elif size_in % size_out == 0:
            down = size_in // size_out
            result.append(Halo(name, dim, size_in, size_out, down, down, 0))
    return tuple(result)


@register_op(
    "ResizeNearestNeighbor",
    lower=_resize,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[
        Sample("ResizeNearestNeighbor", (floats(6, 4, 4, 8), [8, 6]), {"half_pixel_centers": True}),
        Sample("ResizeNearestNeighbor", (floats(1, 4, 8, 2), [12, 4]), {"half_pixel_centers": True}),
        Sample("ResizeNearestNeighbor", (floats(1, 4, 6, 2), [8, 2])),
    ],
)
@register_op(
    "ResizeBilinear",
    lower=_resize,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[
        Sample("ResizeBilinear", (floats(6, 4, 4, 8), [8, 6]), {"half_pixel_centers": True}),
        Sample("ResizeBilinear", (floats(12, 6, 4, 3), [3, 3]), {"align_corners": True}),
        Sample("ResizeBilinear", (floats(1, 4, 8, 2), [12, 4]), {"half_pixel_centers": True}),
        Sample("ResizeBilinear", (floats(1, 6, 4, 2), [2, 8])),
    ],
)
@register_op(
    "ResizeBicubic",
    lower=_resize,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[Sample("ResizeBicubic", (floats(4, 4, 5, 12), [6, 8]), {"half_pixel_centers": True})],
)
@register_op(
    "ResizeArea",
    lower=_resize,
    static={1: "size"},
    traits=Traits(in_place=False),
    samples=[Sample("ResizeArea", (floats(2, 4, 3, 6), [2, 3]))],
)
def resize(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and channels are splittable, rows and columns where neighbours exchange rims."""
    dims = passed(4, whole={1, 2})
    flops = _FLOPS[op.type] * op.outputs[0].elements
    # TensorFlow's gradient takes the images for their size, but for the nearest pixels'; of areas there is none.
    saved = () if op.type in ("ResizeArea", "ResizeNearestNeighbor") else (0,)
    rule = movement(inputs, op.outputs, (dims,), (dims,), flops=flops, backward_flops=flops, saved_inputs=saved)
    return rule.with_halos(_halos(op, inputs[0]))
