from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("axis", [1, -2])
def test_dimension_of_the_concatenation_stays_whole(axis: int) -> None:
    rule = made_rule("ConcatV2", [(4, 2, 6), (4, 3, 6)], [(4, 5, 6)], static={2: axis})
    assert rule.split == ("d0", "d2")


def test_dimension_that_is_taken_apart_stays_whole() -> None:
    halves = [(12, 3), (12, 3)]
    assert made_rule("Split", [(12, 6)], halves, static={0: -1}, attrs={"num_split": 2}).split == ("d0",)
    assert made_rule("SplitV", [(12, 6)], halves, static={1: [3, 3], 2: 1}).split == ("d0",)


def test_stacked_dimension_stays_whole() -> None:
    rule = made_rule("Pack", [(12, 6)] * 3, [(12, 3, 6)], attrs={"axis": 1, "N": 3})
    assert rule.outputs == ((("d0",), (), ("d1",)),)
    assert rule.split == ("d0", "d1")


def test_unstacked_dimension_stays_whole() -> None:
    rule = made_rule("Unpack", [(12, 6, 3)], [(12, 6)] * 3, attrs={"axis": -1, "num": 3})
    assert rule.inputs == ((("d0",), ("d1",), ()),)
    assert rule.split == ("d0", "d1")
