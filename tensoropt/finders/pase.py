"""PaSE (Elango 2021): the fastest strategy, whatever memory it takes."""

from __future__ import annotations

from tensoropt.pase import fastest_point
from tensoropt.search.columns import SpaceColumns
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.space import SearchSpace


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    found = space.kept(SpaceColumns).fastest
    return Found(space, found, {"exact": found.bound_s is not None})


register(Finder("pase", "search", "fastest", _find, solve=fastest_point))
