"""Helpers that baselines share."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensoropt.errors import PlanError
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import FloatArray, IntArray, Problem

__all__ = ["alternatives_of", "does_not_apply", "fixed_alternatives", "single"]


def does_not_apply(name: str, reason: str, remedy: str) -> PlanError:
    """The error of a baseline that has no strategy for a graph."""
    return PlanError(f"baseline {name!r}: does not apply because {reason}. {remedy}")


def single(
    problem: Problem, assignment: npt.ArrayLike, began: float, alternatives: npt.ArrayLike | None = None
) -> Frontier:
    """The frontier of one strategy, whose search began at ``time.perf_counter()`` = ``began``."""
    return frontier_of(
        problem, assignment, alternatives, exact=False, eliminations=(), seconds=time.perf_counter() - began
    )


def fixed_alternatives(problem: Problem, which: int) -> Problem:
    """The problem in which every table with alternatives has only number ``which``, or, where that is impossible, 0."""

    def pick(time_s: FloatArray, memory_bytes: FloatArray, axes: int) -> tuple[FloatArray, FloatArray]:
        if time_s.ndim <= axes or time_s.shape[-1] <= which:
            return time_s, memory_bytes
        exists = np.isfinite(time_s[..., which] + memory_bytes[..., which])
        return (
            np.where(exists, time_s[..., which], time_s[..., 0]),
            np.where(exists, memory_bytes[..., which], memory_bytes[..., 0]),
        )

    return problem.with_tables(pick)


def alternatives_of(problem: Problem, assignment: Sequence[int], which: int) -> IntArray:
    """For each node, then each edge, the alternative that `fixed_alternatives` has put in its table's place."""
    result = np.zeros(problem.nodes + len(problem.edges), np.int64)
    for i in range(len(result)):
        if i < problem.nodes:
            time_s, memory_bytes = (table[assignment[i]] for table in problem.node_tables(i))
        else:
            u, v = problem.edges[i - problem.nodes].tolist()
            tables = problem.edge_tables(i - problem.nodes)
            time_s, memory_bytes = (table[assignment[u], assignment[v]] for table in tables)
        if len(time_s) > which and np.isfinite(time_s[which] + memory_bytes[which]):
            result[i] = which
    return result
