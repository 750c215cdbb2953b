"""Paddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "Pad",
    lower=_same,
    static={1: "paddings"},
    samples=[
        Sample("Pad", (floats(12, 6), [[0, 0], [1, 2]])),
        Sample("Pad", (floats(4, 6, 6, 24), [[0, 0], [1, 1], [2, 0], [0, 0]])),
    ],
)
@register_op(
    "PadV2",
    lower=_same,
    static={1: "paddings"},
    samples=[Sample("PadV2", (floats(8, 6, 3), [[0, 0], [0, 0], [0, 1]], floats()))],
)
@register_op(
    "MirrorPad",
    lower=_same,
    static={1: "paddings"},
    samples=[
        Sample("MirrorPad", (floats(12, 6), [[0, 0], [1, 2]]), {"mode": "REFLECT"}),
        Sample("MirrorPad", (floats(3, 12), [[2, 1], [0, 0]]), {"mode": "SYMMETRIC"}),
    ],
)
def pad(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions without padding pass through."""
    padded = {position for position, sides in enumerate(np.asarray(op.static[1]).tolist()) if any(sides)}
    dims = passed(inputs[0].rank, whole=padded)
    return movement(inputs, op.outputs, (dims, *((),) * (len(inputs) - 1)), (dims,))
