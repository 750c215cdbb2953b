from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("op_type", ["ResizeNearestNeighbor", "ResizeBilinear", "ResizeBicubic"])
def test_images_and_channels_are_splittable_and_positions_are_not(op_type: str) -> None:
    assert made_rule(op_type, [(6, 4, 4, 3)], [(6, 8, 8, 3)], static={1: [8, 8]}).split == ("d0", "d3")
