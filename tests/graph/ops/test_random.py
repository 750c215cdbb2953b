from __future__ import annotations

import pytest

from tensoropt.graph.registry import declaration
from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure

SEEDS = {"seed": 1, "seed2": 2, "dtype": "float32"}


def test_numbers_are_splittable_but_every_device_makes_all() -> None:
    rule = made_rule("RandomUniform", [], [(12, 6)], static={0: [12, 6]}, attrs=SEEDS)
    assert rule.split == ("d0", "d1")
    assert rule.flops == 0
    assert rule.replicated_flops >= 72


def test_what_numbers_depend_on_is_whole() -> None:
    rule = made_rule("Multinomial", [(12, 5)], [(12, 8)], static={1: 8}, attrs=SEEDS)
    assert rule.inputs == (((), ()),)
    assert rule.split == ("d0", "d1")


@pytest.mark.parametrize(("op_type", "shared"), [("RandomUniform", True), ("StatelessRandomUniformV2", False)])
def test_only_ops_with_a_state_are_shared(op_type: str, shared: bool) -> None:
    assert declaration(op_type).shared is shared


def test_key_of_stateless_numbers_is_whole() -> None:
    assert made_rule("StatelessRandomGetKeyCounter", [(2,)], [(1,), (2,)]).split == ()
