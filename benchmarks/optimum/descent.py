"""Compiled depth-first search through all strategies that a relaxation does not rule out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tensoropt.mcmc.moves import MoveSets
from tensoropt.problem.problem import FloatArray
from tensoropt.simulate.compiled import compiled
from tensoropt.simulate.full_simulation import find_paths, simulate_full
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, State
from tensoropt.space.work import Ints

__all__ = ["Terms", "descend"]


class Terms(NamedTuple):
    """A relaxation for compiled loops.

    Attributes:
        order: ``(L,)``, the sets of one operator that decides, as they are chosen.
        numbers: where the numbers of each place in that order begin, then these: how many configurations there are;
            where its own ticks and those still to come begin; how many places before it have an edge to it, and how
            many are the border; for each of the former its place, where ticks of both begin, and their columns; for
            each of the latter its place, and the rows of one of its configurations.
        ticks: of all tables.
        means: of resources, that tables are of.
    """

    order: Ints
    numbers: Ints
    ticks: FloatArray
    means: int


@compiled
def _bound(relaxed: Terms, chosen: Ints, so_far: FloatArray, depth: int, choice: int, best: float) -> bool:
    """Whether a choice may still lead to less than ``best``; writes what all choices so far take for the next one."""
    terms, ticks, means = relaxed.numbers, relaxed.ticks, relaxed.means
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
    graph: Graph,
    devices: DeviceClasses,
    state: State,
    moves: MoveSets,
    relaxed: Terms,
    most: int,
    best: int,
    chosen: Ints,
) -> tuple[int, int, int]:
    """Simulates every strategy that may be faster than the best so far.

    Args:
        graph: of all strategies, with all routes.
        devices: that are told apart.
        state: a simulation; changed.
        moves: operators that decide, and those that follow each.
        relaxed: what rules strategies out.
        most: partial strategies to look at.
        best: ticks of the best so far.
        chosen: ``(N,)``, takes the best strategy.

    Returns:
        the ticks of the best; how many partial strategies were looked at, more than ``most`` if that is why it ended;
        and how many whole ones were simulated.
    """
    order, terms = relaxed.order, relaxed.numbers
    count = len(order)
    so_far = np.zeros((count + 1, relaxed.means))
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
        if not _bound(relaxed, trying, so_far, depth, trying[depth], best):
            continue
        if depth + 1 < count:
            depth += 1
            continue
        for number in range(count):
            for place in range(moves.first[order[number]], moves.first[order[number] + 1]):
                state.assignment[moves.operator[place]] = moves.choice[moves.table[place] + trying[number]]
        find_paths(graph, state.assignment, state.path)
        simulated += 1
        makespan = simulate_full(graph, devices, state)
        if makespan < best:
            best = makespan
            chosen[:] = state.assignment
    return best, partial, simulated
