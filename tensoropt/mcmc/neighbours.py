"""Operators near one another that change together: a strategy has parts that agree, and their borders move by these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.mcmc.moves import Moves, Region
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.simulate.network import Network
from tensoropt.space.followers import follow
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import Ints

__all__ = ["find_regions", "moves_of"]

# Sets of more than so many operators that decide are not made around each of them, but around ones that are apart.
_DENSE = 8


def moves_of(space: SearchSpace, network: Network, *, variables: bool = False) -> Moves:
    """Returns the moves of proposals: operators that decide, with their followers (`tensoropt.space.followers`).

    Args:
        space: the search space.
        network: the network of the space.
        variables: whether variables decide for themselves, which is needed if they are stored in pieces. Otherwise a
            variable with one reader takes the layout that is fastest beside the reader.
    """
    leaders, index = follow(space, small_bytes=0.0 if variables else np.inf)
    return Moves.of(network.choices, leaders, index, find_regions(space.problem, leaders, index))


def find_regions(problem: Problem, leaders: IntArray, index: Sequence[IntArray | None]) -> list[Region]:
    """For operators that decide, those around them, nearest first: sets of 2, 4, 8 … and of all.

    By a configuration of the one in the middle each other takes the one that costs least, by additive cost, with all
    that it is beside and that are nearer.

    Args:
        problem: whose nodes the operators are. Edges count with both copies kept.
        leaders: ``(N,)``, for each operator the one that decides for it.
        index: for each operator its configuration by that of the one that decides, None for the same.
    """
    own, beside = _added(problem, leaders, index)
    regions = []
    sizes = [2**power for power in range(1, max(1, (len(own) - 1).bit_length()) + 1)]
    for number, head in enumerate(own):
        wanted = [size for size in sizes if number % max(1, size // _DENSE) == 0]
        chosen: dict[int, Ints] = {head: np.arange(len(own[head]))}
        reached = [head]
        for here in reached:
            for other in sorted(beside[here]):
                if other in chosen:
                    continue
                cost = np.tile(own[other], (len(own[head]), 1))
                for near, table in beside[other].items():
                    if near in chosen:
                        cost += table[chosen[near]]
                chosen[other] = cost.argmin(axis=1)
                reached.append(other)
                if len(reached) == wanted[-1]:
                    break
            if len(reached) == wanted[-1]:
                break
        some = sorted({min(size, len(reached)) for size in wanted} - {1})
        regions.append(Region(tuple(reached), tuple(chosen[one] for one in reached), tuple(some)))
    return regions


def _added(
    problem: Problem, leaders: IntArray, index: Sequence[IntArray | None]
) -> tuple[dict[int, FloatArray], dict[int, dict[int, FloatArray]]]:
    """The seconds of operators that decide with their followers, and between them: ``beside[a][b]`` is ``(b, a)``."""
    own = {leader: np.zeros(problem.configurations(leader)) for leader in np.unique(leaders).tolist()}
    beside: dict[int, dict[int, FloatArray]] = {leader: {} for leader in own}
    by = [np.arange(problem.configurations(node)) if some is None else some for node, some in enumerate(index)]
    for node, leader in enumerate(leaders.tolist()):
        own[leader] += problem.node_tables(node)[0][by[node], 0]
    for edge, (start, end) in enumerate(problem.edges.tolist()):
        time = problem.edge_tables(edge)[0][..., 0]
        one, other = int(leaders[start]), int(leaders[end])
        if one == other:
            own[one] += time[by[start], by[end]]
            continue
        table = time[np.ix_(by[start], by[end])]
        for here, there, rows in ((other, one, table), (one, other, table.T)):
            beside[here][there] = beside[here][there] + rows if there in beside[here] else rows
    return own, beside
