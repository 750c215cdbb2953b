from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("op_type", "inputs", "split"),
    [("Pad", 1, ("d0", "d2", "d1")), ("PadV2", 2, ("d0", "d2", "d1")), ("MirrorPad", 1, ("d0", "d2"))],
)
def test_dimensions_padded_with_mirrors_stay_whole(op_type: str, inputs: int, split: tuple[str, ...]) -> None:
    rule = made_rule(
        op_type,
        [(12, 6, 4), ()][:inputs],
        [(12, 8, 4)],
        static={1: [[0, 0], [0, 2], [0, 0]]},
        attrs={"mode": "REFLECT"},
    )
    assert rule.split == split
    # The second half is of two rows of the first one and two of padding.
    assert [(halo.axis, halo.rims(2)) for halo in rule.halos] == [("d1", ((0, 1), (0, 0)))][: len(split) - 2]
