"""Softmax over the last dimension, which may be split: its maximum and its sum are then taken over all devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.elementwise import TRANSCENDENTAL_FLOPS
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, elementwise
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _rule(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    classes = f"d{inputs[0].rank - 1}"
    rule = elementwise(inputs, op.outputs, flops_per_point=TRANSCENDENTAL_FLOPS + 4, saved_outputs=(0,))
    return replace(rule, internal=frozenset((classes,)), backward_flops=4.0 * op.outputs[0].elements)


def shifted(ctx: Lowering, logits: Any, classes: str) -> Any:
    """``logits`` (..., classes) less their greatest over all devices, so that no exponential overflows."""
    greatest = ctx.tf.reduce_max(logits, -1, keepdims=True)
    return logits - ctx.all_reduce(greatest, classes, op="max", gradient=None)


def widened(ctx: Lowering, tensor: Any) -> Any:
    """``tensor`` in at least single precision, in which long sums are taken."""
    return ctx.tf.cast(tensor, ctx.tf.float32) if tensor.dtype.size < 4 else tensor


def _classes(ctx: Lowering) -> str:
    """The iteration axis that is the last dimension."""
    return ctx.rule.outputs[0][-1][0]


def _softmax(ctx: Lowering, logits: Any) -> list[Any]:
    tf, classes = ctx.tf, _classes(ctx)
    if ctx.pieces(classes) == 1:
        return ctx.emit([logits])
    exponentials = tf.exp(shifted(ctx, widened(ctx, logits), classes))
    total = ctx.all_reduce(tf.reduce_sum(exponentials, -1, keepdims=True), classes, gradient=None)
    result = tf.cast(exponentials / total, logits.dtype)

    def backward(gradient: Any) -> list[Any]:
        return [tf.cast(_softmax_gradient(ctx, result, gradient), logits.dtype)]

    return ctx.with_gradient([logits], [result], backward)


def _softmax_gradient(ctx: Lowering, y: Any, dy: Any) -> Any:
    wide, result = widened(ctx, dy), widened(ctx, y)
    mean = ctx.all_reduce(ctx.tf.reduce_sum(wide * result, -1, keepdims=True), _classes(ctx), gradient=None)
    return ctx.tf.cast((wide - mean) * result, dy.dtype)


def _log_softmax(ctx: Lowering, logits: Any) -> list[Any]:
    tf, classes = ctx.tf, _classes(ctx)
    if ctx.pieces(classes) == 1:
        return ctx.emit([logits])
    low = shifted(ctx, widened(ctx, logits), classes)
    total = ctx.all_reduce(tf.reduce_sum(tf.exp(low), -1, keepdims=True), classes, gradient=None)
    result = tf.cast(low - tf.math.log(total), logits.dtype)

    def backward(gradient: Any) -> list[Any]:
        return [tf.cast(_log_softmax_gradient(ctx, result, gradient), logits.dtype)]

    return ctx.with_gradient([logits], [result], backward)


def _log_softmax_gradient(ctx: Lowering, y: Any, dy: Any) -> Any:
    wide = widened(ctx, dy)
    total = ctx.all_reduce(ctx.tf.reduce_sum(wide, -1, keepdims=True), _classes(ctx), gradient=None)
    return ctx.tf.cast(wide - ctx.tf.exp(widened(ctx, y)) * total, dy.dtype)


@register_op(
    "Softmax",
    lower=_softmax,
    samples=[
        Sample("Softmax", (floats(4, 6, low=-9, high=9),)),
        Sample("Softmax", (floats(2, 3, 4),)),
        Sample("Softmax", (floats(12, low=80, high=200),)),
        Sample("Softmax", (floats(2, 6, dtype="float16"),)),
        Sample("Softmax", (floats(2, 6, dtype="float64"),)),
    ],
    traits=Traits(gradient_from_output=_softmax_gradient),
)
def softmax(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split dimension: two reductions of one number a row forward, one backward."""
    return _rule(op, inputs)


@register_op(
    "LogSoftmax",
    lower=_log_softmax,
    samples=[
        Sample("LogSoftmax", (floats(4, 6, low=-9, high=9),)),
        Sample("LogSoftmax", (floats(2, 3, 4),)),
        Sample("LogSoftmax", (floats(12, low=80, high=200),)),
        Sample("LogSoftmax", (floats(2, 6, dtype="float16"),)),
    ],
    traits=Traits(gradient_from_output=_log_softmax_gradient),
)
def log_softmax(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As :func:`softmax`."""
    return _rule(op, inputs)
