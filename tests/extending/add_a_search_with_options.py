"""A search with options, by the whole protocol: ``find(space, limit, start, options) -> Found``.

Laid into `tensoropt/finders` as `sampling.py`, it is `search="sampling"` or `search=Sampling(count=1000)`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from tensoropt.problem import frontier_of
from tensoropt.search import Finder
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import register
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Sampling:
    """How many strategies are drawn, and the seed of the draws."""

    count: int = 100
    seed: int = 0

    @property
    def name(self) -> str:
        """Of the finder that these are options of."""
        return "sampling"


def find(space: SearchSpace, limit: MemoryLimit, start: Start, options: Sampling) -> Found:
    """The best of what operators that decide take at random, and of strategies that are known."""
    began = time.perf_counter()
    contraction = space.kept(contracted)
    problem = contraction.problem
    choices = [problem.configurations(node) for node in range(problem.nodes)]
    drawn = np.random.default_rng(options.seed).integers(choices, size=(options.count, problem.nodes))
    if problem.groups is not None:  # a group has one configuration
        _, first, group = np.unique(problem.groups, return_index=True, return_inverse=True)
        drawn = drawn[:, first[group]]
    known = [contraction.deciding(one.assignment) for one in start if one.space is space]
    seconds = time.perf_counter() - began
    frontier = contraction.expand(frontier_of(problem, [*known, *drawn], exact=False, eliminations=(), seconds=seconds))
    return Found(space, frontier, notes={"drawn": options.count, "seed": options.seed})


register(Finder("sampling", "search", "trade_off", find, begins_at_others=True, options=Sampling()))
