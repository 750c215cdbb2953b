"""Measures how fast one process computes and copies, with NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

__all__ = ["calls_per_s", "measure_flops_per_s", "measure_memory_bandwidth_bytes_per_s"]

_MATMUL_SIZE = 384  # 0.1 GFLOP: a few milliseconds on a core, and large enough for the processor's peak
_COPY_BYTES = 32 * 2**20  # larger than a core's share of any cache


def measure_flops_per_s(dtype: str, budget_s: float = 0.1) -> float:
    """Floating-point operations per second of a matrix product with NumPy, for about ``budget_s``."""
    left = np.ones((_MATMUL_SIZE, _MATMUL_SIZE), dtype=dtype)
    out = np.empty_like(left)
    return 2 * _MATMUL_SIZE**3 * calls_per_s(lambda: np.matmul(left, left, out=out), budget_s)


def measure_memory_bandwidth_bytes_per_s(budget_s: float = 0.1) -> float:
    """Bytes read and written per second while copying a large array, for about ``budget_s``."""
    source = np.ones(_COPY_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    return 2 * _COPY_BYTES * calls_per_s(lambda: np.copyto(target, source), budget_s)


def calls_per_s(function: Callable[[], object], budget_s: float) -> float:
    """Calls per second, of as many as fit into the budget and at least one; a first call warms up."""
    function()
    calls, start = 0, time.perf_counter()
    while True:
        function()
        calls += 1
        elapsed_s = time.perf_counter() - start
        if elapsed_s >= budget_s:
            return calls / elapsed_s
