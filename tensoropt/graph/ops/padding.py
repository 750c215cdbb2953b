"""Paddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.halo import Halo
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.rims import is_cut, over_window
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec


def _pad(ctx: Lowering, image: Any, value: Any = 0) -> list[Any]:
    if not is_cut(ctx):
        return ctx.emit([image] if ctx.op.type == "Pad" else [image, value])
    return [over_window(ctx, lambda piece: piece, image, padding=value)]


def _same(ctx: Lowering, image: Any) -> list[Any]:
    return ctx.emit([image])


@register_op(
    "Pad",
    lower=_pad,
    static={1: "paddings"},
    samples=[
        Sample("Pad", (floats(12, 6), [[0, 0], [1, 2]])),
        Sample("Pad", (floats(4, 6, 6, 24), [[0, 0], [1, 1], [2, 0], [0, 0]])),
        Sample("Pad", (floats(2, 8, 12, 3), [[0, 0], [1, 3], [0, 4], [1, 0]])),
    ],
)
@register_op(
    "PadV2",
    lower=_pad,
    static={1: "paddings"},
    samples=[
        Sample("PadV2", (floats(8, 6, 3), [[0, 0], [0, 0], [0, 1]], floats())),
        Sample("PadV2", (floats(8, 6, 2), [[4, 0], [0, 6], [0, 0]], floats())),
    ],
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
    """Dimensions without padding pass through; padding with a constant, the others are cut by exchanging rims."""
    sides = np.asarray(op.static[1]).tolist()
    padded = {position for position, ends in enumerate(sides) if any(ends)}
    dims = passed(inputs[0].rank, whole=padded)
    rule = movement(inputs, op.outputs, (dims, *((),) * (len(inputs) - 1)), (dims,))
    if op.type == "MirrorPad":
        return rule
    read, made = inputs[0].shape, op.outputs[0].shape
    return rule.with_halos([Halo(f"d{dim}", dim, read[dim], made[dim], 1, 1, sides[dim][0]) for dim in sorted(padded)])
