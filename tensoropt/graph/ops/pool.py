"""Pooling. Batch and channels are split; height and width of images only where neighbours exchange rims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.halo import window_halos
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.rims import is_cut, over_window, piece_number, unpadded
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, notation
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _max(ctx: Lowering, image: Any) -> list[Any]:
    if not is_cut(ctx):
        return ctx.emit([image])
    attrs = unpadded(ctx)
    return [over_window(ctx, lambda piece: ctx.emit([piece], attrs=attrs)[0], image, padding=image.dtype.min)]


def _average(ctx: Lowering, image: Any) -> list[Any]:
    """TensorFlow's average is of what is inside the image."""
    if not is_cut(ctx):
        return ctx.emit([image])
    attrs = unpadded(ctx)
    made = over_window(ctx, lambda piece: ctx.emit([piece], attrs=attrs)[0], image)
    for halo in ctx.rule.halos:
        count = halo.size_out // ctx.pieces(halo.axis)
        starts = (piece_number(ctx, halo) * count + np.arange(count)) * halo.stride - halo.padding
        inside = np.minimum(starts + halo.window, halo.size_in) - np.maximum(starts, 0)
        if halo.is_padded:
            shape = [count if dim == halo.dim else 1 for dim in range(len(made.shape))]
            made *= ctx.tf.constant((halo.window / inside).reshape(shape), made.dtype)
    return [made]


def _pool(
    op: Operator, inputs: Sequence[TensorSpec], window: Sequence[int], strides: Sequence[int], *, keeps: bool
) -> OpRule:
    """Batch and channels pass through, where the window does not reach over them."""
    channel = 1 if op.attrs["data_format"].startswith("NC") else len(window) - 1
    names = ["_"] * len(window)
    names[0], names[channel] = "n", "c"
    wide = [position for position, (size, step) in enumerate(zip(window, strides, strict=True)) if size * step > 1]
    for position in wide:
        names[position] = "_"
    text = " ".join(names)
    sizes, input_dims, output_dims = notation(f"{text} -> {text}", inputs, op.outputs)
    flops = float(op.outputs[0].elements * math.prod(window))
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=input_dims,
        outputs=output_dims,
        split=tuple(sizes),
        flops=flops,
        backward_flops=flops,
        saved_inputs=(0,) if keeps else (),
        saved_outputs=(0,) if keeps else (),
    ).with_halos(window_halos(inputs[0], op.outputs[0], window, op.attrs, strides))


_SAME = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
_FIRST = {"ksize": [1, 1, 2, 2], "strides": [1, 1, 1, 1], "padding": "VALID", "data_format": "NCHW"}
_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 2, 1, 1], "padding": "SAME"}


@register_op(
    "MaxPool",
    "MaxPool3D",
    lower=_max,
    samples=[
        Sample("MaxPool", (floats(4, 5, 4, 6),), _SAME),
        Sample("MaxPool", (floats(6, 4, 3, 4),), _FIRST),
        # A window over channels; integers, since TensorFlow has no gradient of it on CPUs.
        Sample(
            "MaxPool",
            (integers(4, 3, 3, 6),),
            {"ksize": [1, 1, 1, 2], "strides": [1, 1, 1, 2], "padding": "VALID"},
        ),
        Sample("MaxPool3D", (floats(2, 3, 4, 3, 6),), _3D),
    ],
    traits=Traits(in_place=False),
    unsplit={
        f"0:{place} -> {place}": "images are cut where neighbours exchange rims, and a window over channels has none"
        for place in (1, 2)
    },
)
def max_pool(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The gradient looks for the greatest values, so input and output are kept."""
    return _pool(op, inputs, op.attrs["ksize"], op.attrs["strides"], keeps=True)


@register_op(
    "MaxPoolV2",
    lower=_max,
    static={1: "window", 2: "strides"},
    samples=[
        Sample("MaxPoolV2", (floats(4, 5, 4, 6), [1, 2, 2, 1], [1, 2, 2, 1]), {"padding": "SAME"}),
    ],
    traits=Traits(in_place=False),
)
def max_pool_v2(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As :func:`max_pool`; window and strides are operands."""
    return _pool(op, inputs, [int(n) for n in op.static[1]], [int(n) for n in op.static[2]], keeps=True)


@register_op(
    "AvgPool",
    "AvgPool3D",
    lower=_average,
    samples=[
        Sample("AvgPool", (floats(4, 5, 4, 6),), _SAME),
        Sample("AvgPool", (floats(6, 4, 3, 4),), _FIRST),
        Sample("AvgPool3D", (floats(2, 3, 4, 3, 6),), _3D),
    ],
    traits=Traits(in_place=False),
)
def avg_pool(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The gradient needs shapes only, so nothing is kept."""
    return _pool(op, inputs, op.attrs["ksize"], op.attrs["strides"], keeps=False)


def _with_places(ctx: Lowering, x: Any) -> list[Any]:
    """The greatest values and their places, which count the elements of a whole image, or of all images."""
    made, places = ctx.emit([x])
    tf, dtype = ctx.tf, places.dtype
    if ctx.pieces("c") > 1:
        here = tf.constant(ctx.local_size("c"), dtype)
        whole = tf.constant(ctx.rule.size("c"), dtype)
        places = places // here * whole + places % here + tf.constant(ctx.offset("c"), dtype)
    if ctx.pieces("n") > 1 and ctx.op.attrs["include_batch_in_index"]:
        image = math.prod(ctx.input_shape(0)[1:]) * ctx.pieces("c")
        places += tf.constant(ctx.offset("n") * image, dtype)
    return [made, places]


_ARGMAX = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}


@register_op(
    "MaxPoolWithArgmax",
    lower=_with_places,
    samples=[
        Sample("MaxPoolWithArgmax", (floats(4, 4, 3, 6),), _ARGMAX),
        Sample("MaxPoolWithArgmax", (floats(4, 2, 4, 6),), {**_ARGMAX, "include_batch_in_index": True}),
    ],
    traits=Traits(in_place=False),
)
def max_pool_with_places(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As :func:`max_pool`; a device counts the places of its images and channels as those of the whole."""
    dims = dimensions(("n", None, None, "c"))
    flops = float(op.outputs[0].elements * math.prod(op.attrs["ksize"]))
    return movement(
        inputs,
        op.outputs,
        (dims,),
        (dims, dims),
        flops=flops,
        backward_flops=flops,
        saved_inputs=(0,),
        saved_outputs=(1,),
    )
