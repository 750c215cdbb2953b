"""The declaration of ``Print``: the first device alone prints, and it prints whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, replicated
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _print(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.emit(inputs) if ctx.is_first else ctx.emit(inputs, attrs={"first_n": 0})


@register_op(
    "Print",
    lower=_print,
    samples=[Sample("Print", (floats(12, 8), [floats(6), floats()]), {"message": "sample ", "first_n": 1})],
    traits=Traits(moves=True, passes_gradient=True, has_effect=True, unfused=True),
    unsplit={split: "what is printed is whole" for split in ("0:0, 1:0 -> 0", "0:1, 1:0 -> 1")},
)
def print_beside(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The tensor passes through; the first device prints the others, which are whole."""
    dims = passed(inputs[0].rank)
    return movement(inputs, op.outputs, (dims, *(((),) * data.rank for data in inputs[1:])), (dims,))


@register_op("PrintV2", lower=None, traits=Traits(has_effect=True, once=True))
def print_text(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The first device prints the text, which is made of whole tensors."""
    return replicated(inputs, op.outputs)
