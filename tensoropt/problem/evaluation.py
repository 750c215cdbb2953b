"""The frontier of one assignment over its nodes' and edges' alternatives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.frontier_tables import FrontierTable, join, table_from_costs
from tensoropt.problem.pareto import reduce_segments
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.storage.document import quoted

__all__ = ["evaluate"]


def evaluate(
    problem: Problem, assignment: npt.ArrayLike, alternatives: npt.ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    """The exact frontier of one assignment over all choices of alternatives.

    Args:
        problem: tables of costs.
        assignment: ``(N,)`` configuration indices.
        alternatives: ``(N + E,)``; if given, only this choice is evaluated.

    Returns:
        time in seconds (descending) and memory in bytes (ascending), shape ``(points,)``; one point where
        no table has alternatives.

    Raises:
        ProblemError: the assignment breaks the format.
        InfeasibleError: a cost of the assignment is infinite; the message names the node or edge.
    """
    chosen = problem.check_assignments(assignment)
    if len(chosen) != 1:
        raise ProblemError(
            f"Problem assignment: evaluate takes 1 assignment, got {len(chosen)}. Use Problem.costs for many."
        )
    _check_possible(problem, chosen[0])
    picks = _on_frontier(problem, chosen[0]) if alternatives is None else np.atleast_2d(np.asarray(alternatives))
    time, memory = problem.costs(np.repeat(chosen, len(picks), axis=0), picks)
    if np.isinf(time).any():
        raise InfeasibleError(
            f"Problem assignment {chosen[0].tolist()}: the chosen alternatives must exist, got an "
            "infinite cost. Leave alternatives out to get those that exist."
        )
    kept, _ = reduce_segments(np.array([0, len(time)]), time, memory)
    return time[kept], memory[kept]


def _check_possible(problem: Problem, assignment: IntArray) -> None:
    for i in range(problem.nodes):
        time, memory = problem.node_tables(i)
        k = assignment[i]
        if not np.isfinite(time[k] + memory[k]).any():
            raise InfeasibleError(
                f"Problem node {quoted(problem.names[i])}: configuration {k} is impossible (infinite cost). "
                "Choose another configuration."
            )
    for e, (u, v) in enumerate(problem.edges.tolist()):
        time, memory = problem.edge_tables(e)
        k, p = assignment[u], assignment[v]
        if not np.isfinite(time[k, p] + memory[k, p]).any():
            raise InfeasibleError(
                f"Problem edge {e} ({quoted(problem.names[u])} -> {quoted(problem.names[v])}): configurations {k} and "
                f"{p} are impossible together (infinite cost). Choose another pair."
            )


def _on_frontier(problem: Problem, assignment: IntArray) -> IntArray:
    """The choices of alternatives that are on the frontier of a possible assignment.

    Returns:
        shape ``(points, N + E)``, ascending memory.
    """
    terms = problem.nodes + len(problem.edges)
    fixed = np.zeros(terms, np.int64)
    table: FrontierTable | None = None
    chosen = np.zeros((1, 0), np.int64)
    several: list[int] = []
    for i in range(terms):
        if i < problem.nodes:
            time, memory = (t[assignment[i]] for t in problem.node_tables(i))
        else:
            u, v = problem.edges[i - problem.nodes].tolist()
            time, memory = (t[assignment[u], assignment[v]] for t in problem.edge_tables(i - problem.nodes))
        one, source = table_from_costs(time, memory)
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
