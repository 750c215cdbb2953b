"""Search problems (tables of costs), cost frontiers, and choosing from them.

A search sees a `Problem` and returns a `Frontier`; it knows nothing of TensorFlow, graphs or devices.
"""

from __future__ import annotations

from tensoropt.search.archive import load_problem as load_problem
from tensoropt.search.archive import save_problem as save_problem
from tensoropt.search.brute_force import brute_force as brute_force
from tensoropt.search.evaluation import evaluate as evaluate
from tensoropt.search.options import OPTIONS as OPTIONS
from tensoropt.search.options import choose as choose
from tensoropt.search.options import mini_memory as mini_memory
from tensoropt.search.options import mini_time as mini_time
from tensoropt.search.options import turning_point as turning_point
from tensoropt.search.problem import Problem as Problem
from tensoropt.search.registry import Finder as Finder
from tensoropt.search.registry import finders as finders
from tensoropt.search.registry import get_finder as get_finder
from tensoropt.search.registry import register_baseline as register_baseline
from tensoropt.search.registry import register_search as register_search
from tensoropt.search.result import Elimination as Elimination
from tensoropt.search.result import Frontier as Frontier
from tensoropt.search.result import FrontierPoint as FrontierPoint
from tensoropt.search.result import frontier_of as frontier_of

__all__ = [
    "OPTIONS",
    "Elimination",
    "Finder",
    "Frontier",
    "FrontierPoint",
    "Problem",
    "brute_force",
    "choose",
    "evaluate",
    "finders",
    "frontier_of",
    "get_finder",
    "load_problem",
    "mini_memory",
    "mini_time",
    "register_baseline",
    "register_search",
    "save_problem",
    "turning_point",
]
