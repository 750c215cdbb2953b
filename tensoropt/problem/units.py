"""Costs as whole multiples of one power of two, their *unit*, so that every sum of them is exact.

Repeated layers give many strategies whose costs are equal on paper. Floating-point sums of them differ in the
last bit, depending on the order of addition; a frontier would then keep points that differ by nothing but
that noise, and two exact algorithms would disagree. Multiples of one power of two that stay below 2^53 of it
add exactly in any order. A `Problem` rounds its costs to such units when it is made; whoever adds them, or takes
one from another, need not think of it any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.problem.arrays import FloatArray, distinct_tables

__all__ = ["coarsest_step", "on_grid", "unit_of"]

_BITS = 52
"""Sums take so many; one more is left, in which differences of messages and bounds are still exact."""

_LOSS = 1e-4
"""Rounding may change no cost of a strategy by more than this share of what the least of each table add up to. Of real
models it changes some parts in 10^12."""


def unit_of(subject: str, tables: Sequence[FloatArray]) -> float:
    """The power of two that tables of costs are rounded to, of each of which a strategy has one entry.

    Args:
        subject: what they are, for errors.
        tables: +inf in them is what does not exist.

    Returns:
        0.0 if nothing costs anything.

    Raises:
        ProblemError: small costs would be lost beside the largest ones.
    """
    # Shared tables are read once, and of broadcast numbers one.
    counted = [(_without_repetition(a), n) for a, n in zip(*distinct_tables(tables), strict=True)]
    terms = sum(n for _, n in counted)
    largest = sum(n * _largest(table) for table, n in counted)
    if largest == 0.0:
        return 0.0
    if largest < math.inf:
        # Rounding may add half a unit for each term.
        unit = math.ldexp(1.0, max(math.frexp(largest * (1.0 + terms * 2.0**-_BITS))[1] - _BITS, -1022))
        if terms * unit / 2 <= _LOSS * sum(n * _least(table) for table, n in counted):
            return unit
        lost = sum(n * _most_lost(table, unit) for table, n in counted)
        if lost == 0.0 or lost <= _LOSS * sum(n * _least_positive(table) for table, n in counted):
            return unit
    most = 2.0**_BITS * _LOSS / terms
    raise ProblemError(
        f"Problem {subject}: costs may differ by a factor of some {most:.1g} at most with {terms} tables, or "
        f"their sums are not exact, but the largest of each add up to {largest:.6g}. Use +inf for what must not be, "
        "instead of a large number."
    )


def _without_repetition(table: FloatArray) -> FloatArray:
    """One entry of a number that is broadcast, and tables that are none."""
    return table if any(table.strides) else table[(slice(1),) * table.ndim]


def _largest(table: FloatArray) -> float:
    """The largest finite number, 0.0 if there is none."""
    largest = float(table.max(initial=0.0))
    return largest if largest < math.inf else float(table[np.isfinite(table)].max(initial=0.0))


def _least(table: FloatArray) -> float:
    """The least number, 0.0 if none is finite."""
    least = float(table.min(initial=math.inf))
    return least if least < math.inf else 0.0


def _least_positive(table: FloatArray) -> float:
    """The least number above zero, 0.0 if there is none that is finite."""
    return _least(table[table > 0.0])


def _most_lost(table: FloatArray, unit: float) -> float:
    """The most that rounding changes."""
    finite = table[np.isfinite(table)]
    return float(np.abs(finite - on_grid(finite, unit)).max(initial=0.0))


def on_grid(costs: FloatArray, unit: float) -> FloatArray:
    """``costs`` rounded to multiples of ``unit``; the same object if they are such, or if the unit is 0.0."""
    if unit == 0.0:
        return costs
    given = _without_repetition(costs) / unit
    whole = np.rint(given)
    return costs if np.array_equal(given, whole) else np.broadcast_to(whole * unit, costs.shape)


def coarsest_step(tables: Sequence[FloatArray], unit: float) -> float:
    """The largest power of two of which all finite costs are multiples.

    Tables that are one number throughout have no say, since they change no difference. Two different sums of such
    costs are at least this far apart.

    Args:
        tables: multiples of ``unit``.
        unit: see `unit_of`.

    Returns:
        0.0 if no table has a say.
    """
    # Imported here because it takes Numba.
    from tensoropt.problem.unit_kernels import common_bits

    several = [table for table in distinct_tables(tables)[0] if any(table.strides) or table.size == 1]
    bits = 0
    for table in several if unit else ():
        bits |= int(common_bits(np.ascontiguousarray(table).reshape(-1), unit))
    return unit * (bits & -bits)
