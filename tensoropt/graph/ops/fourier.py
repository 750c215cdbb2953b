"""Fourier transforms over the last dimensions, which stay whole; all before them are split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

# By the end of the op type's name.
_TRANSFORMED = {"2D": 2, "3D": 3}


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


def _sample(op_type: str) -> Sample:
    rank = _TRANSFORMED.get(op_type[-2:], 1)
    sizes = (4, 2, 2)[:rank]
    if op_type.startswith("RFFT"):
        return Sample(op_type, (floats(2, 3, *sizes), sizes), {"Tcomplex": "complex64"})
    if op_type.startswith("IRFFT"):
        halves = (*sizes[:-1], sizes[-1] // 2 + 1)
        return Sample(op_type, (floats(2, 3, *halves, dtype="complex64"), sizes), {"Treal": "float32"})
    return Sample(op_type, (floats(2, 3, *sizes, dtype="complex64"),))


_COMPLEX = ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
_REAL = ("RFFT", "RFFT2D", "RFFT3D", "IRFFT", "IRFFT2D", "IRFFT3D")


@register_op(*_COMPLEX, lower=_same, samples=[*map(_sample, _COMPLEX)], traits=Traits(in_place=False))
@register_op(*_REAL, lower=_same, static={1: "length"}, samples=[*map(_sample, _REAL)], traits=Traits(in_place=False))
def fourier(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A transform of ``n`` numbers takes about ``5 n log2 n`` operations."""
    x, y = inputs[0], op.outputs[0]
    rank = _TRANSFORMED.get(op.type[-2:], 1)
    dims = passed(x.rank, whole=range(x.rank - rank, x.rank))
    length = math.prod(max(x.shape[i], y.shape[i]) for i in range(-rank, 0))
    flops = 5.0 * max(x.elements, y.elements) * math.log2(max(length, 2))
    return movement(inputs, op.outputs, (dims,), (dims,), flops=flops, backward_flops=flops)
