"""PaSE: the strategy of least time by dynamic programming over any graph (figure 4 of the paper)."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.pase.best import BestStrategy
from tensoropt.pase.bounds import Bounds, Mask
from tensoropt.pase.tables import Decision, TimeTables
from tensoropt.pase.vertex_order import VertexOrder, breadth_first, connected_parts, generate_seq, least_tables
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import FloatArray, IntArray, Problem
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
    (see `Bounds`); the result has the same time, up to a billionth where bounds rule out that more can be gained.

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
            return _generated(near, tuple(tables.sizes))
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


@functools.lru_cache(maxsize=4)
def _generated(neighbours: tuple[frozenset[int], ...], sizes: tuple[int, ...]) -> VertexOrder:
    """`generate_seq`, once for the same graph under several weights of costs."""
    return generate_seq(neighbours, sizes)


def _solve(tables: TimeTables, sequence: VertexOrder, prune: bool) -> dict[int, int]:
    """The configuration of each variable."""
    decisions: list[Decision] = []
    position, count = 0, len(sequence.vertices)
    work = _Work(sequence).of(np.array(tables.sizes))
    while prune and position < count and len(sequence.dependent_sets[position]) <= SIMPLE:
        if work[position] > SIMPLE_LONGEST:
            break
        decisions.append(tables.decide(sequence.vertices[position]))
        position += 1
    rest: dict[int, int] = {}
    if prune and work[position:].sum() > QUICK and max(map(len, tables.factors)) <= 2:
        rest = _solve_bounded(tables, sequence, position)
    else:
        decisions += _decided(tables, sequence.vertices[position:], sequence.dependent_sets[position:])
    return _unrolled(decisions, rest)


def _decided(tables: TimeTables, vertices: Sequence[int], dependent_sets: Sequence[Sequence[int]]) -> list[Decision]:
    """The decisions of all that is left of a problem.

    Raises:
        ProblemError: a table would be too large. It is raised before any is made: those before it may take minutes.
    """
    for v, others in zip(vertices, dependent_sets, strict=True):
        tables.check_entries(v, others)
    return [tables.decide(v) for v in vertices]


def _solve_bounded(tables: TimeTables, sequence: VertexOrder, position: int) -> dict[int, int]:
    """The configurations of the variables from a position on, most of which bounds rule out."""
    bounds = Bounds(tables)
    given = sequence.vertices[position:], sequence.dependent_sets[position:]
    sizes, works = np.array(tables.sizes), _Work(sequence, position)

    def learn(part: TimeTables) -> None:
        is_quick = float(works.of(np.array(part.sizes)).sum()) <= QUICK
        order = given if is_quick else least_tables(part.neighbours(), part.sizes, given[0])
        chosen = _unrolled(_decided(part, *order), {})
        bounds.learn(np.array([np.searchsorted(tables.configurations[v], chosen[v]) for v in bounds.variables]))

    def work_of(chosen: Mask) -> float:
        sizes[bounds.variables] = bounds.counts(chosen)
        return float(works.of(sizes).sum())

    kept, work = np.ones(0, bool), math.inf
    narrow_at = 1
    for number in range(1, PASSES + 1):
        bound_s, time_s = bounds.bound_s, bounds.time_s
        bounds.sweep()
        if not bounds.exact:
            break
        if number >= narrow_at:
            narrow_at = number + 1 + number // 2  # what promises most changes less and less
            promising = bounds.promising()
            part = next((part for part in map(promising, NARROW) if work_of(part) <= QUICK // 2), None)
            if part is not None:
                with suppress(InfeasibleError):
                    learn(tables.restricted(bounds.indices(part)))
        kept = bounds.improving()
        work = work_of(kept)
        if bounds.proven or work <= QUICK * (1 + number // 4):  # the longer it took, the less it pays to go on
            break
        little = bounds.bound_s - bound_s < GAIN * (bounds.time_s - bounds.bound_s)
        if little and work <= LONGEST and bounds.time_s == time_s and narrow_at > number:
            break
    left = bounds.indices(kept) if len(kept) else {}
    none_left = [v for v, several in left.items() if len(several) == 0]
    if bounds.time_s == math.inf and none_left:
        raise InfeasibleError(
            f"Problem node {', '.join(map(quoted, tables.names[none_left[0]]))}: must have a configuration of finite "
            "time beside those of the other nodes, but every one is impossible. Allow more configurations there."
        )
    if bounds.time_s == math.inf:
        learn(tables.restricted(left))
    elif not none_left and not (bounds.exact and bounds.proven and work > QUICK):  # a billionth is not worth the work
        with suppress(InfeasibleError):  # nothing is better
            learn(tables.restricted(left))
    return {
        v: int(tables.configurations[v][index])
        for v, index in zip(bounds.variables, bounds.labels.tolist(), strict=True)
    }


class _Work:
    """The candidates of the recurrence at each position of an order, those of many axes weighed."""

    def __init__(self, sequence: VertexOrder, first: int = 0) -> None:
        """Takes an order, and its first position that counts."""
        vertices, several = sequence.vertices[first:], sequence.dependent_sets[first:]
        none = len(sequence.vertices)  # stands for no vertex, of one configuration
        widest = max(map(len, several), default=0)
        rows = [(v, *rest, *[none] * (widest - len(rest))) for v, rest in zip(vertices, several, strict=True)]
        self._scopes = np.array(rows, np.int64).reshape(-1, widest + 1)
        self._weights = np.array([MANY_AXES_TAKE if len(members) > FEW_AXES else 1 for members in several])

    def of(self, sizes: IntArray) -> FloatArray:
        """``(positions,)``, with so many configurations of each vertex."""
        known = np.append(sizes, 1).astype(float)
        return self._weights * known[self._scopes].prod(axis=1)


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
