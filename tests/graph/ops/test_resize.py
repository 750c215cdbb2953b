from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def _split(op_type: str, size: int, **attrs: bool) -> tuple[str, ...]:
    attrs = {"align_corners": False, "half_pixel_centers": True, **attrs}
    return made_rule(op_type, [(6, 4, 4, 3)], [(6, 8, size, 3)], static={1: [8, size]}, attrs=attrs).split


@pytest.mark.parametrize("op_type", ["ResizeNearestNeighbor", "ResizeBilinear", "ResizeBicubic"])
def test_images_and_channels_are_splittable(op_type: str) -> None:
    assert _split(op_type, 8, align_corners=True) == ("d0", "d3")


@pytest.mark.parametrize("op_type", ["ResizeNearestNeighbor", "ResizeBilinear"])
def test_rows_and_columns_are_where_they_become_a_whole_number_of_times_as_many(op_type: str) -> None:
    assert _split(op_type, 8) == _split(op_type, 2) == ("d0", "d3", "height", "width")
    assert _split(op_type, 6) == ("d0", "d3", "height")


def test_rows_of_the_nearest_ones_are_not_where_tensorflow_rounds_their_places() -> None:
    assert _split("ResizeNearestNeighbor", 12, half_pixel_centers=False) == ("d0", "d3", "height")
    assert _split("ResizeNearestNeighbor", 12) == ("d0", "d3", "height", "width")
