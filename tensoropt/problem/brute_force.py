"""The exact frontier by trying every assignment: what the other searches are tested against."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import Problem
from tensoropt.problem.variables import node_variables

__all__ = ["MAX_ASSIGNMENTS", "brute_force"]

MAX_ASSIGNMENTS = 2_000_000
"""More than this many strategies (alternatives counted) are refused: they would take minutes and
gigabytes."""


def brute_force(problem: Problem) -> Frontier:
    """The frontier of ``problem`` by enumeration of all K^n strategies (TensorOpt, section 3.1).

    Raises:
        ProblemError: there are more than `MAX_ASSIGNMENTS` strategies.
        InfeasibleError: every strategy has an infinite cost.
    """
    began = time.perf_counter()
    variable, members = node_variables(problem)
    terms = problem.nodes + len(problem.edges)
    alternatives = [
        (problem.node_tables(i) if i < problem.nodes else problem.edge_tables(i - problem.nodes))[0].shape[-1]
        for i in range(terms)
    ]
    axes = [problem.configurations(i) for i, *_ in members] + alternatives
    count = math.prod(axes)
    if count > MAX_ASSIGNMENTS:
        raise ProblemError(
            f"brute_force: at most {MAX_ASSIGNMENTS} strategies can be tried, got {count} for "
            f"{problem.nodes} nodes. Use another search, such as 'ft'."
        )
    digits = np.stack(np.unravel_index(np.arange(count), axes), axis=1)
    assignments, picks = digits[:, : len(members)][:, variable], digits[:, len(members) :]
    sums = np.zeros((2, count))
    for i, which in itertools.product(range(terms), (0, 1)):
        if i < problem.nodes:
            entries = problem.node_tables(i)[which][assignments[:, i], picks[:, i]]
        else:
            u, v = problem.edges[i - problem.nodes].tolist()
            table = problem.edge_tables(i - problem.nodes)[which]
            entries = table[assignments[:, u], assignments[:, v], picks[:, i]]
        sums[which] += entries
    possible = np.flatnonzero(np.isfinite(sums).all(axis=0))
    if len(possible) == 0:
        raise InfeasibleError(
            f"brute_force: every one of {count} strategies of nodes {', '.join(problem.names)} has an "
            "infinite cost. Allow more configurations."
        )
    # Algorithm 1 as the paper has it, one tuple after the other.
    kept, best = [], math.inf
    for index in possible[np.lexsort((sums[0][possible], sums[1][possible]))].tolist():
        if sums[0][index] < best:
            kept.append(index)
            best = sums[0][index]
    return frontier_of(
        problem,
        assignments[kept],
        picks[kept],
        exact=True,
        eliminations=(),
        seconds=time.perf_counter() - began,
    )
