"""Columns: the fastest strategy within a memory limit, over all operators, and how far it may be from the best."""

from __future__ import annotations

from tensoropt.search.columns import SpaceColumns
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.space import SearchSpace


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    return Found(space, space.kept(SpaceColumns).within(limit.limit_bytes))


register(Finder("columns", "search", "fastest", _find))
