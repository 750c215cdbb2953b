"""Compiled loops over costs that find what they are all multiples of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["common_bits"]

_F = types.Array(types.float64, 1, "C", readonly=True)


@njit(types.int64(_F, types.float64), cache=True, nogil=True)
def common_bits(costs: Any, unit: float) -> int:
    """The bits that are set in any finite number, counted in units."""
    bits = 0
    for cost in costs:
        if cost < np.inf:
            bits |= np.int64(cost / unit)
    return bits
