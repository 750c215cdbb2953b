"""One strategy of a problem, fast and within a memory limit, found sooner than a whole frontier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.problem.restriction import restricted
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.registry import get_solver

__all__ = ["fast_within"]

_TURNS = 12
"""Weights of memory that are tried at most; most problems take half as many."""

_CLOSE = 1e-9


def fast_within(problem: Problem, limit_bytes: float, near: Sequence[int] | IntArray | None = None) -> Frontier | None:
    """A fast strategy that keeps to a memory limit, as a frontier of one point; exact where the limit does not bind.

    Where it does, the strategies of least ``time + weight * memory`` on both sides of the limit are found, for the
    weight at which they change places. Then the frontier is tracked of what these do in each node, and a strategy
    nearby: a mixture comes closer to the limit.

    Args:
        problem: tables of costs.
        limit_bytes: what a device may hold.
        near: the configurations of a strategy that may be worth mixing in; those that are impossible are left out.

    Returns:
        None if no strategy keeps to the limit.
    """
    try:
        fast = _solved(problem, single_cost(problem, "time"))
        if float(fast.memory_bytes[0]) <= limit_bytes:
            return fast
        small = _solved(problem, single_cost(problem, "memory"))
    except InfeasibleError:
        return None
    if float(small.memory_bytes[0]) > limit_bytes:
        return None
    for _ in range(_TURNS):
        saved = float(fast.memory_bytes[0] - small.memory_bytes[0])
        weight = float(small.time_s[0] - fast.time_s[0]) / saved
        found = _solved(problem, _weighted(problem, weight))
        gained = _value(fast, weight) - _value(found, weight)
        if gained <= _CLOSE * _value(fast, weight):
            break
        if float(found.memory_bytes[0]) <= limit_bytes:
            small = found
        else:
            fast = found
    mixed = _mixed(problem, [fast.assignments[0], small.assignments[0]], near)
    best = mixed.best(limit_bytes) if float(mixed.memory_bytes[0]) <= limit_bytes else None
    if best is None or best.time_s >= float(small.time_s[0]):
        return small
    return _frontier(problem, best.assignment, best.alternatives)


def _solved(problem: Problem, merged: Problem) -> Frontier:
    """The strategy of least time of a problem with merged costs, with the costs that it has in the other."""
    try:
        found = get_solver("pase")(merged)
    except ProblemError:  # a table would be too large
        found = get_solver("ft")(merged)
    return _frontier(problem, found.assignments[-1], found.alternatives[-1])


def _frontier(
    problem: Problem, assignment: Sequence[int] | IntArray, alternatives: Sequence[int] | IntArray
) -> Frontier:
    return frontier_of(problem, assignment, alternatives, exact=False, eliminations=(), seconds=0.0)


def _weighted(problem: Problem, weight: float) -> Problem:
    """The problem whose time is the time and a weight times the memory, and whose memory is nothing."""

    def merged(time_s: FloatArray, memory_bytes: FloatArray, _: int) -> tuple[FloatArray, FloatArray]:
        exists = np.isfinite(time_s) & np.isfinite(memory_bytes)
        total = np.where(exists, time_s + weight * np.where(exists, memory_bytes, 0.0), np.inf)
        return total, np.where(exists, 0.0, np.inf)

    return problem.with_tables(merged)


def _value(frontier: Frontier, weight: float) -> float:
    return float(frontier.time_s[0] + weight * frontier.memory_bytes[0])


def _mixed(problem: Problem, strategies: Sequence[IntArray], near: Sequence[int] | IntArray | None) -> Frontier:
    """The frontier over what some strategies do in each node."""
    every = [*strategies, *([] if near is None else [np.asarray(near, np.int64)])]
    groups = np.arange(problem.nodes) if problem.groups is None else problem.groups
    allowed: dict[int, set[int]] = {}
    for node, group in enumerate(groups.tolist()):
        time_s, memory_bytes = problem.node_tables(node)
        for strategy in every:
            choice = int(strategy[node])
            if np.isfinite(time_s[choice] + memory_bytes[choice]).any():
                allowed.setdefault(group, set()).add(choice)
    smaller, kept = restricted(problem, [sorted(allowed[group]) for group in groups.tolist()])
    found = get_solver("ft")(smaller)
    rows = [[int(kept[node][choice]) for node, choice in enumerate(row)] for row in found.assignments.tolist()]
    return frontier_of(problem, rows, found.alternatives, exact=False, eliminations=(), seconds=found.seconds)
