"""Compiled depth-first search through all strategies that a relaxation does not rule out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.kernels import find_paths, simulate
from tensoropt.mcmc.moves import apply

__all__ = ["descend"]


@compiled
def _bound(terms: Any, ticks: Any, chosen: Any, so_far: Any, depth: int, choice: int, means: int, best: float) -> bool:
    """Whether a choice may still lead to less than ``best``; writes what all choices so far take for the next one."""
    first = terms[depth]
    own, ahead, near, border = terms[first + 1], terms[first + 2], terms[first + 3], terms[first + 4]
    place = 0
    at = first + 5 + 3 * near
    for number in range(border):
        axis = terms[at + 2 * number]
        place += terms[at + 2 * number + 1] * (choice if axis == depth else chosen[axis])
    for mean in range(means):
        total = so_far[depth, mean] + ticks[own + choice * means + mean]
        for number in range(near):
            at_near = first + 5 + 3 * number
            row = terms[at_near + 1] + (chosen[terms[at_near]] * terms[at_near + 2] + choice) * means
            total += ticks[row + mean]
        so_far[depth + 1, mean] = total
        # Whole ticks, but for means of them.
        if total + ticks[ahead + place * means + mean] > best - 0.5:
            return False
    return True


@njit(cache=True, nogil=True)
def descend(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    moves: Any,
    memory: Any,
    assignment: Any,
    order: Any,
    terms: Any,
    ticks: Any,
    means: int,
    most: int,
    best: int,
    chosen: Any,
) -> Any:
    """Simulates every strategy that may be faster than the best so far.

    Args:
        net: of the network.
        frame: of the classes.
        pool: the stages of paths.
        path: of each slot.
        work: a simulation.
        stages: the most of any path.
        rows: where each row of routes begins.
        routes: the path of each route.
        moves: see :class:`tensoropt.mcmc.moves.Moves`.
        memory: without a limit.
        assignment: any strategy; changed.
        order: of operators that decide.
        terms: of the relaxation.
        ticks: of the relaxation's tables.
        means: of resources, that tables are of.
        most: partial strategies to look at.
        best: ticks of the best so far.
        chosen: takes the best strategy, a configuration of each operator.

    Returns:
        the ticks of the best; how many partial strategies were looked at, more than ``most`` if that is why it ended;
        and how many whole ones were simulated.
    """
    count = len(order)
    so_far = np.zeros((count + 1, means))
    trying = np.full(count, -1, np.int64)
    partial = simulated = 0
    depth = 0
    while depth >= 0:
        trying[depth] += 1
        if trying[depth] == terms[terms[depth]]:
            trying[depth] = -1
            depth -= 1
            continue
        partial += 1
        if partial > most:
            break
        if not _bound(terms, ticks, trying, so_far, depth, trying[depth], means, best):
            continue
        if depth + 1 < count:
            depth += 1
            continue
        for number in range(count):
            apply(net, moves, memory, assignment, work, order[number], trying[number])
        find_paths(net, rows, routes, assignment, path)
        simulated += 1
        makespan = simulate(net, frame, pool, path, work, stages)
        if makespan < best:
            best = makespan
            chosen[:] = assignment
    return best, partial, simulated
