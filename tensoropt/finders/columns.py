"""Columns: the fastest strategy within a memory limit, over all operators, and how far it may be from the best."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.determined import determined
from tensoropt.problem.frontier import Frontier
from tensoropt.search.columns import Columns
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.followers import contracted
from tensoropt.space.repeated_cells import repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["free"]


def free(space: SearchSpace) -> Contraction:
    """The problem over the operators that have a choice beside others; cells that repeat are alike."""
    leaders, index = determined(space.problem)
    return Contraction(space.problem, repeated_cells(space)[leaders], index)


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    """Over all operators; over those that decide where tables would be too large."""
    whole = space.kept(free)
    alike = "" if len(np.unique(repeated_cells(space))) == space.problem.nodes else ", cells that repeat alike"
    try:
        searched = f"all {space.problem.nodes:,} operators{alike}"
        return _within(space, whole, space.kept(_of_all), limit, searched)
    except ProblemError:
        contraction = space.kept(contracted)
        return _within(space, contraction, space.kept(_of_deciding), limit, contraction.searched)


def _of_all(space: SearchSpace) -> Columns:
    return Columns(space.kept(free).problem, exactly=True)


def _of_deciding(space: SearchSpace) -> Columns:
    return Columns(space.kept(contracted).problem)


def _within(space: SearchSpace, contraction: Contraction, columns: Columns, limit: MemoryLimit, searched: str) -> Found:
    found = columns.within(limit.limit_bytes)
    if found is None:
        least = columns.smallest.memory_bytes
        raise InfeasibleError(
            f"search 'columns': a strategy must fit in {limit}, but the least that any takes is {least:,.0f} bytes: "
            f"{least - limit.limit_bytes:,.0f} bytes are missing. Use more devices, or a smaller batch."
        )
    expanded = contraction.expand(found)
    bound_s = columns.bounds.least_time_s(np.array([limit.limit_bytes]))[0] if columns.bounds is not None else math.nan
    gap = max(float(expanded.time_s[0] / bound_s) - 1.0, 0.0)
    notes: dict[str, object] = {"exact": gap <= _ROUNDING}
    if math.isfinite(gap):
        notes |= {"bound_s": float(bound_s), "gap": gap}
        searched += ", of which none is faster" if gap <= _ROUNDING else f", of which none is {gap:.2g} faster"
    return Found(space, _said(expanded, searched), notes)


def _said(frontier: Frontier, searched: str) -> Frontier:
    return dataclasses.replace(frontier, searched=searched)


_ROUNDING = 1e-7
"""Relative: bounds are lowered by less, and differ by rounding."""

register(Finder("columns", "search", "fastest", _find))
