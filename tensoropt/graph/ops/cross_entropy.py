"""Cross-entropy of a softmax. The classes may be split: no device then ever holds a row of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.elementwise import TRANSCENDENTAL_FLOPS
from tensoropt.graph.ops.softmax import shifted, widened
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, notation, replicated
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _rule(text: str, op: Operator, inputs: Sequence[TensorSpec], saved_inputs: tuple[int, ...]) -> OpRule:
    sizes, input_dims, output_dims = notation(text, inputs, op.outputs)
    points = inputs[0].elements
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=input_dims,
        outputs=output_dims,
        split=("n", "c"),
        internal=frozenset("c"),
        flops=(TRANSCENDENTAL_FLOPS + 6) * points,
        backward_flops=2.0 * points,
        saved_inputs=saved_inputs,
        # The second output is the gradient but for a factor a row. TensorFlow's own gradient reads it, scripts hardly.
        saved_outputs=(1,),
    )


def _summed(ctx: Lowering, columns: Sequence[Any]) -> list[Any]:
    """Sums of several (n, 1) columns over the devices that split the classes, in one collective."""
    tf = ctx.tf
    total = ctx.all_reduce(tf.concat(columns, 1), "c", gradient=None)
    return [total[:, place : place + 1] for place in range(len(columns))]


def _with_slope(
    ctx: Lowering, given: Sequence[Any], loss: Any, backward: Any, softmax: Callable[[], Any], labels: Callable[[], Any]
) -> list[Any]:
    """The loss with its gradient, and its gradient by the logits but for a factor a row, which has one of its own.

    Args:
        ctx: the lowering.
        given: logits and labels.
        loss: of each row.
        backward: the loss's gradient.
        softmax: makes that of the logits, where it is read, so that the backward pass holds none for it.
        labels: makes what the slope has less than the softmax: 1 in total a row.
    """
    tf = ctx.tf

    def of_slope(gradient: Any) -> list[Any]:
        wide, weights = widened(ctx, gradient), softmax()
        (mean,) = _summed(ctx, [tf.reduce_sum(wide * weights, 1, keepdims=True)])
        return [tf.cast((wide - mean) * weights, given[0].dtype), None]  # TensorFlow's gives none to labels, either

    slope = tf.cast(softmax() - labels(), given[0].dtype)
    return [*ctx.with_gradient(given, [loss], backward), *ctx.with_gradient(given, [slope], of_slope)]


def _dense(ctx: Lowering, logits: Any, labels: Any) -> list[Any]:
    if ctx.pieces("c") == 1:
        return ctx.emit([logits, labels])
    tf = ctx.tf
    low = shifted(ctx, widened(ctx, logits), "c")
    weights = widened(ctx, labels)
    # NaN for a class without chance and weight, as TensorFlow has it.
    columns = (tf.exp(low), low * weights, weights)
    total, picked, weight = _summed(ctx, [tf.reduce_sum(column, 1, keepdims=True) for column in columns])
    log_total = tf.math.log(total)
    # sum(labels * (log_total - low))
    loss = tf.cast(tf.squeeze(log_total * weight - picked, 1), logits.dtype)

    def softmax() -> Any:
        return tf.exp(low - log_total)

    def backward(gradient: Any) -> list[Any]:
        factor = widened(ctx, gradient)[:, None]
        to_logits = (softmax() - weights) * factor
        to_labels = (log_total - low) * factor
        return [tf.cast(to_logits, logits.dtype), tf.cast(to_labels, labels.dtype)]

    return _with_slope(ctx, [logits, labels], loss, backward, softmax, lambda: weights)


def _sparse(ctx: Lowering, logits: Any, labels: Any) -> list[Any]:
    if ctx.pieces("c") == 1:
        return ctx.emit([logits, labels])
    tf = ctx.tf
    local = ctx.local_size("c")
    low = shifted(ctx, widened(ctx, logits), "c")
    # The device whose piece holds the label's class gives its logit; the label is out of range on all others.
    place = tf.cast(labels, tf.int64) - ctx.offset("c")
    is_here = (place >= 0) & (place < local)
    # A label that is no class is none of the piece's either, so the lookup fails, as the op does in one process.
    is_class = (labels >= 0) & (labels < ctx.rule.size("c"))
    safe = tf.where(is_class, tf.clip_by_value(place, 0, local - 1), tf.cast(labels, tf.int64))
    logit = tf.gather(low, safe, batch_dims=1)
    columns = [tf.reduce_sum(tf.exp(low), 1), tf.where(is_here, logit, tf.zeros_like(logit))]
    total, picked = _summed(ctx, [column[:, None] for column in columns])
    log_total = tf.math.log(total)
    loss = tf.squeeze(log_total - picked, 1)
    # On devices that cannot fail TensorFlow makes the loss NaN.
    loss = tf.cast(tf.where(is_class, loss, tf.constant(float("nan"), loss.dtype)), logits.dtype)

    def softmax() -> Any:
        return tf.exp(low - log_total)

    def hit() -> Any:
        return tf.one_hot(place, local, dtype=low.dtype)

    def backward(gradient: Any) -> list[Any]:
        return [tf.cast((softmax() - hit()) * widened(ctx, gradient)[:, None], logits.dtype), None]

    return _with_slope(ctx, [logits, labels], loss, backward, softmax, hit)


@register_op(
    "SoftmaxCrossEntropyWithLogits",
    lower=_dense,
    samples=[
        Sample("SoftmaxCrossEntropyWithLogits", (floats(4, 6, low=-9, high=9), floats(4, 6, low=0, high=0.4))),
        Sample("SoftmaxCrossEntropyWithLogits", (floats(2, 12, low=80, high=200), floats(2, 12, low=0, high=0.2))),
        Sample(
            "SoftmaxCrossEntropyWithLogits",
            (floats(2, 6, dtype="float16"), floats(2, 6, low=0, high=0.4, dtype="float16")),
        ),
    ],
)
def dense_labels(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Labels are a distribution for each row. With classes split: two small reductions forward, none backward."""
    if inputs[0].shape != inputs[1].shape:  # TensorFlow broadcasts, but has no gradient that fits
        return replicated(inputs, op.outputs)
    return _rule("n c, n c -> n, n c", op, inputs, (0,))


@register_op(
    "SparseSoftmaxCrossEntropyWithLogits",
    lower=_sparse,
    samples=[
        Sample("SparseSoftmaxCrossEntropyWithLogits", (floats(4, 6, low=-9, high=9), integers(4, high=6))),
        Sample(
            "SparseSoftmaxCrossEntropyWithLogits",
            (floats(6, 24, low=80, high=200), integers(6, high=24, dtype="int64")),
        ),
        Sample("SparseSoftmaxCrossEntropyWithLogits", (floats(2, 6, dtype="float16"), integers(2, high=6))),
    ],
    traits=Traits(indices={1: lambda op, inputs: inputs[0].shape[1]}),
)
def class_labels(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Labels are class numbers. With classes split: two small reductions forward, none backward."""
    return _rule("n c, n -> n, n c", op, inputs, ())
