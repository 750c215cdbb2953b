"""A vector added along the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, notation
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "BiasAdd",
    lower=_same,
    samples=[
        Sample("BiasAdd", (floats(8, 6), floats(6))),
        Sample("BiasAdd", (floats(6, 2, 4, 8), floats(8))),
        # The channels' place in NCHW; without images TensorFlow computes it on CPUs as well.
        Sample("BiasAdd", (floats(4, 6, 3, 2), floats(6)), {"data_format": "NCHW"}),
    ],
    traits=Traits(
        passes_gradient=True,
        fused_onto=("Conv2D", "MatMul"),
        merged_with=("Conv2D",),
        gradient_kernels=(None, "BiasAddGrad"),
    ),
)
@register_op(
    "BiasAddV1",
    lower=_same,
    samples=[Sample("BiasAddV1", (floats(4, 6), floats(6)))],
    traits=Traits(passes_gradient=True),
)
def bias_add(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Every dimension may be split; a split of another one than the channels leaves the vector a partial gradient."""
    rank = op.outputs[0].rank
    channel = 1 if op.attrs.get("data_format") == "NCHW" else rank - 1
    names = [f"d{position}" for position in range(rank)]
    names[channel] = "c"
    text = " ".join(names)
    sizes, input_dims, output_dims = notation(f"{text}, c -> {text}", inputs, op.outputs)
    flops = float(op.outputs[0].elements)
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=input_dims,
        outputs=output_dims,
        split=tuple(axis for axis, size in sizes.items() if size > 1),
        flops=flops,
        backward_flops=flops,
    )
