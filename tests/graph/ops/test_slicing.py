from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.slicing import Taken, taken_ranges
from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure

MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def _attrs(**masks: int) -> dict[str, int]:
    return {f"{name}_mask": masks.get(name, 0) for name in MASKS}


def test_slice_passes_on_what_it_takes_whole() -> None:
    rule = made_rule("Slice", [(12, 6, 4)], [(12, 3, 4)], static={1: [0, 1, 0], 2: [-1, 3, 4]})
    assert rule.split == ("d0", "d2")


def test_reversed_dimension_is_not_taken_whole() -> None:
    static = {1: [0, 0], 2: [0, 0], 3: [1, -1]}
    rule = made_rule("StridedSlice", [(12, 6)], [(12, 6)], static=static, attrs=_attrs(begin=3, end=3))
    assert rule.split == ("d0",)


def test_shrunk_and_added_dimensions_move_the_others() -> None:
    # x[2, ..., 1:4, newaxis]
    static = {1: [2, 0, 1, 0], 2: [3, 0, 4, 0], 3: [1, 1, 1, 1]}
    rule = made_rule(
        "StridedSlice",
        [(4, 12, 2, 6)],
        [(12, 2, 3, 1)],
        static=static,
        attrs=_attrs(shrink_axis=1, ellipsis=2, new_axis=8),
    )
    assert rule.inputs == (((), ("d1",), ("d2",), ()),)
    assert rule.outputs == ((("d1",), ("d2",), (), ()),)


def test_what_is_whole_of_a_tensor_is_whole_of_a_piece() -> None:
    op = Operator("it", "StridedSlice", (), (), _attrs(), {1: [-12], 2: [12], 3: [1]})
    assert taken_ranges(op, (12,)) == (Taken(0, 12, whole=True),)
    assert taken_ranges(op, (4,)) == (Taken(0, 4, whole=True),)


INDICES: tuple[Any, ...] = (
    slice(None), slice(1, 3), slice(None, None, -1), slice(-2, None), slice(9, 0, -2), 1, -1, None, ...
)  # fmt: skip


def _encoded(index: tuple[Any, ...]) -> Operator:
    """A NumPy index as TensorFlow encodes it."""
    begin, end, strides = [0] * len(index), [0] * len(index), [1] * len(index)
    masks = dict.fromkeys(MASKS, 0)
    for position, entry in enumerate(index):
        bit = 1 << position
        if entry is None:
            masks["new_axis"] |= bit
        elif entry is ...:
            masks["ellipsis"] |= bit
        elif isinstance(entry, int):
            begin[position], end[position] = entry, entry + 1
            masks["shrink_axis"] |= bit
        else:
            strides[position] = entry.step or 1
            begin[position], end[position] = entry.start or 0, entry.stop or 0
            masks["begin"] |= bit * (entry.start is None)
            masks["end"] |= bit * (entry.stop is None)
    return Operator("it", "StridedSlice", (), (), _attrs(**masks), {1: begin, 2: end, 3: strides})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranges_take_what_numpy_takes(count: int) -> None:
    array = np.arange(60).reshape(3, 4, 5)
    checked = 0
    for index in itertools.product(INDICES, repeat=count):
        if sum(entry is ... for entry in index) > 1:
            continue
        ranges = taken_ranges(_encoded(index), array.shape)
        taken = array
        for dim, entry in enumerate([entry for entry in ranges if entry.start is not None]):
            taken = np.take(taken, range(entry.start or 0, entry.stop, entry.stride), axis=dim)
            assert not entry.whole or taken.shape[dim] == array.shape[dim]
        sizes = iter(taken.shape)
        shape = [1 if entry.start is None else next(sizes) for entry in ranges]
        kept = [extent for extent, entry in zip(shape, ranges, strict=True) if not entry.shrunk]
        np.testing.assert_array_equal(taken.reshape(kept), array[index], err_msg=str(index))
        checked += 1
    assert checked >= count * 9
