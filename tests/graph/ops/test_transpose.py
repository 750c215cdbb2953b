from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def test_axes_move_with_their_dimensions() -> None:
    rule = made_rule("Transpose", [(6, 4, 8)], [(8, 6, 4)], static={1: [2, 0, 1]})
    assert rule.outputs == ((("d2",), ("d0",), ("d1",)),)
    assert rule.split == ("d0", "d1", "d2")


def test_blocks_are_not_split_inside() -> None:
    rule = made_rule("SpaceToDepth", [(6, 8, 4, 3)], [(6, 4, 2, 12)], attrs={"block_size": 2, "data_format": "NHWC"})
    assert rule.split == ("n", "h", "w")
    assert (rule.size("h"), rule.size("p")) == (4, 2)


def test_blocks_of_another_format_are_split_by_images_only() -> None:
    rule = made_rule("SpaceToDepth", [(6, 3, 8, 4)], [(6, 12, 4, 2)], attrs={"block_size": 2, "data_format": "NCHW"})
    assert rule.split == ("d0",)
