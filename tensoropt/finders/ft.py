"""Frontier tracking (TensorOpt section 3): all strategies that are worth having."""

from __future__ import annotations

import dataclasses

import numpy as np

from tensoropt.ft import track_frontier
from tensoropt.ft.lower_bounds import lower_bounds
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.problem.frontier import Frontier
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.space import SearchSpace

_WEIGHTS = 24
"""Lines of the bound that each point is compared with; four times as many would lower gaps by a tenth."""


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    return Found(space, space.kept(_frontier))


def _frontier(space: SearchSpace) -> Frontier:
    found = space.kept(SpaceTracker).frontier()
    if found.exact:
        return dataclasses.replace(found, bound_s=found.time_s.copy())
    bounds = lower_bounds(space.problem, _WEIGHTS)
    return dataclasses.replace(found, bound_s=np.minimum(bounds.least_time_s(found.memory_bytes), found.time_s))


register(Finder("ft", "search", "frontier", _find, solve=track_frontier))
