"""How far apart two values may be by rounding: one measure for ``verify`` and for the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["TOLERANCES", "Tolerance", "difference", "tolerance_of"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding may do to a value.

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


def difference(
    mine: Any, theirs: Any, tolerance: Tolerance | None = None, *, scale: float | None = None, noise: float = 0.0
) -> float:
    """The largest difference of two values, relative to the second; rounding explains up to ``tolerance.relative``.

    Integers and truth values differ by infinity or not at all; so do values of which one is not finite where the other
    is, and values of different shapes.

    Args:
        mine: the value in question.
        theirs: what it must be.
        tolerance: that of the coarser one's dtype by default.
        scale: what differences are relative to: by default the largest absolute value of ``theirs`` that is finite.
        noise: what is no difference, whatever the scale: ``tolerance.noise`` times the largest of the numbers that the
            value is computed from, where they may cancel.
    """
    a, b = np.asarray(mine), np.asarray(theirs)
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
    if scale is None:
        sizes = np.abs(b[np.isfinite(b)])
        scale = float(sizes.max()) if sizes.size else 0.0
    # So that relative * unit is all that is allowed.
    unit = scale + (noise / tolerance.relative if tolerance.relative else 0.0)
    return apart / unit if np.isfinite(apart) and unit > 0.0 else float("inf")
