from __future__ import annotations

from typing import Any

import pytest

from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "static"),
    [
        ("MatrixBandPart", [(12, 2, 4, 4), (), ()], (12, 2, 4, 4), {}),
        ("MatrixDiagV3", [(12, 2, 4), ()], (12, 2, 4, 4), {1: 0, 2: -1, 3: -1}),
        ("MatrixDiagV3", [(12, 2, 2, 4), ()], (12, 2, 4, 4), {1: [-1, 0], 2: 4, 3: 4}),
        ("MatrixDiagPartV3", [(12, 2, 4, 4), ()], (12, 2, 4), {1: 0}),
        ("MatrixSetDiagV3", [(12, 2, 4, 4), (12, 2, 4)], (12, 2, 4, 4), {2: 0}),
    ],
)
def test_batches_are_splittable_and_matrices_are_not(
    op_type: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], static: dict[int, Any]
) -> None:
    assert made_rule(op_type, inputs, [output], static=static).split == ("d0", "d1")
