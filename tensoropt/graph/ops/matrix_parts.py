"""Diagonals and bands of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "MatrixBandPart",
    lower=_same,
    samples=[
        Sample("MatrixBandPart", (floats(12, 4, 5), integers(high=4), integers(low=-1, high=0))),
        Sample("MatrixBandPart", (floats(6, 2, 8, 8), integers(dtype="int64"), integers(dtype="int64"))),
    ],
)
@register_op(
    "MatrixDiagV3",
    lower=_same,
    static={1: "diagonals", 2: "number of rows", 3: "number of columns"},
    samples=[
        Sample("MatrixDiagV3", (floats(12, 4), 0, -1, -1, floats())),
        Sample("MatrixDiagV3", (floats(6, 2, 4), [-1, 0], 4, 4, floats())),
    ],
)
@register_op(
    "MatrixDiagPartV3",
    lower=_same,
    static={1: "diagonals"},
    samples=[
        Sample("MatrixDiagPartV3", (floats(24, 3, 4), 1, floats())),
        Sample("MatrixDiagPartV3", (floats(12, 4, 4), [-1, 1], floats())),
    ],
)
@register_op(
    "MatrixSetDiagV3",
    lower=_same,
    static={2: "diagonals"},
    samples=[Sample("MatrixSetDiagV3", (floats(12, 4, 4), floats(12, 4), 0))],
)
@register_op(
    "MatrixDiag",
    "MatrixDiagPart",
    "MatrixSetDiag",
    lower=_same,
    samples=[
        Sample("MatrixDiag", (floats(6, 2),)),
        Sample("MatrixDiagPart", (floats(6, 2, 3),)),
        Sample("MatrixSetDiag", (floats(6, 2, 2), floats(6, 2))),
    ],
)
def matrix_part(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Batches of matrices are splittable, matrices are not."""
    batch = max(inputs[0].rank, op.outputs[0].rank) - 2
    dims = [passed(spec.rank, whole=range(batch, spec.rank)) for spec in (*inputs, *op.outputs)]
    places = tuple(place for place, spec in enumerate(inputs) if not spec.is_differentiable)
    return movement(inputs, op.outputs, dims[: len(inputs)], dims[len(inputs) :], saved_inputs=places)


def _piece(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs)[0])


@register_op("Diag", lower=_piece, samples=[Sample("Diag", (floats(6),))])
@register_op("DiagPart", lower=_piece, samples=[Sample("DiagPart", (floats(6, 6),))])
def diagonal(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A tensor of which one dimension is on both sides of a diagonal is made whole; each device keeps its piece."""
    return movement(inputs, op.outputs, (((),) * inputs[0].rank,), (passed(op.outputs[0].rank),))
