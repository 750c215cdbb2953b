"""Frontier tracking (TensorOpt section 3): all strategies that are worth having."""

from __future__ import annotations

from tensoropt.ft import track_frontier
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.problem.frontier import Frontier
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.space import SearchSpace


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    return Found(space, space.kept(_frontier))


def _frontier(space: SearchSpace) -> Frontier:
    return space.kept(SpaceTracker).frontier()


register(Finder("ft", "search", "frontier", _find, solve=track_frontier))
