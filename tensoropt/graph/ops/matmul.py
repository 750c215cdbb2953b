"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, contraction
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "MatMul",
    lower=_same,
    samples=[
        Sample("MatMul", (floats(8, 6), floats(6, 12))),
        Sample("MatMul", (floats(6, 8), floats(12, 6)), {"transpose_a": True, "transpose_b": True}),
    ],
)
def matmul(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``x @ w``. Splitting ``k`` leaves a partial sum; ``m`` and ``n`` pass through."""
    left = "k m" if op.attrs["transpose_a"] else "m k"
    right = "n k" if op.attrs["transpose_b"] else "k n"
    return contraction(f"{left}, {right} -> m n", inputs, op.outputs)
