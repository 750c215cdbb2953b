"""PaSE: the strategy of least time by dynamic programming over any graph (figure 4 of the paper)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.pase.best import BestStrategy
from tensoropt.pase.bounds import Bounds
from tensoropt.pase.tables import Decision, TimeTables
from tensoropt.pase.vertex_order import VertexOrder, breadth_first, connected_parts, generate_seq
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import IntArray, Problem
from tensoropt.storage.document import quoted

__all__ = ["ORDERS", "fastest_point", "find_best_strategy"]

ORDERS = ("generate_seq", "breadth_first")

QUICK = 50_000_000
"""Candidates (configurations of a vertex times entries of its table, over all vertices) that are worked through as they
are: a tenth of a second where tables have many axes."""

FEW_AXES, MANY_AXES_TAKE = 3, 4
"""Candidates of tables of more axes take so many times as long (measured)."""

SIMPLE = 2
"""Vertices of dependent sets up to this size are decided before bounds are worked out on what is left."""

SIMPLE_LONGEST = 1_000_000_000
"""Candidates of one of them: a fifth of a second."""

LONGEST = 10_000_000_000
"""Candidates for which it pays to go on with bounds that hardly rise."""

NARROW = (32, 16, 8, 4, 2)
"""So many of the most promising configurations are searched for a better strategy: the most that take no longer than
half of `QUICK`."""

PASSES = 40
"""Messages are passed at most so often."""

_NAMED = 3
"""So many parts of a graph, and nodes of each, an error names."""

GAIN = 0.02
"""A pass that closes less than this share of the gap between bound and best strategy is the last."""


def find_best_strategy(
    problem: Problem, *, order: str | Sequence[int] = "generate_seq", prune: bool = True, parts: bool = False
) -> BestStrategy:
    """The strategy of least time (PaSE, section III-B): exact; memory does not count.

    The table of a vertex has, for each combination of configurations of its dependent set, the least of: its own time,
    its edges' to later vertices, and the tables of the connected subsets that it separates (Eq. 4). The cost is K^(M+1)
    for K configurations and dependent sets of up to M vertices, so the order decides.

    Configurations that cannot improve on a strategy found on the way are left out where tables would become large
    (see `Bounds`); the result has the same time.

    Args:
        problem: tables of costs. Of alternatives the fastest counts. Nodes of one group are one vertex.
        order: ``generate_seq`` for the paper's order, ``breadth_first`` for the one that it compares with, or all nodes
            in an order of your own; a group stands where its first node does.
        prune: whether configurations may be left out. Without it the recurrence runs as it is written.
        parts: whether the graph may be in parts that nothing joins, each of which is then solved by itself: their
            times add up. The paper's graphs are connected, and in most that are not an edge was forgotten.

    Returns:
        the strategy. Of several of least time it is one, always the same.

    Raises:
        ProblemError: the order is unknown or does not have every node once, the graph is not connected, or a table
            would have more than `MAX_TABLE_ENTRIES`.
        InfeasibleError: no strategy has a finite time.
    """
    began = time.perf_counter()
    tables, variable = TimeTables.of(problem)
    sequence = _sequence(order, tables, variable)
    if not parts:
        _check_connected(tables)
    chosen = _solve(tables, sequence, prune)
    assignment = np.array([chosen[v] for v in variable], np.int64)
    alternatives = _alternatives(problem, assignment)
    node = {v: i for i, v in reversed(list(enumerate(variable)))}
    return BestStrategy(
        cost=float(problem.costs(assignment, alternatives)[0][0]),
        assignment=tuple(assignment.tolist()),
        alternatives=tuple(alternatives.tolist()),
        order=tuple(node[v] for v in sequence.vertices),
        dependent_set_sizes=tuple(map(len, sequence.dependent_sets)),
        seconds=time.perf_counter() - began,
    )


def fastest_point(problem: Problem, *, order: str | Sequence[int] = "generate_seq") -> Frontier:
    """`find_best_strategy` as a search: a frontier of one point, its fastest end. It says nothing of less memory.

    A problem may be in parts that nothing joins: a model of several towers with a loss each is.

    Raises:
        ProblemError: as `find_best_strategy`, but for that.
        InfeasibleError: the same.
    """
    best = find_best_strategy(problem, order=order, parts=True)
    return frontier_of(problem, best.assignment, best.alternatives, exact=False, eliminations=(), seconds=best.seconds)


def _check_connected(tables: TimeTables) -> None:
    parts = connected_parts(tables.neighbours())
    if len(parts) > 1:
        named = []
        for part in parts[:_NAMED]:
            names = [name for v in part for name in tables.names[v]]
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            named.append(f"{', '.join(map(quoted, names[:_NAMED]))}{more}")
        rest = f"; and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        raise ProblemError(
            f"find_best_strategy: the graph must be connected, but nothing joins its {len(parts)} parts: "
            f"{'; '.join(named)}{rest}. Add the edges that are missing, or give parts=True to solve each by itself."
        )


def _sequence(order: str | Sequence[int], tables: TimeTables, variable: Sequence[int]) -> VertexOrder:
    near = tables.neighbours()
    if isinstance(order, str):
        if order == "generate_seq":
            return generate_seq(near, tables.sizes)
        if order == "breadth_first":
            return breadth_first(near)
        raise ProblemError(
            f"find_best_strategy order: must be one of {', '.join(map(repr, ORDERS))}, or all nodes in an order of "
            f"your own, got {order!r}. Choose one."
        )
    given: Any = order
    nodes = list(given) if isinstance(given, Iterable) else [given]
    strange = [node for node in nodes if not isinstance(node, int | np.integer)]
    if strange:
        raise ProblemError(
            f"find_best_strategy order: nodes must be their numbers, 0..{len(variable) - 1}, got {strange[0]!r}. Give "
            f"a permutation of these, or one of {', '.join(map(repr, ORDERS))}."
        )
    if sorted(nodes) != list(range(len(variable))):
        missing = sorted(set(range(len(variable))) - set(nodes))
        raise ProblemError(
            f"find_best_strategy order: must have each of the {len(variable)} nodes once, got {len(nodes)} of which "
            f"{len(set(nodes) & set(range(len(variable))))} are different nodes"
            f"{f'; node {missing[0]} is missing' if missing else ''}. Give a permutation of 0..{len(variable) - 1}."
        )
    return VertexOrder.of(near, list(dict.fromkeys(variable[node] for node in nodes)))


def _solve(tables: TimeTables, sequence: VertexOrder, prune: bool) -> dict[int, int]:
    """The configuration of each variable."""
    decisions: list[Decision] = []
    position, count = 0, len(sequence.vertices)
    sizes = tables.sizes
    while prune and position < count and len(sequence.dependent_sets[position]) <= SIMPLE:
        if _work(sequence, position, position + 1, sizes) > SIMPLE_LONGEST:
            break
        decisions.append(tables.decide(sequence.vertices[position]))
        position += 1
    rest: dict[int, int] = {}
    if prune and _work(sequence, position, count, sizes) > QUICK and max(map(len, tables.factors)) <= 2:
        rest = _solve_bounded(tables, sequence, position)
    else:
        decisions += [tables.decide(v) for v in sequence.vertices[position:]]
    return _unrolled(decisions, rest)


def _solve_bounded(tables: TimeTables, sequence: VertexOrder, position: int) -> dict[int, int]:
    """The configurations of the variables from a position on, most of which bounds rule out."""
    bounds = Bounds(tables)
    vertices = sequence.vertices[position:]

    def learn(part: TimeTables) -> None:
        chosen = _unrolled([part.decide(v) for v in vertices], {})
        bounds.learn(np.array([np.searchsorted(tables.configurations[v], chosen[v]) for v in bounds.variables]))

    kept: dict[int, IntArray] = {}
    narrow_at = 1
    for number in range(1, PASSES + 1):
        bound_s, time_s = bounds.bound_s, bounds.time_s
        bounds.sweep()
        if not bounds.exact:
            break
        for several in NARROW if number >= narrow_at else ():
            narrow_at = number + 1 + number // 2  # what promises most changes less and less
            part = bounds.promising(several)
            if _work(sequence, position, len(sequence.vertices), _sizes(tables, part)) <= QUICK // 2:
                with suppress(InfeasibleError):
                    learn(tables.restricted(part))
                break
        kept = bounds.improving()
        work = _work(sequence, position, len(sequence.vertices), _sizes(tables, kept))
        if bounds.proven or work <= QUICK * (1 + number // 4):  # the longer it took, the less it pays to go on
            break
        little = bounds.bound_s - bound_s < GAIN * (bounds.time_s - bounds.bound_s)
        if little and work <= LONGEST and bounds.time_s == time_s and narrow_at > number:
            break
    none_left = [v for v, several in sorted(kept.items()) if len(several) == 0]
    if bounds.time_s == math.inf and none_left:
        raise InfeasibleError(
            f"Problem node {', '.join(map(quoted, tables.names[none_left[0]]))}: must have a configuration of finite "
            "time beside those of the other nodes, but every one is impossible. Allow more configurations there."
        )
    if bounds.time_s == math.inf:
        learn(tables.restricted(kept))
    elif not none_left:
        with suppress(InfeasibleError):  # nothing is better
            learn(tables.restricted(kept))
    return {
        v: int(tables.configurations[v][index])
        for v, index in zip(bounds.variables, bounds.labels.tolist(), strict=True)
    }


def _sizes(tables: TimeTables, kept: Mapping[int, IntArray]) -> list[int]:
    return [len(kept.get(v, several)) for v, several in enumerate(tables.configurations)]


def _work(sequence: VertexOrder, first: int, last: int, sizes: Sequence[int]) -> int:
    """The candidates of the recurrence from one position of the order to another, those of many axes weighed."""
    total = 0
    for i in range(first, last):
        members = sequence.dependent_sets[i]
        candidates = sizes[sequence.vertices[i]] * math.prod(sizes[w] for w in members)
        total += candidates * (MANY_AXES_TAKE if len(members) > FEW_AXES else 1)
    return total


def _unrolled(decisions: Sequence[Decision], chosen: Mapping[int, int]) -> dict[int, int]:
    """The configurations of all variables, from the last that was decided back to the first."""
    result = dict(chosen)
    for decision in reversed(decisions):
        result[decision.variable] = decision.best(result)
    return result


def _alternatives(problem: Problem, assignment: IntArray) -> IntArray:
    """The fastest alternative of each node and edge, of equal ones the first."""
    chosen = assignment.tolist()
    rows = []
    for i, k in enumerate(chosen):
        time_s, memory_bytes = problem.node_tables(i)
        rows.append((time_s[k], memory_bytes[k]))
    for e, (u, v) in enumerate(problem.edges.tolist()):
        time_s, memory_bytes = problem.edge_tables(e)
        rows.append((time_s[chosen[u], chosen[v]], memory_bytes[chosen[u], chosen[v]]))
    picks = [np.where(np.isinf(memory_bytes), np.inf, time_s).argmin() for time_s, memory_bytes in rows]
    return np.array(picks, np.int64)
