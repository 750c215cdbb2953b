from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.graph.ops.reshape import common_factors
from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def _reshape(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[str, ...]:
    return made_rule("Reshape", [before], [after], static={1: list(after)}).split


def test_flattened_batch_is_splittable_by_its_major_part() -> None:
    # b s e -> (b s) e
    assert _reshape((6, 4, 24), (24, 24)) == ("d0", "d1")
    assert common_factors((6, 4, 24), (24, 24))[2] == {"d0": 6, "d0_1": 4, "d1": 24}


def test_heads_are_splittable_where_the_model_dimension_is() -> None:
    # b s (h d) -> b s h d
    rule = made_rule("Reshape", [(6, 4, 24)], [(6, 4, 12, 2)], static={1: [6, 4, 12, 2]})
    assert rule.split == ("d0", "d1", "d2")
    assert rule.inputs == ((("d0",), ("d1",), ("d2", "d3")),)
    assert rule.size("d2") == 12


def test_sizes_of_one_are_passed_over() -> None:
    assert _reshape((1, 24, 1, 5), (24, 5, 1)) == ("d0", "d1")


def test_dimensions_that_share_a_divisor_are_splittable_by_it() -> None:
    before, after, sizes = common_factors((8, 6), (12, 4))
    assert sizes["d0"] == 4
    assert _reshape((8, 6), (12, 4)) == ("d0",)
    assert before[0][0] == after[0][0] == "d0"


def test_dimensions_without_a_common_divisor_stay_whole_up_to_the_next_common_start() -> None:
    assert common_factors((5, 7, 2), (7, 5, 2)) == (((), (), ("d2",)), ((), (), ("d2",)), {"d2": 2})


def test_tensor_without_elements_stays_whole() -> None:
    assert _reshape((0, 4), (4, 0)) == ()


@given(st.lists(st.integers(1, 12), max_size=4), st.lists(st.integers(1, 12), max_size=4))
def test_common_factors_of_equal_products_have_the_sizes_of_their_dimensions(left: list[int], right: list[int]) -> None:
    before, after = (*left, math.prod(right)), (*right, math.prod(left))
    left_dims, right_dims, sizes = common_factors(before, after)
    for shape, dims in ((before, left_dims), (after, right_dims)):
        for extent, dim in zip(shape, dims, strict=True):
            assert not dim or math.prod(sizes[axis] for axis in dim) == extent
    names = [axis for dim in left_dims for axis in dim if axis.startswith("d")]
    assert names == [axis for dim in right_dims for axis in dim if axis.startswith("d")]


def test_squeeze_and_expand_dims_pass_dimensions_on() -> None:
    assert made_rule("Squeeze", [(12, 1, 6)], [(12, 6)], attrs={"squeeze_dims": (1,)}).split == ("d0", "d1")
    assert made_rule("ExpandDims", [(12, 6)], [(12, 1, 6)], static={1: 1}).split == ("d0", "d2")
