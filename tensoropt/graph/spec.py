"""Shape and dtype of a tensor, and how tensors are named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensoropt.errors import GraphError

__all__ = ["TensorId", "TensorSpec", "is_differentiable", "sum_dtype"]

_ITEM_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
# Sums of these are made in parts of another: what is rounded in every part would add up.
_SUMMED_IN = {"float16": "float32", "bfloat16": "float32"}
_DIFFERENTIABLE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def sum_dtype(dtype: str) -> str:
    """The dtype of the parts of a sum over devices: that of the sum, and float32 for 16-bit floats.

    Example:
        >>> sum_dtype("bfloat16"), sum_dtype("float64")
        ('float32', 'float64')
    """
    return _SUMMED_IN.get(dtype, dtype)


def is_differentiable(dtype: Any) -> bool:
    """True if gradients flow through tensors of a dtype: TensorFlow's, or its name for one."""
    return str(getattr(dtype, "name", dtype)).removesuffix("_ref") in _DIFFERENTIABLE


class TensorId(NamedTuple):
    """One output of one operator."""

    op: str
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which has no meaning here

    def __str__(self) -> str:
        return f"{self.op}:{self.index}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Static shape and dtype (TensorFlow's name for it) of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(extent < 0 for extent in self.shape):
            raise GraphError(f"TensorSpec: shape {self.shape} has a negative size.")

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; dtypes of no fixed size, such as string or resource, count as 0."""
        return _ITEM_SIZES.get(self.dtype, 0)

    @property
    def is_movable(self) -> bool:
        """True if its bytes are known before a run, so that who has none of it can make room for it."""
        return self.itemsize > 0 and all(self.shape)

    @property
    def sum_itemsize(self) -> int:
        """Bytes of an element of a part of a sum over devices (:func:`sum_dtype`)."""
        return _ITEM_SIZES.get(sum_dtype(self.dtype), 0)

    @property
    def widened(self) -> TensorSpec:
        """The same tensor in the dtype in which parts of sums are made (:func:`sum_dtype`)."""
        return TensorSpec(self.shape, sum_dtype(self.dtype))

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize

    @property
    def is_differentiable(self) -> bool:
        """True if gradients flow through tensors of this dtype."""
        return is_differentiable(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"
