"""Normalization ops. Statistics are those of the whole batch, however it is split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.elementwise import TRANSCENDENTAL_FLOPS
from tensoropt.graph.ops.softmax import widened
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Operand, Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

_SPACE = "dhw"  # names of the dimensions of images and volumes


def _channels_first(op: Operator) -> bool:
    return bool(op.attrs["data_format"].startswith("NC"))


def _image_axes(op: Operator, rank: int) -> tuple[str, ...]:
    space = tuple(_SPACE[-(rank - 2) :])
    return ("n", "c", *space) if _channels_first(op) else ("n", *space, "c")


def _batch_norm(ctx: Lowering, x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> list[Any]:
    tf, op = ctx.tf, ctx.op
    rank = len(x.shape)
    axes = _image_axes(op, rank)
    summed = [axis for axis in axes if axis != "c"]
    # The outputs after the first three are what TensorFlow's own gradient reads.
    unread = [None] * (len(op.outputs) - 3)
    if not op.attrs["is_training"] or all(ctx.pieces(axis) == 1 for axis in summed):
        return [*ctx.emit([x, scale, offset, mean, variance])[:3], *unread]

    places = [place for place, axis in enumerate(axes) if axis != "c"]
    per_channel = [size if axis == "c" else 1 for size, axis in zip(x.shape.as_list(), axes, strict=True)]
    count = 1
    for axis in summed:
        count *= ctx.rule.size(axis)

    def total(*tensors: Any) -> list[Any]:
        """Sums over batch and space of the whole input, per channel, in one collective."""
        local = tf.stack([tf.reduce_sum(tensor, places) for tensor in tensors])
        return tf.unstack(ctx.all_reduce(local, summed, gradient=None), len(tensors))

    def spread(tensor: Any) -> Any:
        return tf.reshape(tensor, per_channel)

    wide = widened(ctx, x)
    # In two passes: the mean square less the square of the mean would lose all digits of a small variance.
    batch_mean = total(wide)[0] / count
    centred = wide - spread(batch_mean)
    batch_variance = total(tf.square(centred))[0] / count
    inverse = tf.math.rsqrt(batch_variance + op.attrs["epsilon"])
    normal = centred * spread(inverse)
    y = tf.cast(normal * spread(scale) + spread(offset), x.dtype)

    def backward(gradient: Any) -> list[Any]:
        wide_gradient = widened(ctx, gradient)
        products = wide_gradient * normal
        mean_gradient, mean_product = (part / count for part in total(wide_gradient, products))
        to_x = spread(scale * inverse) * (wide_gradient - spread(mean_gradient) - normal * spread(mean_product))
        # Of scale and offset each device gives its share, as of every replicated input.
        return [tf.cast(to_x, x.dtype), tf.reduce_sum(products, places), tf.reduce_sum(wide_gradient, places)]

    (y,) = ctx.with_gradient([x, scale, offset], [y], backward)
    # TensorFlow gives the unbiased variance, and moves the given averages towards the batch's by the factor.
    unbiased = batch_variance * (count / max(count - 1, 1))
    factor = op.attrs.get("exponential_avg_factor", 1.0)
    statistics = [batch_mean, unbiased]
    if factor != 1.0:
        pairs = zip((mean, variance), statistics, strict=True)
        statistics = [old * (1.0 - factor) + new * factor for old, new in pairs]
    # They have no gradient in TensorFlow either.
    return [y, *(tf.stop_gradient(tensor) for tensor in statistics), *unread]


def _norm_samples(op_type: str) -> list[Sample]:
    def operands(x: Operand, channels: int, *, is_training: bool) -> tuple[Operand, ...]:
        empty = is_training and op_type == "FusedBatchNorm"
        running = 0 if empty else channels
        return (
            x,
            floats(channels, low=0.5, high=2.0),
            floats(channels),
            floats(running),
            floats(running, low=0.5, high=2.0),
        )

    image = floats(4, 2, 3, 2, low=2.0, high=4.0) if op_type == "FusedBatchNormV3" else floats(2, 1, 3, 2)
    samples = [
        Sample(op_type, operands(image, 2, is_training=True)),
        Sample(op_type, operands(floats(4, 1, 3, 6), 6, is_training=False), {"is_training": False, "epsilon": 0.01}),
    ]
    if op_type == "FusedBatchNormV3":
        moved = {"exponential_avg_factor": 0.25, "data_format": "NCHW"}
        samples += [
            Sample(op_type, operands(floats(4, 6, 2, 1), 6, is_training=True), moved),
            Sample(op_type, operands(floats(6, 2, 1, 2, dtype="float16"), 2, is_training=True)),
        ]
    return samples


@register_op(
    "FusedBatchNorm",
    "FusedBatchNormV2",
    lower=_batch_norm,
    samples=[*_norm_samples("FusedBatchNorm"), *_norm_samples("FusedBatchNormV2")],
    traits=Traits(in_place=False),
)
@register_op(
    "FusedBatchNormV3",
    lower=_batch_norm,
    samples=_norm_samples("FusedBatchNormV3"),
    traits=Traits(in_place=False, scratch_outputs=(5,)),
)
def batch_norm(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Channels pass through; over a split batch or image devices add their sums (two small reductions each way).

    Outputs after the first three are for TensorFlow's own gradient; without training nothing is communicated.
    """
    x = inputs[0]
    axes = _image_axes(op, x.rank)
    sizes = dict(zip(axes, x.shape, strict=True))
    image: Dims = tuple((axis,) for axis in axes)
    # Running averages that are not given, and scratch space that is not made, are empty: pieces of them are too.
    per_channel: Dims = (("c",),)
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=(image, *(per_channel for _ in inputs[1:])),
        outputs=(image, *(per_channel for _ in op.outputs[1:])),
        split=axes,
        internal=frozenset(axes) - {"c"},
        flops=6.0 * x.elements,
        backward_flops=10.0 * x.elements,
        saved_inputs=(0, 1),
        saved_outputs=(3, 4),
    )


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "LRN",
    lower=_same,
    samples=[Sample("LRN", (floats(4, 3, 2, 6),), {"depth_radius": 2, "alpha": 0.1})],
    traits=Traits(in_place=False),
)
def local_response(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each point by its neighbours among the channels, which stay whole."""
    sizes = tuple(zip("nhw", inputs[0].shape[:3], strict=True))
    dims: Dims = (("n",), ("h",), ("w",), ())
    flops = (TRANSCENDENTAL_FLOPS + 2.0 * op.attrs["depth_radius"]) * inputs[0].elements
    return OpRule(
        sizes=sizes,
        inputs=(dims,),
        outputs=(dims,),
        split=("n", "h", "w"),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=(0,),
        saved_outputs=(0,),
    )
