"""The accepted differences of values by rounding: one measure for ``verify`` and for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["TOLERANCES", "Expected", "Tolerance", "difference", "expected_gradients", "largest", "tolerance_of"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The differences of a value that rounding may cause.

    Attributes:
        relative: The largest difference, over the largest absolute value of the tensor.
        noise: What rounding leaves of a value that should be 0, over the largest absolute value of the numbers that it
            is computed from. A sum of numbers that cancel is all rounding: relative to itself it may be anything.
    """

    relative: float
    noise: float


# Where float64 and float32 are added up, in another order on each side, every term is rounded; 16-bit floats are added
# up in float32 and rounded once, when a kernel ends. So wide floats get many roundings of their own, narrow ones few.
TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-9, 64 * 2.0**-52),
    "float32": Tolerance(5e-5, 64 * 2.0**-23),
    "float16": Tolerance(1e-2, 2 * 2.0**-10),
    "bfloat16": Tolerance(5e-2, 2 * 2.0**-7),
}
_PARTS = {"complex128": "float64", "complex64": "float32"}
_EXACT = Tolerance(0.0, 0.0)


def tolerance_of(dtypes: Iterable[str]) -> Tolerance:
    """The tolerance of a value that is computed in these dtypes: that of the coarsest float among them.

    Integers and truth values are not rounded: where there is nothing else, the tolerance is 0.
    """
    known = (TOLERANCES.get(_PARTS.get(dtype, dtype), _EXACT) for dtype in dtypes)
    return max(known, key=lambda tolerance: tolerance.relative, default=_EXACT)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected value of a tensor, and the scale of differences from it.

    Attributes:
        value: The expected value.
        scale: The value that differences are relative to.
        noise: The largest absolute difference that is accepted whatever the scale.
    """

    value: np.ndarray
    scale: float
    noise: float = 0.0

    @classmethod
    def of(cls, value: Any, noise: float = 0.0) -> Expected:
        """A value whose differences are relative to the largest of its numbers."""
        return cls(np.asarray(value), largest(value), noise)

    @classmethod
    def changed(cls, before: Any, after: Any, tolerance: Tolerance, of: float = 0.0) -> Expected:
        """A value that a step has changed: differences are relative to the change, which may be small beside it.

        Args:
            before: the step.
            after: it.
            tolerance: of the value.
            of: the largest of the numbers that the change is computed from, where these may cancel.
        """
        change = largest(np.subtract(after, before, dtype=np.complex128))
        return cls(np.asarray(after), change, tolerance.noise * max(largest(before), largest(after), of))

    def part(self, slices: tuple[slice, ...]) -> Expected:
        """A piece of the value, held against the same."""
        return Expected(self.value[slices], self.scale, self.noise)


def expected_gradients(gradients: Sequence[Any], tolerance: Tolerance) -> list[Expected]:
    """The gradients of a step.

    That of a bias that changes nothing (of the keys in attention, say) is what rounding leaves of terms that cancel.
    How large these are shows in the other gradients.
    """
    noise = tolerance.noise * max(map(largest, gradients), default=0.0)
    return [Expected.of(gradient, noise) for gradient in gradients]


def largest(value: Any) -> float:
    """The largest absolute value that is finite."""
    array = np.asarray(value)
    sizes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    return float(np.max(sizes[np.isfinite(sizes)], initial=0.0))


def difference(mine: Any, expected: Any, tolerance: Tolerance | None = None) -> float:
    """The largest difference of a value from what it must be, relative; rounding makes up to ``tolerance.relative``.

    Integers and truth values differ by infinity or not at all; so do values of which one is not finite where the other
    is, and values of different shapes.

    Args:
        mine: the value.
        expected: what it must be: an :class:`Expected`, or a value alone.
        tolerance: by default that of the coarser of the two dtypes.
    """
    known = expected if isinstance(expected, Expected) else Expected.of(expected)
    a, b = np.asarray(mine), known.value
    if a.shape != b.shape:
        return float("inf")
    if a.size == 0:
        return 0.0
    if a.dtype.kind in "biuSUO" and b.dtype.kind in "biuSUO":
        return 0.0 if np.array_equal(a, b) else float("inf")
    if tolerance is None:
        tolerance = tolerance_of((a.dtype.name, b.dtype.name))
    wide = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    a, b = a.astype(wide), b.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = float(np.max(np.where(same, 0.0, np.abs(a - b))))
    if apart == 0.0:
        return 0.0
    # So that relative * unit is all that is allowed.
    unit = known.scale + (known.noise / tolerance.relative if tolerance.relative else 0.0)
    return apart / unit if np.isfinite(apart) and unit > 0.0 else float("inf")
