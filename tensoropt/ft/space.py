"""The frontier of a model's strategies."""

from __future__ import annotations

from collections.abc import Callable

from tensoropt.ft.track import track_frontier
from tensoropt.search.cells import with_repeated_cells
from tensoropt.search.followers import contracted
from tensoropt.search.resolution import Resolution
from tensoropt.search.result import Frontier, union_of
from tensoropt.search.single_cost import single_cost
from tensoropt.search.space import SearchSpace

__all__ = ["least_memory", "track_space"]

_SMALL = 200
"""Operators up to which the least memory is searched over all of them, in a second or two."""


def track_space(
    space: SearchSpace,
    *,
    epsilon: float = 0.0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Frontier:
    """The frontier of a space, over the operators that decide (`tensoropt.search.followers`).

    Between its ends costs are told apart in the steps of `Resolution.of`: the strategies are those on the exact
    frontier of costs so rounded. The fastest and the smallest one are those of the costs as they are. Each point has
    its costs as they are.

    Args:
        space: configurations and their costs.
        epsilon: see `track_frontier`.
        threads: see `track_frontier`.
        progress: see `track_frontier`.

    Returns:
        the frontier of ``space.problem``. Of very deep models it is over strategies in which layers in a row decide as
        one (`tensoropt.search.layers`), and not exact.

    Raises:
        ProblemError: an option is out of range.
        InfeasibleError: no strategy has a finite cost.
    """
    contraction = contracted(space)
    problem = contraction.problem
    rounded = Resolution.of(problem).rounded(problem)
    found = track_frontier(rounded, epsilon=epsilon, threads=threads, progress=progress)
    fastest = track_frontier(single_cost(problem, "time"), threads=threads)
    smallest = [] if _is_small(space) else [track_frontier(single_cost(problem, "memory"), threads=threads)]
    result = contraction.expand(found, fastest, *smallest, exact=found.exact and fastest.exact)
    return result if smallest else union_of(space.problem, result, least_memory(space, threads=threads))


def least_memory(space: SearchSpace, *, threads: int | None = None) -> Frontier:
    """The strategy of least memory alone, which is found sooner.

    Of a small graph it is exact; of a large one it is over the operators that decide, and not exact.
    """
    if _is_small(space):
        found = track_frontier(single_cost(with_repeated_cells(space), "memory"), threads=threads)
        return union_of(space.problem, found)
    contraction = contracted(space)
    found = track_frontier(single_cost(contraction.problem, "memory"), threads=threads)
    return contraction.expand(found, exact=False)


def _is_small(space: SearchSpace) -> bool:
    return space.problem.nodes <= _SMALL
