"""PaSE (Elango 2021): the fastest strategy, whatever memory it takes."""

from __future__ import annotations

from tensoropt.pase import fastest_point
from tensoropt.search.registry import register_search

register_search("pase")(fastest_point)
