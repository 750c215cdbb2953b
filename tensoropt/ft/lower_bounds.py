"""Lower bounds on all strategies of a problem, by message passing."""

from __future__ import annotations

from tensoropt.errors import InfeasibleError
from tensoropt.ft.bounds import Bounds
from tensoropt.ft.track import cost_graph_of
from tensoropt.problem.lower_bounds import LowerBounds
from tensoropt.problem.problem import Problem

__all__ = ["lower_bounds"]

_WEIGHTS = 96
"""Pairs of weights tried: each is the normal of two neighbouring points of the hull."""


def lower_bounds(problem: Problem, weights: int = _WEIGHTS) -> LowerBounds:
    """Bounds by message passing (`tensoropt.ft.messages`), in time proportional to the tables.

    Args:
        problem: over all of whose configurations they hold; its groups are kept to.
        weights: how many pairs of weights are tried at most.

    Raises:
        InfeasibleError: no strategy was found that has a finite cost.
    """
    found = Bounds.of(cost_graph_of(problem), weights=weights)
    if found is None:
        raise InfeasibleError(
            f"LowerBounds: of {problem.nodes} operators no strategy of finite cost was found. Allow them others."
        )
    return LowerBounds(*found.lines)
