"""A problem in which nodes have fewer configurations, and the way back."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tensoropt.problem.problem import FloatArray, IntArray, Problem

__all__ = ["restricted"]


def restricted(problem: Problem, allowed: Iterable[npt.ArrayLike]) -> tuple[Problem, list[IntArray]]:
    """The problem in which every node has fewer configurations.

    Args:
        problem: the whole problem.
        allowed: per node, the configuration indices that it keeps, ascending.

    Returns:
        The problem, and per node the indices as given, by which its assignments are translated back.
    """
    kept = [np.asarray(indices, np.int64) for indices in allowed]
    cut: dict[tuple[int, bytes, bytes], FloatArray] = {}

    def part(table: FloatArray, rows: IntArray, columns: IntArray | None) -> FloatArray:
        # Tables that edges share stay shared.
        key = (id(table), rows.tobytes(), b"" if columns is None else columns.tobytes())
        if key not in cut:
            cut[key] = table[rows] if columns is None else table[np.ix_(rows, columns)]
        return cut[key]

    pairs = problem.edges.tolist()
    smaller = Problem(
        problem.names,
        [part(table, kept[i], None) for i, table in enumerate(problem.node_time_s)],
        [part(table, kept[i], None) for i, table in enumerate(problem.node_memory_bytes)],
        problem.edges,
        [part(table, kept[u], kept[v]) for table, (u, v) in zip(problem.edge_time_s, pairs, strict=True)],
        [part(table, kept[u], kept[v]) for table, (u, v) in zip(problem.edge_memory_bytes, pairs, strict=True)],
        problem.groups,
        problem.constant_time_s,
        problem.constant_memory_bytes,
    )
    return smaller, kept
