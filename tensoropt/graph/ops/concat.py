"""Tensors put together along a dimension, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "ConcatV2",
    lower=_same,
    static={-1: "axis"},
    samples=[
        Sample("ConcatV2", ([floats(12, 6), floats(12, 2)], 1)),
        Sample("ConcatV2", ([floats(4, 12), floats(2, 12), floats(6, 12)], -2)),
        Sample("ConcatV2", ([integers(8, 3, 6), integers(8, 3, 6)], -1)),
    ],
    traits=Traits(moves=True, unfused=True, passes_rows=False),
)
def concat(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but that of the concatenation pass through."""
    dims = passed(op.outputs[0].rank, whole={_axis(op.static[len(inputs)], op.outputs[0].rank)})
    return movement(inputs, op.outputs, (dims,) * len(inputs), (dims,))


@register_op(
    "Split",
    lower=_same,
    static={0: "axis"},
    samples=[
        Sample("Split", (1, floats(12, 6)), {"num_split": 3}),
        Sample("Split", (-2, floats(4, 12, 6)), {"num_split": 2}),
    ],
    traits=Traits(moves=True, unfused=True),
)
@register_op(
    "SplitV",
    lower=_same,
    static={1: "sizes", 2: "axis"},
    samples=[
        Sample("SplitV", (floats(12, 6), [2, 4], 1), {"num_split": 2}),
        Sample("SplitV", (floats(8, 24), [1, -1, 4], -2), {"num_split": 3}),
    ],
    traits=Traits(moves=True, unfused=True),
)
def split(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but that which is taken apart pass through."""
    axis = op.static[0] if op.type == "Split" else op.static[2]
    dims = passed(inputs[0].rank, whole={_axis(axis, inputs[0].rank)})
    return movement(inputs, op.outputs, (dims,), (dims,) * len(op.outputs))


@register_op(
    "Pack",
    lower=_same,
    samples=[
        Sample("Pack", ([floats(12, 6), floats(12, 6)],), {"axis": 0}),
        Sample("Pack", ([floats(12, 8), floats(12, 8), floats(12, 8)],), {"axis": -1}),
        Sample("Pack", ([integers(24), integers(24)],), {"axis": 1}),
    ],
    traits=Traits(moves=True, unfused=True),
)
def pack(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The tensors' dimensions pass through; the new one is whole."""
    stacked, single = _stacked(op.outputs[0].rank, op.attrs["axis"])
    return movement(inputs, op.outputs, (single,) * len(inputs), (stacked,))


@register_op(
    "Unpack",
    lower=_same,
    samples=[
        Sample("Unpack", (floats(3, 12, 8),), {"num": 3, "axis": 0}),
        Sample("Unpack", (floats(12, 2, 6),), {"num": 2, "axis": -2}),
    ],
    traits=Traits(moves=True, unfused=True),
)
def unpack(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The tensors' dimensions pass through; the one that goes is whole."""
    stacked, single = _stacked(inputs[0].rank, op.attrs["axis"])
    return movement(inputs, op.outputs, (stacked,), (single,) * len(op.outputs))


def _axis(axis: Any, rank: int) -> int:
    return int(axis) % rank


def _stacked(rank: int, axis: int) -> tuple[Dims, Dims]:
    """The dimensions of the stack, and of one of its members."""
    single = list(passed(rank - 1))
    stacked = list(single)
    stacked.insert(_axis(axis, rank), ())
    return tuple(stacked), tuple(single)


@register_op(
    "DynamicStitch",
    "ParallelDynamicStitch",
    lower=_same,
    samples=[
        Sample(op_type, ([np.array([0, 3], np.int32), np.array([2, 1], np.int32)], [floats(2, 6), floats(2, 6)]))
        for op_type in ("DynamicStitch", "ParallelDynamicStitch")
    ],
    traits=Traits(in_place=False),
)
def stitch(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows that go to places given by indices: rows stay whole, as does their number, columns pass through."""
    places, data = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
    rank = op.outputs[0].rank
    columns = passed(rank, whole={0})[1:]
    dims: list[Dims] = [((),) * spec.rank for spec in places]
    dims += [(*((),) * (spec.rank - rank + 1), *columns) for spec in data]
    return movement(inputs, op.outputs, dims, (((), *columns),), saved_inputs=tuple(range(len(places))))
