"""Factors, inverses and solutions of matrices. Batches are split, matrices are not; right-hand sides by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

_NO_ATTRS = MappingProxyType[str, Any]({})
_MATRICES = floats(6, 3, 3)


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


def _definite(batch: int, size: int) -> np.ndarray:
    """Symmetric matrices of positive eigenvalues, none of them twice."""
    x = np.sin(np.arange(batch * size * size, dtype=np.float64)).reshape(batch, size, size)
    return (x @ np.swapaxes(x, 1, 2) + np.diag(np.arange(1.0, size + 1))).astype(np.float32)


def _is_without_vectors(op: Operator) -> bool:
    """Tells whether the op computes only singular values or eigenvalues, without vectors."""
    return op.attrs.get("compute_uv") is False or op.attrs.get("compute_v") is False


def _factor(ctx: Lowering, x: Any) -> list[Any]:
    made = ctx.emit([x])
    return [made[0], *[None] * (len(made) - 1)] if _is_without_vectors(ctx.op) else made


@dataclass(frozen=True, slots=True)
class _Factor:
    """An op on each matrix of a batch.

    Attributes:
        type: its op type.
        flops: arithmetic operations, by the cube of the matrix's size.
        saved_inputs: what TensorFlow's gradient reads of the input.
        saved_outputs: and of the outputs.
        matrices: the sample's; by default 6 of 3 rows and columns.
        attrs: the samples' attributes.
    """

    type: str
    flops: float
    saved_inputs: tuple[int, ...] = ()
    saved_outputs: tuple[int, ...] = ()
    matrices: Any = _MATRICES
    attrs: tuple[MappingProxyType[str, Any], ...] = (_NO_ATTRS,)

    def declare(self) -> None:
        """Registers it."""
        samples = [Sample(self.type, (self.matrices,), attrs) for attrs in self.attrs]
        register_op(self.type, lower=_factor, samples=samples, traits=Traits(in_place=False, may_fail=True))(self._rule)

    def _rule(self, op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
        (x,) = inputs
        batch = [f"b{i}" for i in range(x.rank - 2)]
        named = tuple((name,) for name in batch)
        # Vectors that are not asked for are empty.
        without = _is_without_vectors(op)
        outputs = [
            ((),) * spec.rank if without and i else (*named, *((),) * (spec.rank - len(batch)))
            for i, spec in enumerate(op.outputs)
        ]
        flops = self.flops * x.elements * max(x.shape[-2:])
        return movement(
            inputs,
            op.outputs,
            ((*named, (), ()),),
            outputs,
            internal=batch if without else (),
            flops=flops,
            backward_flops=2 * flops,
            # Without vectors TensorFlow computes them anew for the gradient.
            saved_inputs=(0,) if without else self.saved_inputs,
            saved_outputs=() if without else self.saved_outputs,
        )


def _attrs(**values: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType(values)


_FACTORS = (
    _Factor("Cholesky", 0.33, (), (0,), _definite(6, 3)),
    _Factor("MatrixInverse", 2.0, (), (0,), attrs=(_NO_ATTRS, _attrs(adjoint=True))),
    _Factor("MatrixDeterminant", 0.67, (0,), (0,)),
    _Factor("LogMatrixDeterminant", 0.67, (0,)),
    _Factor("Qr", 2.67, (), (0, 1)),
    _Factor("Svd", 20.0, (), (0, 1, 2), floats(6, 3, 2), (_attrs(compute_uv=True), _attrs(compute_uv=False))),
    _Factor("SelfAdjointEigV2", 9.0, (), (0, 1), _definite(6, 3), (_attrs(compute_v=True), _attrs(compute_v=False))),
    _Factor("Eig", 25.0, (), (0, 1), attrs=(_attrs(Tout="complex64"),)),
    _Factor("Lu", 0.67),
    _Factor("MatrixSquareRoot", 25.0, (), (0,), _definite(6, 2)),
    _Factor("MatrixLogarithm", 40.0, matrices=_definite(6, 2).astype(np.complex64)),
)

for _one in _FACTORS:
    _one.declare()


def _solved(op: Operator, inputs: Sequence[TensorSpec], *, flops: float, saved_inputs: tuple[int, ...]) -> OpRule:
    """Batches, which may broadcast, and columns ``k`` of the right-hand side, which is the last matrix."""
    output = op.outputs[0]
    batch = output.rank - 2

    def dims_of(spec: TensorSpec, *matrix: tuple[str, ...]) -> Dims:
        skipped = batch - (spec.rank - 2)
        return (
            *(
                (f"b{skipped + i}",) if extent == output.shape[skipped + i] else ()
                for i, extent in enumerate(spec.shape[:-2])
            ),
            *matrix,
        )

    matrices = [spec for spec in inputs if spec.rank >= 2]
    dims = [dims_of(spec, (), ()) for spec in matrices[:-1]]
    dims.append(dims_of(matrices[-1], (), ("k",)))
    dims += [((),) * spec.rank for spec in inputs[len(matrices) :]]
    return movement(
        inputs,
        op.outputs,
        dims,
        (dims_of(output, (), ("k",)),),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=saved_inputs,
        saved_outputs=(0,),
    )


@register_op(
    "MatrixSolve",
    lower=_same,
    samples=[
        Sample("MatrixSolve", (floats(6, 3, 3), floats(6, 3, 2))),
        Sample("MatrixSolve", (floats(3, 3), floats(3, 4)), {"adjoint": True}),
    ],
    traits=Traits(in_place=False, may_fail=True),
)
def solve(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Factors of each matrix, then two triangular solves."""
    flops = (0.67 * inputs[0].elements + 2.0 * op.outputs[0].elements) * inputs[0].shape[-1]
    return _solved(op, inputs, flops=flops, saved_inputs=(0,))


@register_op(
    "MatrixTriangularSolve",
    lower=_same,
    samples=[
        Sample("MatrixTriangularSolve", (_definite(6, 3), floats(6, 3, 2))),
        Sample("MatrixTriangularSolve", (_definite(1, 3), floats(2, 3, 2)), {"lower": False, "adjoint": True}),
    ],
    traits=Traits(in_place=False, may_fail=True),
)
@register_op(
    "BandedTriangularSolve",
    lower=_same,
    samples=[Sample("BandedTriangularSolve", (floats(6, 2, 3, low=1, high=2), floats(6, 3, 2)))],
    traits=Traits(in_place=False, may_fail=True),
)
@register_op(
    "TridiagonalSolve",
    lower=_same,
    samples=[Sample("TridiagonalSolve", (_definite(6, 3), floats(6, 3, 2)), {"partial_pivoting": True})],
    traits=Traits(in_place=False, may_fail=True),
)
def triangular_solve(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Back substitution, for each column."""
    return _solved(op, inputs, flops=float(op.outputs[0].elements * inputs[0].shape[-2]), saved_inputs=(0,))


@register_op(
    "TridiagonalMatMul",
    lower=_same,
    samples=[Sample("TridiagonalMatMul", (*(floats(6, 1, 3) for _ in range(3)), floats(6, 3, 2)))],
    traits=Traits(in_place=False),
)
def tridiagonal_product(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Three products a row and column."""
    rule = _solved(op, inputs, flops=5.0 * op.outputs[0].elements, saved_inputs=(0, 1, 2, 3))
    return replace(rule, saved_outputs=())


@register_op(
    "MatrixSolveLs",
    lower=_same,
    samples=[
        Sample("MatrixSolveLs", (floats(6, 4, 2), floats(6, 4, 3), np.float64(0.5)), {"fast": True}),
    ],
    traits=Traits(in_place=False, may_fail=True),
)
def least_squares(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The normal equations of each matrix, or its orthogonal factors."""
    flops = 2.0 * inputs[0].elements * (inputs[0].shape[-1] + inputs[1].shape[-1])
    return _solved(op, inputs, flops=flops, saved_inputs=(0, 1, 2))


@register_op(
    "Cross",
    lower=_same,
    samples=[Sample("Cross", (floats(4, 6, 3), floats(4, 6, 3)))],
    traits=Traits(in_place=False, multilinear=True),
)
def cross(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The product of vectors of three numbers, which stay whole."""
    dims: Dims = (*((f"d{i}",) for i in range(inputs[0].rank - 1)), ())
    flops = 3.0 * inputs[0].elements
    return movement(
        inputs, op.outputs, (dims, dims), (dims,), flops=flops, backward_flops=2 * flops, saved_inputs=(0, 1)
    )
