"""The frontier of one assignment over its nodes' and edges' alternatives."""

from __future__ import annotations

import numpy as np

from tensoropt.search.grid import on_grid, problem_grids
from tensoropt.search.problem import IntArray, Problem
from tensoropt.search.tables import FrontierTable, join, table_from_costs

__all__ = ["evaluate_alternatives"]


def evaluate_alternatives(problem: Problem, assignment: IntArray) -> IntArray:
    """The choices of alternatives that are on the frontier of a possible assignment.

    Returns:
        shape ``(points, N + E)``, ascending memory.
    """
    terms = problem.nodes + len(problem.edges)
    fixed = np.zeros(terms, np.int64)
    grids = problem_grids(problem)
    table: FrontierTable | None = None
    chosen = np.zeros((1, 0), np.int64)
    several: list[int] = []
    for i in range(terms):
        if i < problem.nodes:
            costs = [t[assignment[i]] for t in problem.node_tables(i)]
        else:
            u, v = problem.edges[i - problem.nodes].tolist()
            costs = [t[assignment[u], assignment[v]] for t in problem.edge_tables(i - problem.nodes)]
        one, source = table_from_costs(on_grid(costs[0], grids[0]), on_grid(costs[1], grids[1]))
        if one.points == 1:
            fixed[i] = source[0]  # the only one, or better than all others: no choice
            continue
        several.append(i)
        if table is None:
            table, chosen = one, source[:, None]
        else:
            joined = join(table, (), one, (), (), 0)
            table = joined.table
            chosen = np.concatenate([chosen[joined.left], source[joined.right][:, None]], axis=1)
    picks = np.repeat(fixed[None], len(chosen), axis=0)
    picks[:, several] = chosen
    return picks
