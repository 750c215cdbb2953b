"""Strategies that others use or search for, in the same space and with the same costs as ours, to compare with.

A baseline is one file, called as it is: a function of a `SearchSpace` that gives a `Frontier` on the space's problem,
of a single point unless it has a trade-off of its own.
"""

from __future__ import annotations

from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace

__all__ = ["apply_baseline"]


def apply_baseline(name: str, space: SearchSpace) -> Frontier:
    """The strategy of a baseline for a graph, or its strategies.

    Args:
        name: of the baseline.
        space: the graph's search space; the assignments of the result are its problem's, unless they place operators.

    Raises:
        PlanError: there is no such baseline, or it does not apply to the graph; the message says why.
        InfeasibleError: no strategy of the kind is possible.
    """
    return get_finder(name).find(space).frontier
