"""A search in one file. Laid into `tensoropt/finders` as `descent.py`, it is `search="descent"` of `find_strategy`.

It is a function of tables: a `Problem` has the costs of every operator that decides, and of what it sends to others.
"""

from __future__ import annotations

import time

import numpy as np

from tensoropt.problem import Frontier, Problem, frontier_of
from tensoropt.search import register_search


@register_search("descent")
def descent(problem: Problem) -> Frontier:
    """One operator after the other, twice over, takes the configuration that is fastest beside those of the others."""
    began = time.perf_counter()
    groups = np.arange(problem.nodes) if problem.groups is None else problem.groups  # a group has one configuration
    strategy = np.zeros(problem.nodes, np.int64)
    for group in [*np.unique(groups), *np.unique(groups)]:
        members = np.flatnonzero(groups == group)
        tried = np.tile(strategy, (problem.configurations(int(members[0])), 1))
        tried[:, members] = np.arange(len(tried))[:, None]
        time_s, _ = problem.costs(tried)
        strategy = tried[time_s.argmin()]
    return frontier_of(problem, strategy, exact=False, eliminations=(), seconds=time.perf_counter() - began)
