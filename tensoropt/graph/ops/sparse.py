"""Sparse tensors, given by their indices and values, where they meet dense ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


def _piece(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs)[0])


_PLACES = np.array([[0, 1], [1, 3], [2, 0], [4, 2]], np.int64)


@register_op(
    "SparseToDense",
    lower=_piece,
    static={1: "shape"},
    samples=[
        Sample("SparseToDense", (_PLACES, [6, 4], floats(4), floats())),
        Sample("SparseToDense", (integers(1, high=6), [6], floats(), floats())),
    ],
    traits=Traits(in_place=False, may_fail=True),
)
def to_dense(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device makes the whole, whose indices TensorFlow checks, and keeps its piece."""
    return movement(
        inputs,
        op.outputs,
        [((),) * spec.rank for spec in inputs],
        (passed(op.outputs[0].rank),),
        backward_flops=float(op.outputs[0].elements),
        saved_inputs=(0,),
    )


@register_op(
    "SparseTensorDenseMatMul",
    lower=_same,
    static={2: "shape of the sparse matrix"},
    samples=[
        Sample("SparseTensorDenseMatMul", (_PLACES, floats(4), np.array([6, 4], np.int64), floats(4, 6))),
        Sample(
            "SparseTensorDenseMatMul",
            (_PLACES, floats(4), np.array([6, 4], np.int64), floats(3, 6)),
            {"adjoint_a": True, "adjoint_b": True},
        ),
    ],
    traits=Traits(in_place=False, multilinear=True),
)
def sparse_product(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``z, k n -> m n``: split elements ``z`` of the sparse matrix leave partial sums, columns ``n`` pass through."""
    dense = ("n", None) if op.attrs["adjoint_b"] else (None, "n")
    columns = op.outputs[0].shape[1]
    flops = 2.0 * inputs[1].elements * columns
    return movement(
        inputs,
        op.outputs,
        (dimensions(("z", None)), dimensions(("z",)), dimensions(dense)),
        (dimensions((None, "n")),),
        reduced=("z",),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=(0, 1, 2),
    )


def _rows(op: Operator, inputs: Sequence[TensorSpec]) -> int:
    return inputs[0].shape[0]


_SEGMENTS = ("SparseSegmentSumWithNumSegments", "SparseSegmentMeanWithNumSegments", "SparseSegmentSqrtNWithNumSegments")


@register_op(
    *_SEGMENTS,
    lower=_same,
    static={3: "number of segments"},
    samples=[
        Sample(op_type, (floats(4, 6), integers(6, high=4), np.array([0, 0, 1, 1, 2, 2], np.int32), 4))
        for op_type in _SEGMENTS
    ],
    traits=Traits(in_place=False, indices={1: _rows}),
)
def sparse_segments(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows that are looked up and taken together by segment: split look-ups leave partial sums, columns pass through.

    Means need all rows of a segment. Where TensorFlow gives a gradient of each row that is looked up once, how many
    there are differs between pieces, and nothing is split.
    """
    columns = passed(inputs[0].rank, whole={0})[1:]
    is_sum = "Sum" in op.type
    looked_up = dimensions(("n" if is_sum else None,))
    flops = float(inputs[1].elements * (inputs[0].elements // max(inputs[0].shape[0], 1)))
    rule = movement(
        inputs,
        op.outputs,
        (((), *columns), looked_up, looked_up),
        (((), *columns),),
        reduced=("n",) if is_sum else (),
        flops=flops,
        backward_flops=flops,
        saved_inputs=(1, 2),
    )
    return replace(rule, split=()) if op.attrs.get("sparse_gradient") else rule
