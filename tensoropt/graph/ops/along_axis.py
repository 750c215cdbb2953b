"""Ops that need one dimension whole: orders, running sums, extremes' places."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def _axes(op: Operator, position: int, rank: int) -> set[int]:
    return {axis % rank for axis in np.asarray(op.static[position]).reshape(-1).tolist()}


@register_op(
    "ReverseV2",
    lower=_same,
    static={1: "axes"},
    samples=[Sample("ReverseV2", (floats(12, 6), [-1])), Sample("ReverseV2", (floats(2, 24, 3), [0, 2]))],
    traits=Traits(moves=True, in_place=False),
)
@register_op(
    "Roll",
    lower=_same,
    static={2: "axes"},
    samples=[
        Sample("Roll", (floats(12, 6), [2, -1], [1, 1])),
        Sample("Roll", (floats(4, 24), 1, -2)),
    ],
    traits=Traits(moves=True, in_place=False),
)
def reordered(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions that keep their order pass through."""
    rank = inputs[0].rank
    dims = passed(rank, whole=_axes(op, 2 if op.type == "Roll" else 1, rank))
    others = tuple(((),) * spec.rank for spec in inputs[1:])
    return movement(inputs, op.outputs, (dims, *others), (dims,), saved_inputs=tuple(range(1, len(inputs))))


@register_op(
    "ReverseSequence",
    lower=_same,
    samples=[
        Sample("ReverseSequence", (floats(12, 6, 8), integers(12, high=7)), {"seq_dim": 1, "batch_dim": 0}),
        Sample("ReverseSequence", (floats(4, 24), integers(24, high=5)), {"seq_dim": 0, "batch_dim": 1}),
    ],
    traits=Traits(moves=True, in_place=False, may_fail=True),
)
def reverse_sequence(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but that of the sequences pass through."""
    dims = passed(inputs[0].rank, whole={op.attrs["seq_dim"] % inputs[0].rank})
    return movement(inputs, op.outputs, (dims, (dims[op.attrs["batch_dim"]],)), (dims,), saved_inputs=(1,))


@register_op(
    "ArgMax",
    lower=_same,
    static={1: "axis"},
    samples=[
        Sample("ArgMax", (floats(12, 6), -1)),
        Sample("ArgMax", (floats(5, 8, 3), 0), {"output_type": "int32"}),
    ],
)
@register_op("ArgMin", lower=_same, static={1: "axis"}, samples=[Sample("ArgMin", (floats(12, 5, 6), 1))])
def arg_extreme(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but the searched one pass through."""
    (axis,) = _axes(op, 1, inputs[0].rank)
    dims = passed(inputs[0].rank, whole={axis})
    return movement(inputs, op.outputs, (dims,), (dims[:axis] + dims[axis + 1 :],), flops=inputs[0].elements)


@register_op(
    "Cumsum",
    lower=_same,
    static={1: "axis"},
    samples=[
        Sample("Cumsum", (floats(12, 6), -1)),
        Sample("Cumsum", (floats(5, 24), 0), {"exclusive": True, "reverse": True}),
    ],
    traits=Traits(in_place=False),
)
@register_op(
    "Cumprod",
    lower=_same,
    static={1: "axis"},
    samples=[Sample("Cumprod", (floats(12, 6, low=0.5, high=1.5), 1))],
    traits=Traits(in_place=False),
)
@register_op(
    "CumulativeLogsumexp",
    lower=_same,
    static={1: "axis"},
    samples=[Sample("CumulativeLogsumexp", (floats(6, 4), 1))],
    traits=Traits(in_place=False),
)
def running(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but that of the running sum pass through."""
    dims = passed(inputs[0].rank, whole=_axes(op, 1, inputs[0].rank))
    elements = inputs[0].elements
    return movement(
        inputs,
        op.outputs,
        (dims,),
        (dims,),
        flops=elements,
        backward_flops=elements,
        saved_inputs=() if op.type == "Cumsum" else (0,),
        saved_outputs=(0,) if op.type == "CumulativeLogsumexp" else (),
    )


@register_op(
    "TopKV2",
    lower=_same,
    static={1: "number of entries"},
    samples=[
        Sample("TopKV2", (floats(12, 8), 3), {"sorted": True}),
        Sample("TopKV2", (floats(4, 6, 5), 1), {"sorted": True}),
    ],
)
def top_k(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but the last pass through."""
    dims = passed(inputs[0].rank, whole={inputs[0].rank - 1})
    return movement(inputs, op.outputs, (dims,), (dims, dims), flops=inputs[0].elements, saved_outputs=(1,))


@register_op(
    "InTopKV2",
    lower=_same,
    static={2: "number of entries"},
    samples=[Sample("InTopKV2", (floats(24, 8), integers(24, high=8), 3))],
    traits=Traits(indices={1: lambda op, inputs: inputs[0].shape[1]}),
)
def in_top_k(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Examples are splittable, classes are not."""
    return movement(inputs, op.outputs, ((("n",), ()), (("n",),)), ((("n",),),), flops=inputs[0].elements)


@register_op(
    "NthElement",
    lower=_same,
    static={1: "place"},
    samples=[Sample("NthElement", (floats(6, 4), 1), {"reverse": True})],
)
def nth_element(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions but the last pass through."""
    dims = passed(inputs[0].rank, whole={inputs[0].rank - 1})
    elements = inputs[0].elements
    return movement(inputs, op.outputs, (dims,), (dims[:-1],), flops=elements, saved_inputs=(0,), saved_outputs=(0,))


@register_op(
    "LowerBound",
    "UpperBound",
    lower=_same,
    samples=[
        Sample(op_type, (np.arange(24, dtype=np.float32).reshape(4, 6) / 3, floats(4, 2, high=9)))
        for op_type in ("LowerBound", "UpperBound")
    ],
)
def bound(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Counts how many of ``n`` sorted numbers are below each of ``m``: every device counts those that it has."""
    steps = op.outputs[0].elements * math.log2(inputs[0].shape[1] + 1)
    dims = (("b",), ("n",)), (("b",), ("m",))
    return movement(inputs, op.outputs, dims, dims[1:], reduced=("n",), flops=steps)


def _inverse(ctx: Lowering, permutation: Any) -> Any:
    return ctx.slice_output(ctx.emit([permutation])[0])


@register_op(
    "InvertPermutation",
    lower=_inverse,
    samples=[Sample("InvertPermutation", (np.array([3, 0, 5, 1, 4, 2], np.int32),))],
    traits=Traits(in_place=False, may_fail=True),
)
def inverse_permutation(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Any number may land in any place, so each device inverts the whole and keeps its piece."""
    return movement(inputs, op.outputs, (((),),), (passed(1),))


@register_op(
    "IsotonicRegression",
    lower=_same,
    samples=[Sample("IsotonicRegression", (floats(12, 4),), {"output_dtype": "float32"})],
    traits=Traits(in_place=False),
)
def isotonic_regression(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows are fitted one by one."""
    dims = passed(2, whole={1})
    elements = inputs[0].elements
    return movement(
        inputs, op.outputs, (dims,), (dims, dims), flops=elements, backward_flops=elements, saved_outputs=(1,)
    )
