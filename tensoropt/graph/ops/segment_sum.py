"""An op type: sums of rows by segment (``tf.math.unsorted_segment_sum``), split in any dimension."""

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

__all__ = ["SEGMENTS", "by_segment", "own_segments"]


def own_segments(ctx: Lowering, segments: Any) -> Any:
    """The segments' numbers as the device counts its own; those of other devices are negative."""
    if ctx.pieces("s") == 1:
        return segments
    tf = ctx.tf
    local = segments - tf.constant(ctx.offset("s"), segments.dtype)
    here = tf.logical_and(local >= 0, local < tf.constant(ctx.local_size("s"), segments.dtype))
    # TensorFlow drops negative segments. One beyond the last stays as it is: an error, as in one process.
    beyond = segments >= tf.constant(ctx.rule.size("s"), segments.dtype)
    return tf.where(here, local, tf.where(beyond, segments, -tf.ones_like(segments)))


def by_segment(ctx: Lowering, data: Any, segments: Any) -> list[Any]:
    """The device's rows, taken together into the segments that it holds."""
    return ctx.emit([data, own_segments(ctx, segments)], static={2: ctx.output_shape()[0]})


def _count(op: Operator, inputs: Sequence[TensorSpec]) -> int:
    """How many values an index may have."""
    return op.outputs[0].shape[0]


SEGMENTS = Traits(in_place=False, indices={1: _count})


@register_op(
    "UnsortedSegmentSum",
    lower=by_segment,
    static={2: "number of segments"},
    samples=[
        Sample("UnsortedSegmentSum", (floats(12, 6), integers(12, high=8, low=-1), 8)),
        Sample("UnsortedSegmentSum", (floats(2, 6, 4), integers(2, 6, high=12, dtype="int64"), 12)),
    ],
    traits=SEGMENTS,
)
def segment_sum(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``n c, n -> s c``: split rows ``n`` leave partial sums, split segments ``s`` need all rows, ``c`` passes."""
    data, segments = inputs
    rows = [f"n{i}" for i in range(segments.rank)]
    columns = [f"c{i}" for i in range(segments.rank, data.rank)]
    return movement(
        inputs,
        op.outputs,
        (dimensions([*rows, *columns]), dimensions(rows)),
        (dimensions(["s", *columns]),),
        reduced=rows,
        flops=float(data.elements),
        backward_flops=float(data.elements),
        saved_inputs=(1,),
    )
