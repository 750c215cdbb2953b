"""Small operators that the contract test runs: an op type, its operands and its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["Operand", "Sample", "booleans", "floats", "integers"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand with random contents.

    Attributes:
        shape: its shape.
        dtype: TensorFlow's name of its dtype.
        low: least value.
        high: bound of the values (not reached for integers).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One operator.

    Attributes:
        type: TensorFlow's op type.
        operands: all operands in TensorFlow's order: an :class:`Operand`, a list of them (for a list argument such
            as ConcatV2's values), or a fixed value for a static one.
        attrs: attributes as ``tf.raw_ops`` takes them; dtypes by their names.
    """

    type: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def floats(*shape: int, low: float = -1.0, high: float = 1.0, dtype: str = "float32") -> Operand:
    """A floating-point operand."""
    return Operand(shape, dtype, low, high)


def integers(*shape: int, high: int = 8, low: int = 0, dtype: str = "int32") -> Operand:
    """An integer operand with values from ``low`` to ``high - 1``."""
    return Operand(shape, dtype, low, high)


def booleans(*shape: int) -> Operand:
    """A boolean operand."""
    return Operand(shape, "bool", 0, 2)
