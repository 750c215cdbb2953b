"""Compiled loops over costs that find what they are all multiples of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["common_bits", "finite_range"]

_F = types.Array(types.float64, 1, "C", readonly=True)


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
