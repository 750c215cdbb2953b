"""Compiled loops over costs that find what they are all multiples of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["common_bits", "finite_range", "on_grids"]

_F = types.Array(types.float64, 1, "C", readonly=True)
_OUT_F = types.Array(types.float64, 1, "C")


@njit(types.UniTuple(types.float64, 2)(_F), cache=True, nogil=True)
def finite_range(costs: Any) -> Any:
    """The least and the largest finite number; 0.0 if there is none."""
    least, largest = np.inf, -np.inf
    for cost in costs:
        if cost < np.inf:
            least, largest = min(least, cost), max(largest, cost)
    return (least, largest) if least <= largest else (0.0, 0.0)


@njit(types.int64(_F, types.float64), cache=True, nogil=True)
def common_bits(costs: Any, unit: float) -> int:
    """The bits that are set in any finite number, counted in units; -1 if one is no whole number of them."""
    bits = 0
    for cost in costs:
        if cost < np.inf:
            count = cost / unit
            whole = np.int64(count)
            if whole != count:
                return -1
            bits |= whole
    return bits


@njit(types.Tuple((_OUT_F, _OUT_F, types.boolean))(_F, _F, types.float64, types.float64), cache=True, nogil=True)
def on_grids(time: Any, memory: Any, time_grid: float, memory_grid: float) -> Any:
    """Costs as multiples of their grids, if these are not 0.0; +inf in both where either is.

    Returns:
        time, memory, and whether no memory is taken anywhere.
    """
    out_time, out_memory = np.empty(len(time)), np.empty(len(time))
    free = True
    for i in range(len(time)):
        one, other = time[i], memory[i]
        if time_grid > 0.0:
            one = np.rint(one / time_grid) * time_grid
        if memory_grid > 0.0:
            other = np.rint(other / memory_grid) * memory_grid
        if not (one < np.inf and other < np.inf):
            one = other = np.inf
        free = free and other == 0.0
        out_time[i], out_memory[i] = one, other
    return out_time, out_memory, free
