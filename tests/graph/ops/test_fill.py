from __future__ import annotations

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def test_fill_needs_its_value_everywhere() -> None:
    rule = made_rule("Fill", [()], [(12, 6)], static={0: [12, 6]})
    assert rule.inputs == ((),)
    assert rule.split == ("d0", "d1")


@pytest.mark.parametrize(("op_type", "output"), [("Shape", (2,)), ("Size", ()), ("Rank", ())])
def test_shapes_are_known_however_the_tensor_is_split(op_type: str, output: tuple[int, ...]) -> None:
    rule = made_rule(op_type, [(12, 6)], [output], dtype="int32")
    assert rule.split == ("x0_0", "x0_1")
    assert rule.internal == {"x0_0", "x0_1"} and not rule.reduced


def test_series_are_splittable() -> None:
    assert made_rule("Range", [], [(24,)], static={0: 0, 1: 24, 2: 1}, dtype="int32").split == ("d0",)
    assert made_rule("LinSpace", [(), ()], [(12,)], static={2: 12}).split == ("d0",)
