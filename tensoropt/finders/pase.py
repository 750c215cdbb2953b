"""PaSE (Elango 2021): the fastest strategy, whatever memory it takes."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from tensoropt.errors import ProblemError
from tensoropt.pase import fastest_point
from tensoropt.problem.frontier import Frontier
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.followers import contracted
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace


def _find(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
    return space.kept(_fastest)


def _fastest(space: SearchSpace) -> Found:
    """Over all operators. Over those that decide where tables would be too large, or where cells that repeat have to be
    alike and these find something faster."""
    whole = with_repeated_cells(space)
    with suppress(ProblemError):
        best = dataclasses.replace(fastest_point(whole), searched=f"all {space.problem.nodes} operators")
        deciding = best if whole is space.problem else _deciding(space)
        if deciding.time_s[0] >= best.time_s[0]:
            return Found(space, dataclasses.replace(best, bound_s=best.time_s.copy()), {"exact": True})
        return Found(space, deciding, {"exact": False})
    return Found(space, _deciding(space), {"exact": False})


def _deciding(space: SearchSpace) -> Frontier:
    contraction = space.kept(contracted)
    found = contraction.expand(fastest_point(contraction.problem))
    return dataclasses.replace(found, searched=contraction.searched)


register(Finder("pase", "search", "fastest", _find, solve=fastest_point))
