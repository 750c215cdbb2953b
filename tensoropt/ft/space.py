"""The frontier of a model's strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tensoropt.ft.track import track_frontier
from tensoropt.search.followers import contracted
from tensoropt.search.resolution import Resolution
from tensoropt.search.result import Frontier
from tensoropt.search.single_cost import single_cost
from tensoropt.search.space import SearchSpace

__all__ = ["least_memory", "track_space"]

_COSTS: tuple[Literal["time", "memory"], ...] = ("time", "memory")


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
        the frontier of ``space.problem``.

    Raises:
        ProblemError: an option is out of range.
        InfeasibleError: no strategy has a finite cost.
    """
    contraction = contracted(space)
    problem = contraction.problem
    rounded = Resolution.of(problem).rounded(problem)
    found = track_frontier(rounded, epsilon=epsilon, threads=threads, progress=progress)
    ends = [track_frontier(single_cost(problem, cost), threads=threads) for cost in _COSTS]
    return contraction.expand(found, *ends, exact=found.exact and all(end.exact for end in ends))


def least_memory(space: SearchSpace, *, threads: int | None = None) -> Frontier:
    """The strategy of least memory alone, which is found in a moment."""
    contraction = contracted(space)
    return contraction.expand(track_frontier(single_cost(contraction.problem, "memory"), threads=threads))
