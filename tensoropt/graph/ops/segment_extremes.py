"""Extremes and products of rows by segment; sums are in ``segment_sum.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.segment_sum import SEGMENTS, by_segment, own_segments
from tensoropt.graph.ops.softmax import widened
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec


def _samples(op_type: str) -> list[Sample]:
    return [
        Sample(op_type, (floats(6, 2), integers(6, high=4, low=-1), 4)),
        Sample(op_type, (floats(2, 2, 3), integers(2, 2, high=3, dtype="int64"), 3)),
    ]


_STATIC = {2: "number of segments"}


def _rule(op: Operator, inputs: Sequence[TensorSpec], *, split_rows: bool) -> OpRule:
    """``n c, n -> s c``: segments ``s`` need all rows, columns ``c`` pass."""
    data, segments = inputs
    names = [f"n{i}" for i in range(segments.rank)]
    columns = [f"c{i}" for i in range(segments.rank, data.rank)]
    rows = dimensions(names if split_rows else [None] * len(names))
    return movement(
        inputs,
        op.outputs,
        ((*rows, *dimensions(columns)), rows),
        (dimensions(["s", *columns]),),
        internal=names if split_rows else (),
        flops=float(data.elements),
        backward_flops=float(data.elements),
        saved_inputs=(0, 1),
        saved_outputs=(0,),
    )


def _extreme(ctx: Lowering, data: Any, segments: Any) -> list[Any]:
    tf = ctx.tf
    rows = [axis for axis in ctx.rule.internal if ctx.pieces(axis) > 1]
    if not rows:
        return by_segment(ctx, data, segments)
    own = own_segments(ctx, segments)
    count = ctx.output_shape()[0]
    (local,) = ctx.emit([data, own], static={2: count})
    result = ctx.all_reduce(local, rows, op="max" if ctx.op.type.endswith("Max") else "min", gradient=None)
    if not data.dtype.is_floating:
        return [result]
    is_row = tf.reshape(own >= 0, [*own.shape, *[1] * (data.shape.rank - own.shape.rank)])
    place = tf.maximum(own, tf.zeros_like(own))

    def backward(gradient: Any) -> list[Any]:
        # As TensorFlow does: rows that tie share the gradient equally.
        wide = widened(ctx, gradient)
        chosen = is_row & tf.equal(data, tf.gather(result, place))
        found = tf.math.unsorted_segment_sum(tf.cast(chosen, wide.dtype), own, count)
        share = tf.gather(wide / ctx.all_reduce(found, rows, gradient=None), place)
        return [tf.cast(tf.where(chosen, share, tf.zeros_like(share)), data.dtype)]

    return ctx.with_gradient([data], [result], backward)


@register_op(
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    lower=_extreme,
    static=_STATIC,
    samples=[
        # Whole numbers, many of which tie.
        Sample("UnsortedSegmentMax", (integers(6, 2, high=2, dtype="float32"), integers(6, high=2, low=-1), 2)),
        Sample("UnsortedSegmentMin", (floats(6), integers(6, high=4, dtype="int64"), 4)),
    ],
    traits=SEGMENTS,
)
def segment_extreme(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over split rows devices compare their results, and backward count their ties."""
    return _rule(op, inputs, split_rows=True)


@register_op(
    "UnsortedSegmentProd",
    lower=by_segment,
    static=_STATIC,
    samples=_samples("UnsortedSegmentProd"),
    traits=SEGMENTS,
)
def segment_product(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows are not split: products are not sums, and engines do not multiply."""
    return _rule(op, inputs, split_rows=False)
