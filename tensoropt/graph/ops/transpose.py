"""Transposes, and blocks moved between space, depth and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "ConjugateTranspose",
    lower=_same,
    static={1: "permutation"},
    samples=[Sample("ConjugateTranspose", (floats(6, 2, dtype="complex64"), [1, 0]))],
)
@register_op(
    "Transpose",
    lower=_same,
    static={1: "permutation"},
    samples=[
        Sample("Transpose", (floats(12, 8), [1, 0])),
        Sample("Transpose", (floats(6, 4, 8, 3), [0, 2, 1, 3])),
        Sample("Transpose", (integers(2, 6, 12), [2, 0, 1])),
    ],
    traits=Traits(moves=True, unfused=True),
)
def transpose(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Every dimension passes through; axis ``d<i>`` is dimension ``i`` of the input."""
    dims = passed(inputs[0].rank)
    return movement(inputs, op.outputs, (dims,), (tuple(dims[int(i)] for i in op.static[1]),))


@register_op(
    "SpaceToDepth",
    lower=_same,
    samples=[
        Sample("SpaceToDepth", (floats(6, 8, 24, 2),), {"block_size": 2}),
        Sample("SpaceToDepth", (floats(2, 4, 6, 3),), {"block_size": 2, "data_format": "NHWC"}),
    ],
    traits=Traits(moves=True, in_place=False),
)
@register_op(
    "DepthToSpace",
    lower=_same,
    samples=[Sample("DepthToSpace", (floats(6, 4, 12, 8),), {"block_size": 2})],
    traits=Traits(moves=True, in_place=False),
)
def blocks(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and rows and columns of blocks are splittable, depth is not."""
    if op.attrs["data_format"] != "NHWC":
        batch = passed(inputs[0].rank, whole=range(1, inputs[0].rank))
        return movement(inputs, op.outputs, (batch,), (batch,))
    fine = (("n",), ("h", "p"), ("w", "q"), ())
    coarse = (("n",), ("h",), ("w",), ())
    sizes = {"p": int(op.attrs["block_size"]), "q": int(op.attrs["block_size"])}
    dims = (fine, coarse) if op.type == "SpaceToDepth" else (coarse, fine)
    return movement(inputs, op.outputs, dims[:1], dims[1:], sizes=sizes)


_MOVES = Traits(moves=True, in_place=False)


@register_op(
    "SpaceToBatchND",
    lower=_same,
    static={1: "block", 2: "paddings"},
    samples=[
        Sample("SpaceToBatchND", (floats(1, 4, 3, 6), [2, 2], [[0, 0], [0, 1]])),
        Sample("SpaceToBatchND", (floats(1, 4, 2, 3), [2], [[1, 1]])),
    ],
    traits=replace(_MOVES, to_batch=True),
)
@register_op(
    "BatchToSpaceND",
    lower=_same,
    static={1: "block", 2: "crops"},
    samples=[Sample("BatchToSpaceND", (floats(4, 2, 2, 6), [2, 2], [[0, 0], [0, 1]]))],
    traits=replace(_MOVES, from_batch=True),
)
def space_and_batch(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows of blocks pass through, and dimensions behind them.

    The batch cannot: in it the places of a block come before the examples.
    Convolutions between the two, which are dilated ones, are one operator: see ``conv.py``.
    """
    return _moved(op, inputs, [int(n) for n in op.static[1]], op.static[2])


@register_op(
    "SpaceToBatch",
    lower=_same,
    static={1: "paddings"},
    samples=[Sample("SpaceToBatch", (floats(1, 4, 2, 6), [[0, 0], [0, 0]]), {"block_size": 2})],
    traits=_MOVES,
)
@register_op(
    "BatchToSpace",
    lower=_same,
    static={1: "crops"},
    samples=[Sample("BatchToSpace", (floats(4, 2, 2, 6), [[0, 1], [0, 0]]), {"block_size": 2})],
    traits=_MOVES,
)
def images_and_batch(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As :func:`space_and_batch`, of images and square blocks."""
    return _moved(op, inputs, [int(op.attrs["block_size"])] * 2, op.static[1])


def _moved(op: Operator, inputs: Sequence[TensorSpec], block: Sequence[int], cut: Any) -> OpRule:
    """The rule of blocks, of which ``cut`` elements are added or taken away before and behind each dimension."""
    coarse: list[tuple[str, ...]] = [(), *passed(inputs[0].rank)[1:]]
    fine = list(coarse)
    sizes = {f"p{i}": extent for i, extent in enumerate(block, start=1)}
    for i, sides in enumerate(np.asarray(cut).tolist(), start=1):
        coarse[i], fine[i] = ((), ()) if any(sides) else ((f"d{i}",), (f"d{i}", f"p{i}"))
    dims = (fine, coarse) if op.type.startswith("Space") else (coarse, fine)
    return movement(inputs, op.outputs, (tuple(dims[0]),), (tuple(dims[1]),), sizes=sizes)
