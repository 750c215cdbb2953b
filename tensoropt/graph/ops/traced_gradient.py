"""Several tensors passed on; where a script says so, with a gradient of its own (``tf.custom_gradient``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensoropt.graph.gradient_graphs import GRAPH, POINTWISE, traced_gradient
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, elementwise, replicated
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _lower(ctx: Lowering, *inputs: Any) -> list[Any]:
    node = ctx.op.node
    # One op each: TensorFlow's dependency optimizer takes an IdentityN of collectives out of the order they are in.
    outputs = [ctx.tf.identity(tensor) for tensor in inputs[: len(ctx.op.outputs)]]
    if GRAPH not in node:
        return outputs
    return ctx.with_gradient(inputs, outputs, lambda *dy: traced_gradient(ctx.tf, node, inputs, dy))


@register_op(
    "IdentityN",
    lower=_lower,
    samples=[
        Sample("IdentityN", ([floats(4, 6), integers(4, 6)],)),
        Sample("IdentityN", ([floats(4, 6), floats(3)],)),
    ],
    traits=Traits(alias=True, unfused=True),
    unsplit={
        f"0:{first}, 1:{1 - first} -> {first}, {1 - first}": "tensors of one shape are split alike, others not at all"
        for first in (0, 1)
    },
)
def identity_n(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Tensors of one shape are split together; of several shapes none is.

    With a gradient of its own all that this reads is an input too. It is split if the gradient is computed point by
    point; single numbers are then whole everywhere.
    """
    traced = GRAPH in (op.node or {})
    saved = tuple(range(len(op.outputs), len(inputs))) if traced else ()
    if traced and op.attrs[POINTWISE]:
        return elementwise(inputs, op.outputs, saved_inputs=saved)
    if traced or len({spec.shape for spec in inputs}) > 1:
        return replace(replicated(inputs, op.outputs), saved_inputs=saved, saved_outputs=())
    return elementwise(inputs, op.outputs)
