"""How often values occur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "Bincount",
    lower=_same,
    static={1: "number of values"},
    samples=[Sample("Bincount", (integers(12, high=5), 4, floats(12)))],
    traits=Traits(in_place=False),
)
@register_op(
    "DenseBincount",
    lower=_same,
    static={1: "number of values"},
    samples=[
        Sample("DenseBincount", (integers(2, 6, high=5), 4, floats(2, 6))),
        Sample("DenseBincount", (integers(2, 6, high=5), 4, floats(0)), {"binary_output": True}),
    ],
    traits=Traits(in_place=False),
)
def bincount(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device counts what it has; whether a value occurs at all is no sum."""
    values, weights = inputs
    rank = op.outputs[0].rank
    batch = [f"b{i}" for i in range(rank - 1)]
    counted = [None if op.attrs.get("binary_output") else f"n{i}" for i in range(len(batch), values.rank)]
    dims = dimensions([*batch, *counted])
    weighted = dims if weights.shape == values.shape else ((),) * weights.rank
    return movement(
        inputs,
        op.outputs,
        (dims, weighted),
        (dimensions([*batch, None]),),
        reduced=[name for name in counted if name],
        flops=float(values.elements),
    )


@register_op(
    "HistogramFixedWidth",
    lower=_same,
    static={2: "number of bins"},
    samples=[Sample("HistogramFixedWidth", (floats(4, 6), np.array([-0.5, 0.5], np.float32), 3))],
    traits=Traits(in_place=False),
)
def histogram(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device counts what it has."""
    names = [f"n{i}" for i in range(inputs[0].rank)]
    return movement(
        inputs, op.outputs, (dimensions(names), ((),)), (((),),), reduced=names, flops=3.0 * inputs[0].elements
    )
