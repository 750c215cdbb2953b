"""Search problems (tables of costs) and cost frontiers, and their algebra.

A search sees a `Problem` and returns a `Frontier`; neither knows anything of TensorFlow, graphs or devices.
"""

from __future__ import annotations

from tensoropt.problem.archive import load_problem as load_problem
from tensoropt.problem.archive import save_problem as save_problem
from tensoropt.problem.brute_force import brute_force as brute_force
from tensoropt.problem.evaluation import evaluate as evaluate
from tensoropt.problem.frontier import Elimination as Elimination
from tensoropt.problem.frontier import Frontier as Frontier
from tensoropt.problem.frontier import FrontierPoint as FrontierPoint
from tensoropt.problem.frontier import frontier_of as frontier_of
from tensoropt.problem.problem import Problem as Problem

__all__ = [
    "Elimination",
    "Frontier",
    "FrontierPoint",
    "Problem",
    "brute_force",
    "evaluate",
    "frontier_of",
    "load_problem",
    "save_problem",
]
