"""Costs rounded to one power of two, so that every sum of them is exact.

Repeated layers give many strategies whose costs are equal on paper. Floating-point sums of them differ in the
last bit, depending on the order of addition; a frontier would then keep points that differ by nothing but
that noise, and two exact algorithms would disagree. Multiples of one power of two that stay below 2^53 of it
add exactly in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensoropt.search.problem import FloatArray, Problem, distinct_tables

__all__ = ["Grid", "coarsest_grid", "on_grid", "problem_grids"]

Grid = float
"""A power of two; 0.0 where no grid is fine enough and costs stay as they are."""

_RELATIVE_LOSS = 1e-12
"""Rounding may change no total by more than this share of it. Cost models are a million times less
accurate."""


def problem_grids(problem: Problem) -> tuple[Grid, Grid]:
    """The grids of a problem's times and of its memories."""
    return (
        _grid([*problem.node_time_s, *problem.edge_time_s]),
        _grid([*problem.node_memory_bytes, *problem.edge_memory_bytes]),
    )


def _grid(arrays: Sequence[FloatArray]) -> Grid:
    # Shared tables are read once, and broadcast zeros not at all.
    counted = [(a, n) for a, n in zip(*distinct_tables(arrays), strict=True) if not a.strides or any(a.strides)]
    ranges = np.array([_finite_range(table) for table, _ in counted]).reshape(-1, 2)
    counts = np.array([count for _, count in counted])
    least, largest = (counts @ ranges).tolist()
    if largest == 0.0:
        return 0.0
    grid = math.ldexp(1.0, max(math.frexp(largest)[1] - 52, -1022))
    if counts.sum() * grid / 2 <= _RELATIVE_LOSS * least:
        return grid
    return _integer_grid([table for table, _ in counted], largest)


def _finite_range(array: FloatArray) -> tuple[float, float]:
    """The least and the largest finite number, 0.0 if there is none."""
    from tensoropt.search.grid_kernels import finite_range

    found: tuple[float, float] = finite_range(np.ascontiguousarray(array).reshape(-1))
    return found


def _integer_grid(tables: Sequence[FloatArray], largest: float) -> Grid:
    """1.0 where all costs are whole numbers whose sums are exact anyway, otherwise 0.0."""
    from tensoropt.search.grid_kernels import common_bits

    if largest < 2.0**52 and all(common_bits(np.ascontiguousarray(a).reshape(-1), 1.0) >= 0 for a in tables):
        return 1.0
    return 0.0


def on_grid(array: FloatArray, grid: Grid) -> FloatArray:
    """``array`` rounded to multiples of ``grid``."""
    if grid == 0.0:
        return array
    rounded: FloatArray = np.rint(array / grid) * grid
    return rounded


def coarsest_grid(arrays: Sequence[FloatArray]) -> Grid:
    """The largest power of two of which all finite costs are multiples; 0.0 if they need more than 62 bits.

    Tables that are one number throughout have no say, since they change no difference. Two different sums of such
    costs are at least this far apart.
    """
    from tensoropt.search.grid_kernels import common_bits

    tables = [table for table in distinct_tables(arrays)[0] if any(table.strides) or table.size == 1]
    largest = max((_finite_range(table)[1] for table in tables), default=0.0)
    if largest == 0.0:
        return 0.0
    unit = math.ldexp(1.0, max(math.frexp(largest)[1] - 62, -1022))
    bits = 0
    for table in tables:
        found = int(common_bits(np.ascontiguousarray(table).reshape(-1), unit))
        if found < 0:
            return 0.0
        bits |= found
    return unit * (bits & -bits)
