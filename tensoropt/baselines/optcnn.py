"""OptCNN (Jia et al. 2018): the strategy of least time, whatever memory it takes."""

from __future__ import annotations

import time

import numpy as np

from tensoropt.baselines.baseline import single
from tensoropt.errors import InfeasibleError
from tensoropt.search.cells import with_repeated_cells
from tensoropt.search.problem import FloatArray, Problem
from tensoropt.search.registry import get_search
from tensoropt.search.result import Frontier
from tensoropt.search.space import SearchSpace

__all__ = ["fastest", "optcnn"]

# Memory decides between strategies whose times differ by less than this share.
_TIE = 1e-9


def optcnn(space: SearchSpace) -> Frontier:
    """The fastest strategy, by dynamic programming over time alone.

    OptCNN's own eliminations need a graph that they reduce to two nodes; here the search is frontier tracking's, on
    which time is the only cost, so any graph will do and the result is the same.
    """
    return fastest(with_repeated_cells(space))


def fastest(problem: Problem) -> Frontier:
    """The strategy of least time (within 1e-9 of it), of equally fast ones that of least memory.

    Raises:
        InfeasibleError: no strategy is possible.
    """
    began = time.perf_counter()
    found = get_search("ft")(_time_only(problem))
    return single(problem, found.assignments[-1], began, found.alternatives[-1])


def _time_only(problem: Problem) -> Problem:
    """The problem whose time is time and a trace of memory, and whose memory is nothing."""
    least_s = _sum_of(problem.node_time_s, np.min) + _sum_of(problem.edge_time_s, np.min)
    most_bytes = _sum_of(problem.node_memory_bytes, np.max) + _sum_of(problem.edge_memory_bytes, np.max)
    if not np.isfinite(least_s):
        raise InfeasibleError("Problem: no strategy is possible, a table has only infinite times. Correct it.")
    seconds_per_byte = _TIE * least_s / most_bytes if most_bytes > 0 else 0.0

    def merged(time_s: FloatArray, memory_bytes: FloatArray, _: int) -> tuple[FloatArray, FloatArray]:
        exists = np.isfinite(time_s) & np.isfinite(memory_bytes)
        sum_s = np.where(exists, time_s + seconds_per_byte * np.where(exists, memory_bytes, 0.0), np.inf)
        return sum_s, np.where(exists, 0.0, np.inf)

    return problem.with_tables(merged)


def _sum_of(tables: tuple[FloatArray, ...], what: object) -> float:
    """The sum of every table's least or greatest finite entry; infinite where a table has no finite one."""
    known: dict[int, float] = {}
    for table in tables:
        if id(table) not in known:
            finite = table[np.isfinite(table)]
            known[id(table)] = float(what(finite)) if len(finite) else np.inf  # type: ignore[operator]
    return sum(known[id(table)] for table in tables)
