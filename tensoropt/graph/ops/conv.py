"""Convolutions. Batch, groups and channels are split; height and width of images where neighbours exchange rims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensoropt.graph.halo import Halo, padding_of, window_halos
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.rims import is_cut, over_window, own_part, piece_number, unpadded
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, contraction
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits, Work


def _convolve(ctx: Lowering, image: Any, filters: Any) -> list[Any]:
    dilated = "block" in ctx.op.attrs
    if not is_cut(ctx):
        return _dilated(ctx, image, filters) if dilated else _by_groups(ctx, image, filters)

    def window(piece: Any, filters: Any) -> Any:
        if dilated:
            return _dilated(ctx, piece, filters, padded=True)[0]
        return _by_groups(ctx, piece, filters, unpadded(ctx))[0]

    return [over_window(ctx, window, image, filters)]


def _dilated(ctx: Lowering, image: Any, filters: Any, *, padded: bool = False) -> list[Any]:
    """A dilated one (see api/frontend/dilation.py), made as TensorFlow makes it in one process."""
    tf, attrs = ctx.tf, ctx.op.attrs
    paddings, crops = attrs["block_paddings"], attrs["block_crops"]
    if padded:
        space = image.shape.as_list()[1:-1]
        paddings = crops = [[0, -size % block] for size, block in zip(space, attrs["block"], strict=True)]
    moved = tf.space_to_batch(image, attrs["block"], paddings)
    if len(attrs["block"]) < len(filters.shape) - 2:  # lines are images of one row
        made = tf.squeeze(ctx.emit([tf.expand_dims(moved, 1), filters])[0], 1)
    else:
        (made,) = _by_groups(ctx, moved, filters)
    return [tf.batch_to_space(made, attrs["block"], crops)]


def _by_groups(ctx: Lowering, image: Any, filters: Any, attrs: Mapping[str, Any] | None = None) -> list[Any]:
    """Each group by itself, since TensorFlow's gradients of grouped convolutions fail on CPUs for many shapes."""
    axis = 1 if ctx.op.attrs["data_format"].startswith("NC") else len(image.shape) - 1
    groups = image.shape[axis] // filters.shape[-2]
    if groups == 1:
        return _emitted(ctx, image, filters, attrs)
    images, kernels = ctx.tf.split(image, groups, axis), ctx.tf.split(filters, groups, -1)
    made = [_emitted(ctx, x, w, attrs)[0] for x, w in zip(images, kernels, strict=True)]
    return [ctx.tf.concat(made, axis)]


def _emitted(ctx: Lowering, image: Any, filters: Any, attrs: Mapping[str, Any] | None) -> list[Any]:
    """The convolution itself; points with strides are taken from the image first where there are few channels.

    TensorFlow 2.21's oneDNN kernel crashes for windows of one point with strides over fewer than 16 channels, as a
    device's piece may have of many.
    """
    strides = [int(step) for step in ctx.op.attrs["strides"]]
    is_point = all(size == 1 for size in filters.shape[:-2])
    if is_point and max(strides) > 1 and filters.shape[-2] < _CHANNELS and ctx.op.type in ("Conv2D", "Conv3D"):
        # Padding is for windows; one point needs none, unless the script gives it.
        if padding_of(ctx.op.attrs) != "EXPLICIT":
            image = image[tuple(slice(None, None, step) for step in strides)]
            attrs = {**(attrs or {}), "strides": [1] * len(strides)}
    return ctx.emit([image, filters], attrs=attrs)


def _image(op: Operator, channels: str) -> str:
    """The notation of an image with these channels."""
    space = " ".join("_" * (op.outputs[0].rank - 2))
    channels_first = op.attrs["data_format"].startswith("NC")
    return f"n {channels} {space}" if channels_first else f"n {space} {channels}"


def _convolution(
    op: Operator, inputs: Sequence[TensorSpec], text: str, *, filters: int = 1, unsplit: Sequence[str] = ()
) -> OpRule:
    """The rule of ``text``; every element of the filter is used once for each point of the image that is made.

    Transposed (the filter comes first), the points are those of the image that is read.
    """
    rule = contraction(text, inputs, op.outputs, unsplit=unsplit)
    image = op.outputs[0] if filters == 1 else inputs[1]
    channels = image.shape[1 if op.attrs["data_format"].startswith("NC") else -1]
    flops = 2.0 * (image.elements // max(channels, 1)) * inputs[filters].elements
    rule = replace(rule, flops=flops, backward_flops=2 * flops)
    return rule.with_halos(_halos(op, inputs) if filters == 1 else _transposed_halos(op, inputs))


def _halos(op: Operator, inputs: Sequence[TensorSpec]) -> tuple[Halo, ...]:
    """Height and width of the image; the filter's first dimensions are the window."""
    image, kernel = inputs[0], inputs[1].shape[: inputs[0].rank - 2]
    if "block" in op.attrs:
        sides = zip(op.attrs["block_paddings"], op.attrs["block_crops"], strict=True)
        paddings = [0, 0, *(n for (before, _), (crop, _) in sides for n in (before - crop, 0)), 0, 0]
        dilated = {"padding": "EXPLICIT", "explicit_paddings": paddings, "dilations": (1, *op.attrs["block"], 1)}
        # A line's filters are those of images of one row.
        kernel = inputs[1].shape[: inputs[1].rank - 2][-len(op.attrs["block"]) :]
        window = (1, *kernel, 1)
        return window_halos(image, op.outputs[0], window, {"data_format": "NHWC", **dilated}, (1,) * len(window))
    window = (1, 1, *kernel) if op.attrs["data_format"].startswith("NC") else (1, *kernel, 1)
    return window_halos(image, op.outputs[0], window, op.attrs, op.attrs["strides"])


def _transposed_halos(op: Operator, inputs: Sequence[TensorSpec]) -> tuple[Halo, ...]:
    """As of the convolution whose gradient it is, with what is read and what is made exchanged."""
    made = replace(op, outputs=(inputs[1],))
    return tuple(
        Halo(h.axis, h.dim, h.size_out, h.size_in, h.window, 1, h.window - 1 - h.padding, up=h.stride, input=1)
        for h in _halos(made, [op.outputs[0], inputs[0]])
    )


_STRIDED = {"strides": [1, 2, 2, 1], "padding": "SAME"}
_CHANNELS = 16  # fewer are few to oneDNN
_STRIDED_BY_3 = {"strides": [1, 2, 3, 1], "padding": "SAME"}
_IN_GAPS = {"strides": [1, 3, 4, 1], "padding": "VALID"}
_PLAIN = {"strides": [1, 1, 1, 1], "padding": "VALID"}


def _traits(*gradient_kernels: str, merged_with: tuple[str, ...] = ()) -> Traits:
    return Traits(
        work=Work.CONVOLUTION,
        in_place=False,
        multilinear=True,
        merged_with=merged_with,
        gradient_kernels=gradient_kernels,
    )


@register_op(
    "Conv2D",
    lower=_convolve,
    samples=[
        Sample("Conv2D", (floats(4, 5, 4, 6), floats(3, 2, 6, 4)), _STRIDED),
        Sample("Conv2D", (floats(4, 2, 5, 5), floats(3, 3, 2, 6)), {**_PLAIN, "data_format": "NCHW"}),
        Sample(
            "Conv2D",
            (floats(6, 5, 5, 2), floats(2, 2, 2, 3)),
            {"strides": [1, 1, 1, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 1, 1, 0, 0]},
        ),
        # Integers, since TensorFlow has no gradient of a dilated convolution on CPUs.
        Sample("Conv2D", (integers(6, 5, 5, 2), integers(2, 2, 2, 3)), {**_PLAIN, "dilations": [1, 2, 2, 1]}),
        # Six groups of two channels each, which make one channel each, and two groups of three.
        Sample("Conv2D", (floats(2, 3, 3, 12), floats(2, 2, 2, 6)), _PLAIN),
        Sample("Conv2D", (floats(2, 3, 3, 6), floats(2, 2, 3, 4)), _PLAIN),
        Sample("Conv2D", (floats(4, 8, 8, 4), floats(3, 3, 2, 8)), _PLAIN),
        Sample("Conv2D", (floats(1, 12, 8, 2), floats(5, 3, 2, 1)), {**_PLAIN, "padding": "SAME"}),
        Sample("Conv2D", (floats(2, 8, 5, 4), floats(1, 1, 4, 6)), _STRIDED),
    ],
    traits=_traits("Conv2DBackpropInput", "Conv2DBackpropFilter", merged_with=("Pad",)),
)
@register_op(
    "Conv3D",
    lower=_convolve,
    samples=[
        Sample(
            "Conv3D",
            (floats(2, 3, 4, 3, 6), floats(2, 2, 2, 6, 2)),
            {"strides": [1, 1, 2, 1, 1], "padding": "SAME"},
        )
    ],
    traits=_traits("Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
)
def convolution(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A partial sum where input channels are split; of a grouped convolution whole groups are split instead.

    TensorFlow has no kernel for volumes of several groups, which Keras has XLA compile.
    """
    image, filters = inputs
    window = "_ " * (filters.rank - 2)
    if image.shape[1 if op.attrs["data_format"].startswith("NC") else -1] == filters.shape[-2]:
        return _convolution(op, inputs, f"{_image(op, 'c')}, {window}c f -> {_image(op, 'f')}")
    grouped = f"{_image(op, '(g c)')}, {window}c (g f) -> {_image(op, '(g f)')}"
    return _convolution(op, inputs, grouped, unsplit=("c", "f"))


@register_op(
    "DepthwiseConv2dNative",
    lower=_convolve,
    samples=[
        Sample("DepthwiseConv2dNative", (floats(4, 4, 3, 6), floats(2, 2, 6, 2)), _STRIDED),
        Sample(
            "DepthwiseConv2dNative",
            (floats(2, 4, 4, 4), floats(2, 2, 4, 1)),
            {**_PLAIN, "data_format": "NCHW"},
        ),
    ],
    traits=_traits("DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"),
)
def depthwise_conv2d(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Every channel has filters of its own: ``c`` passes through, its multiplier stays whole."""
    text = f"{_image(op, 'c')}, _ _ c m -> {_image(op, '(c m)')}"
    return _convolution(op, inputs, text, unsplit=("m",))


def _transposed(ctx: Lowering, filters: Any, image: Any) -> list[Any]:
    if not is_cut(ctx):
        return ctx.emit([filters, image], static={0: ctx.output_shape()})

    def window(piece: Any, filters: Any) -> Any:
        shape, starts, beside = list(ctx.output_shape()), [], [(0, 0)] * len(ctx.output_shape())
        for halo in ctx.rule.halos:
            # Behind windows that are narrower than their stride there are zeros.
            shape[halo.dim] = size = (piece.shape[halo.dim] - 1) * halo.up + max(halo.window, halo.up)
            # As an output without padding: its first element is where the window begins that the first one adds to.
            reads = halo.reads(ctx.pieces(halo.axis))
            begins = [first * halo.up - (halo.window - 1 - halo.padding) for first, _ in reads]
            # No window adds to what is before the first one of some piece, or behind the last one: zeros.
            count = halo.size_out // len(begins)
            before = max(0, *(begin - count * number for number, begin in enumerate(begins)))
            behind = max(0, *(count * (number + 1) - begin - size for number, begin in enumerate(begins)))
            beside[halo.dim] = before, behind
            starts.append(begins[piece_number(ctx, halo)] - before)
        (made,) = ctx.emit([filters, piece], static={0: shape}, attrs=unpadded(ctx))
        return own_part(ctx, ctx.tf.pad(made, beside) if any(map(any, beside)) else made, starts)

    return [over_window(ctx, window, image, filters)]


@register_op(
    "Conv2DBackpropInput",
    lower=_transposed,
    static={0: "output shape"},
    samples=[
        Sample(
            "Conv2DBackpropInput",
            ([4, 6, 5, 2], floats(3, 3, 2, 6), floats(4, 3, 3, 6)),
            {"strides": [1, 2, 2, 1], "padding": "SAME"},
        ),
        Sample("Conv2DBackpropInput", ([1, 8, 12, 2], floats(4, 3, 2, 1), floats(1, 4, 4, 1)), _STRIDED_BY_3),
        Sample("Conv2DBackpropInput", ([1, 8, 12, 2], floats(3, 2, 2, 1), floats(1, 4, 4, 1)), _STRIDED_BY_3),
        Sample("Conv2DBackpropInput", ([1, 10, 14, 1], floats(1, 2, 1, 1), floats(1, 4, 4, 1)), _IN_GAPS),
    ],
    traits=_traits("Conv2DBackpropFilter", "Conv2D"),
)
@register_op(
    "Conv3DBackpropInputV2",
    lower=_transposed,
    static={0: "output shape"},
    samples=[
        Sample(
            "Conv3DBackpropInputV2",
            ([2, 2, 4, 2, 3], floats(1, 2, 1, 3, 2), floats(2, 2, 2, 2, 2)),
            {"strides": [1, 1, 2, 1, 1], "padding": "SAME"},
        )
    ],
    traits=_traits("Conv3DBackpropFilterV2", "Conv3D"),
)
def conv_transpose(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The gradient of a convolution, used forward (``conv2d_transpose``): ``f`` is summed."""
    window = " ".join("_" * (inputs[0].rank - 2))
    return _convolution(op, inputs, f"{window} c f, {_image(op, 'f')} -> {_image(op, 'c')}", filters=0)
