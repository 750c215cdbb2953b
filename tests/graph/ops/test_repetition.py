from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def test_repeated_dimension_is_split_between_its_copies() -> None:
    rule = made_rule("Tile", [(12, 6)], [(12, 24)], static={1: [1, 4]})
    assert rule.outputs == ((("d0",), ("t1", "d1")),)
    assert rule.split == ("d0", "t1")
    assert rule.size("t1") == 4


def test_broadcast_dimensions_are_splittable_in_the_output_only() -> None:
    rule = made_rule("BroadcastTo", [(1, 6)], [(8, 12, 6)], static={1: [8, 12, 6]})
    assert rule.inputs == (((), ("d2",)),)
    assert sorted(rule.split) == ["d0", "d1", "d2"]
