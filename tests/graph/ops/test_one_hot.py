from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("axis", "shape"), [(-1, (12, 6, 24)), (0, (24, 12, 6)), (1, (12, 24, 6))])
def test_indices_and_classes_are_splittable(axis: int, shape: tuple[int, ...]) -> None:
    rule = made_rule("OneHot", [(12, 6), (), ()], [shape], static={1: 24}, attrs={"axis": axis})
    assert set(rule.split) == {"d0", "d1", "c"}
    assert rule.outputs[0].index(("c",)) == axis % 3
    assert not rule.reduced
