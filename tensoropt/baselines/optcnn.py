"""OptCNN (Jia et al. 2018): the strategy of least time, whatever memory it takes."""

from __future__ import annotations

import time

from tensoropt.baselines.baseline import single
from tensoropt.problem.frontier import Frontier
from tensoropt.problem.problem import Problem
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.registry import get_solver, register_baseline
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace

__all__ = ["fastest", "optcnn"]


@register_baseline("optcnn")
def optcnn(space: SearchSpace) -> Frontier:
    """The fastest strategy, by dynamic programming over time alone.

    OptCNN's own eliminations need a graph that they reduce to two nodes; here the search is frontier tracking's, on
    which time is the only cost, so any graph will do. As there, it is over the operators that decide.
    """
    contraction = space.kept(contracted)
    return contraction.expand(fastest(contraction.problem))


def fastest(problem: Problem) -> Frontier:
    """The strategy of least time (within 1e-9 of it), of equally fast ones that of least memory.

    Raises:
        InfeasibleError: no strategy is possible.
    """
    began = time.perf_counter()
    found = get_solver("ft")(single_cost(problem, "time"))
    return single(problem, found.assignments[-1], began, found.alternatives[-1])
