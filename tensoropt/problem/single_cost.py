"""Problems with one cost, the other one deciding between equals: their frontiers are single points, found quickly."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.problem.arrays import FloatArray, sum_over
from tensoropt.problem.problem import Problem

__all__ = ["single_cost"]

_TIE = 1e-9


def single_cost(problem: Problem, cost: Literal["time", "memory"]) -> Problem:
    """The problem whose time is one cost and a trace of the other, and whose memory is nothing.

    The best strategy has the least of that cost within 1e-9 of it, and of those that have the least of the other.

    Raises:
        InfeasibleError: a table has only infinite costs.
    """
    times = (*problem.node_time_s, *problem.edge_time_s, np.array(problem.constant_time_s))
    memories = (*problem.node_memory_bytes, *problem.edge_memory_bytes, np.array(problem.constant_memory_bytes))
    wanted, other = (times, memories) if cost == "time" else (memories, times)
    least, most = sum_over(wanted, _least), sum_over(other, _most)
    if not np.isfinite(least):
        raise InfeasibleError(f"Problem: no strategy is possible, a table has only infinite {cost}. Correct it.")
    trace = _TIE * least / most if most > 0 else 0.0

    def merged(time_s: FloatArray, memory_bytes: FloatArray, _: int) -> tuple[FloatArray, FloatArray]:
        exists = np.isfinite(time_s) & np.isfinite(memory_bytes)
        whole, part = (time_s, memory_bytes) if cost == "time" else (memory_bytes, time_s)
        total = np.where(exists, whole + trace * np.where(exists, part, 0.0), np.inf)
        return total, np.where(exists, 0.0, np.inf)

    return problem.with_tables(merged)


def _least(table: FloatArray) -> float:
    finite = table[np.isfinite(table)]
    return float(finite.min()) if len(finite) else np.inf


def _most(table: FloatArray) -> float:
    finite = table[np.isfinite(table)]
    return float(finite.max()) if len(finite) else np.inf
