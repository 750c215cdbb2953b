"""Slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

__all__ = ["Taken", "taken_ranges"]


class Taken(NamedTuple):
    """The range that a strided slice takes of one dimension, or a dimension of size 1 that the slice adds.

    Attributes:
        start: the first index; None for an added dimension.
        stop: the index before which the range ends; -1 where a negative stride ends with index 0.
        stride: the step.
        shrunk: whether the slice removes the dimension.
        whole: whether the slice takes the whole dimension, in order.
    """

    start: int | None = None
    stop: int = 0
    stride: int = 1
    shrunk: bool = False
    whole: bool = False


def taken_ranges(op: Operator, shape: Sequence[int]) -> tuple[Taken, ...]:
    """Returns the range that a StridedSlice takes of every dimension of its input, with ellipsis and masks resolved.

    Dimensions that the op adds stand at their places in the output. A range that is the whole of ``shape`` is the whole
    of a shard as well: TensorFlow clips indices beyond the end, and so does this function.
    """
    begin, end, strides = (np.asarray(op.static[position]).tolist() for position in (1, 2, 3))
    count = len(begin)

    def is_set(mask: str, position: int) -> bool:
        return bool(op.attrs[f"{mask}_mask"] >> position & 1)

    ellipsis = next((i for i in range(count) if is_set("ellipsis", i)), count)
    added = [i for i in range(count) if i != ellipsis and is_set("new_axis", i)]
    skipped = len(shape) - (count - len(added) - (ellipsis < count))
    result: list[Taken] = []
    dim = 0
    for position in range(max(count, ellipsis + 1)):
        if position == ellipsis:
            result += [Taken(0, extent, whole=True) for extent in shape[dim : dim + skipped]]
            dim += skipped
        elif position in added:
            result.append(Taken())
        else:
            extent = shape[dim]
            dim += 1
            if is_set("shrink_axis", position):
                start = begin[position] % extent
                result.append(Taken(start, start + 1, shrunk=True))
                continue
            bounds = slice(
                None if is_set("begin", position) else begin[position],
                None if is_set("end", position) else end[position],
                strides[position],
            ).indices(extent)
            result.append(Taken(*bounds, whole=bounds == (0, extent, 1)))
    return tuple(result)


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


def _slice(ctx: Lowering, x: Any) -> list[Any]:
    return ctx.emit([x], static={2: ctx.output_shape()})


@register_op(
    "Slice",
    lower=_slice,
    static={1: "begin", 2: "size"},
    samples=[
        Sample("Slice", (floats(12, 6), [0, 2], [12, 3])),
        Sample("Slice", (floats(8, 6, 12), [2, 0, 0], [4, -1, 12])),
        Sample("Slice", (integers(12, 6), [0, 1], [-1, -1])),
    ],
    traits=Traits(views_rows=True, moves=True, unfused=True),
)
def slice_(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions that are taken whole pass through."""
    pairs = zip(inputs[0].shape, op.outputs[0].shape, strict=True)
    cut = {position for position, (before, after) in enumerate(pairs) if before != after}
    dims = passed(inputs[0].rank, whole=cut)
    return movement(inputs, op.outputs, (dims,), (dims,))


def _strided_slice(ctx: Lowering, x: Any) -> Any:
    ranges = [taken for taken in taken_ranges(ctx.op, ctx.input_shape(0)) if taken.start is not None]
    if not all(taken.whole for taken in ranges):
        x = ctx.tf.strided_slice(
            x,
            [taken.start for taken in ranges],
            [taken.stop for taken in ranges],
            [taken.stride for taken in ranges],
            end_mask=sum(1 << position for position, taken in enumerate(ranges) if taken.stop < 0),
        )
    return ctx.tf.reshape(x, ctx.output_shape())  # without shrunk dimensions, with added ones


@register_op(
    "StridedSlice",
    lower=_strided_slice,
    static={1: "begin", 2: "end", 3: "strides"},
    samples=[
        Sample("StridedSlice", (floats(12, 6), [0, 1], [0, 5], [1, 2]), {"begin_mask": 1, "end_mask": 1}),
        Sample("StridedSlice", (floats(12, 6, 8), [0, -1], [12, 0], [1, 1]), {"shrink_axis_mask": 2}),
        # x[:, tf.newaxis, ..., ::-1]
        Sample(
            "StridedSlice",
            (floats(8, 6, 3, 4), [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, -1]),
            {"begin_mask": 9, "end_mask": 9, "new_axis_mask": 2, "ellipsis_mask": 4},
        ),
        # x[..., tf.newaxis]
        Sample("StridedSlice", (floats(12, 6), [0, 0], [0, 0], [1, 1]), {"new_axis_mask": 2, "ellipsis_mask": 1}),
        # x[2, ..., 1:4, tf.newaxis]
        Sample(
            "StridedSlice",
            (floats(4, 12, 2, 6), [2, 0, 1, 0], [3, 0, 4, 0], [1, 1, 1, 1]),
            {"shrink_axis_mask": 1, "ellipsis_mask": 2, "new_axis_mask": 8},
        ),
        Sample("StridedSlice", (floats(24, 4), [-100, 3], [100, 0], [1, -2])),
        Sample("StridedSlice", (integers(4), [1], [2], [1]), {"shrink_axis_mask": 1}),
    ],
    traits=Traits(moves=True, unfused=True),
)
def strided_slice(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions that are taken whole and in order pass through."""
    ranges = taken_ranges(op, inputs[0].shape)
    before: list[str | None] = []
    after: list[str | None] = []
    for taken in ranges:
        name = f"d{len(before)}" if taken.whole else None
        if taken.start is not None:
            before.append(name)
        if not taken.shrunk:
            after.append(name)
    return movement(inputs, op.outputs, (dimensions(before),), (dimensions(after),))


@register_op(
    "TensorStridedSliceUpdate",
    lower=_same,
    static={1: "begin", 2: "end", 3: "strides"},
    samples=[
        # x[:, 1:5:2], and x[:, -1]
        Sample(
            "TensorStridedSliceUpdate",
            (floats(6, 6), [0, 1], [0, 5], [1, 2], floats(6, 2)),
            {"begin_mask": 1, "end_mask": 1},
        ),
        Sample(
            "TensorStridedSliceUpdate",
            (floats(2, 3, 4), [0, -1], [2, 0], [1, 1], floats(2, 4)),
            {"shrink_axis_mask": 2},
        ),
    ],
    traits=Traits(in_place=False),
)
def strided_slice_update(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions that are written whole and in order pass through."""
    ranges = taken_ranges(op, inputs[0].shape)
    result: list[str | None] = []
    value: list[str | None] = []
    for taken in ranges:
        name = f"d{len(result)}" if taken.whole else None
        if taken.start is not None:
            result.append(name)
        if not taken.shrunk:
            value.append(name)
    # A value of fewer dimensions, or of one element along some, is written several times.
    own = value[len(value) - inputs[1].rank :]
    pairs = zip(own, inputs[1].shape, strict=True)
    sizes = dict(zip((f"d{i}" for i in range(len(result))), inputs[0].shape, strict=True))
    own = [name if name is not None and sizes[name] == extent else None for name, extent in pairs]
    return movement(inputs, op.outputs, (dimensions(result), dimensions(own)), (dimensions(result),))
