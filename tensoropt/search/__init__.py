"""Finders of strategies: the protocol of searches and baselines, their registry, and the choice of what they find."""

from __future__ import annotations

from tensoropt.search.options import OPTIONS as OPTIONS
from tensoropt.search.options import choose as choose
from tensoropt.search.options import mini_memory as mini_memory
from tensoropt.search.options import mini_time as mini_time
from tensoropt.search.options import turning_point as turning_point
from tensoropt.search.registry import Finder as Finder
from tensoropt.search.registry import finders as finders
from tensoropt.search.registry import get_finder as get_finder
from tensoropt.search.registry import register_baseline as register_baseline
from tensoropt.search.registry import register_search as register_search

__all__ = [
    "OPTIONS",
    "Finder",
    "choose",
    "finders",
    "get_finder",
    "mini_memory",
    "mini_time",
    "register_baseline",
    "register_search",
    "turning_point",
]
