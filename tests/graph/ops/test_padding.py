from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("op_type", "inputs"), [("Pad", 1), ("PadV2", 2), ("MirrorPad", 1)])
def test_padded_dimensions_stay_whole(op_type: str, inputs: int) -> None:
    rule = made_rule(
        op_type,
        [(12, 6, 4), ()][:inputs],
        [(12, 7, 4)],
        static={1: [[0, 0], [0, 1], [0, 0]]},
        attrs={"mode": "REFLECT"},
    )
    assert rule.split == ("d0", "d2")
