"""Rules of operators given by their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["made_rule"]

Shape = tuple[int, ...]


def made_rule(
    op_type: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    *,
    static: Mapping[int, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> OpRule:
    """The rule of an operator whose tensors are all of one dtype."""
    op = Operator(
        "it",
        op_type,
        tuple(TensorId(f"x{number}") for number in range(len(inputs))),
        tuple(TensorSpec(shape, dtype) for shape in outputs),
        dict(attrs or {}),
        dict(static or {}),
    )
    return rule_of(op, [TensorSpec(shape, dtype) for shape in inputs])
