from __future__ import annotations

from typing import Any

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure

CUBE = (12, 6, 8)


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "static"),
    [
        ("ReverseV2", [CUBE], [CUBE], {1: [-2]}),
        ("Roll", [CUBE, ()], [CUBE], {2: 1}),
        ("ArgMax", [CUBE], [(12, 8)], {1: 1}),
        ("ArgMin", [CUBE], [(12, 8)], {1: -2}),
        ("Cumsum", [CUBE], [CUBE], {1: 1}),
        ("Cumprod", [CUBE], [CUBE], {1: -2}),
    ],
)
def test_the_dimension_that_is_worked_along_stays_whole(
    op_type: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], static: dict[int, Any]
) -> None:
    rule = made_rule(op_type, inputs, outputs, static=static)
    assert rule.split == ("d0", "d2")
    assert not rule.reduced


def test_sequences_stay_whole_and_lengths_go_with_their_batch() -> None:
    rule = made_rule("ReverseSequence", [CUBE, (8,)], [CUBE], attrs={"seq_dim": 1, "batch_dim": 2})
    assert rule.split == ("d0", "d2")
    assert rule.inputs[1] == (("d2",),)


def test_last_dimension_of_top_k_stays_whole() -> None:
    assert made_rule("TopKV2", [(12, 6)], [(12, 2), (12, 2)], static={1: 2}).split == ("d0",)
    assert made_rule("InTopKV2", [(12, 6), (12,)], [(12,)], static={2: 2}).split == ("n",)
