"""What can be said before any elimination: nodes that share a configuration, configurations that never pay.

All of it is exact. Nodes of one group become one *variable*. A configuration goes if it is impossible, or if
another one is at least as good whatever the rest of the graph does. Configurations that the rest of the graph
cannot tell apart become one class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.errors import InfeasibleError
from tensoropt.search.grid import Grid, on_grid, problem_grids
from tensoropt.search.problem import FloatArray, IntArray, Problem, same_memory

__all__ = ["Reduced", "Term", "reduce_problem"]

_VISITS = 4
"""How often a variable's configurations are compared again after a neighbour lost some. Later visits find
little."""


_SAMPLE = 5
"""Columns in which configurations are compared at first."""

_SEEN_ROWS = 128
"""Tables of more configurations are compared again each time, rather than that all comparisons are held."""


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Time and memory of one table, ``(..., P)``; +inf in both where impossible. One object per distinct
    table."""

    time_s: FloatArray
    memory_bytes: FloatArray
    free_memory: bool


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A table of the problem over variables.

    Attributes:
        term: the node *i*, or N + *e* for edge *e*.
        scope: one variable, or two different ones.
        costs: one axis per variable of ``scope``, then alternatives.
    """

    term: int
    scope: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A problem over variables.

    Attributes:
        members: per variable, the nodes that it decides, ascending.
        terms: all nodes and edges.
        alive: per variable, the configurations that remain, ascending.
        classes: per variable, the class of each remaining configuration; classes are numbered by first
            member.
    """

    members: tuple[tuple[int, ...], ...]
    terms: tuple[Term, ...]
    alive: tuple[IntArray, ...]
    classes: tuple[IntArray, ...]

    def representatives(self, variable: int) -> IntArray:
        """The first remaining configuration of each class."""
        _, first = np.unique(self.classes[variable], return_index=True)
        chosen: IntArray = self.alive[variable][first]
        return chosen


def reduce_problem(problem: Problem) -> Reduced:
    """Contracts groups, drops impossible and dominated configurations, and finds classes.

    Raises:
        InfeasibleError: a node has no possible configuration.
    """
    groups = np.arange(problem.nodes) if problem.groups is None else problem.groups
    _, leaders, member = np.unique(groups, return_index=True, return_inverse=True)
    # Variables in the order of their first nodes.
    place = np.empty(len(leaders), np.int64)
    place[np.argsort(leaders)] = np.arange(len(leaders))
    variable = place[member].tolist()
    members: list[list[int]] = [[] for _ in leaders]
    for node, v in enumerate(variable):
        members[v].append(node)
    terms = _terms(problem, variable)
    of: list[list[Term]] = [[] for _ in leaders]
    for term in terms:
        for v in term.scope:
            of[v].append(term)
    alive = _possible(problem, members, of)
    _drop_dominated(alive, of)
    done: dict[tuple[object, ...], IntArray] = {}
    classes = tuple(_classes(v, alive, of[v], done) for v in range(len(members)))
    return Reduced(tuple(tuple(m) for m in members), tuple(terms), tuple(alive), classes)


def _terms(problem: Problem, variable: list[int]) -> list[Term]:
    grids = problem_grids(problem)
    known: dict[object, Costs] = {}

    def costs(time: FloatArray, memory: FloatArray, form: str) -> Costs:
        key = (form, *(part for a in (time, memory) for part in same_memory(a)))
        if key not in known:
            made = _costs(time, memory, grids, form)
            content = (form, time.shape, made.time_s.tobytes(), made.memory_bytes.tobytes())
            known[key] = known.setdefault(content, made)
        return known[key]

    terms = [Term(i, (variable[i],), costs(*problem.node_tables(i), "node")) for i in range(problem.nodes)]
    for e, (u, v) in enumerate(problem.edges.tolist()):
        a, b = variable[u], variable[v]
        # Scopes ascend, so that parallel edges meet whichever way they point.
        form = "within" if a == b else "forward" if a < b else "backward"
        scope = (a,) if a == b else (min(a, b), max(a, b))
        terms.append(Term(problem.nodes + e, scope, costs(*problem.edge_tables(e), form)))
    return terms


def _costs(time: FloatArray, memory: FloatArray, grids: tuple[Grid, Grid], form: str) -> Costs:
    if form == "within":  # both ends take one configuration: the diagonal
        diagonal = np.arange(time.shape[0])
        time, memory = time[diagonal, diagonal], memory[diagonal, diagonal]
    elif form == "backward":
        time, memory = time.swapaxes(0, 1), memory.swapaxes(0, 1)
    time, memory = on_grid(time, grids[0]), on_grid(memory, grids[1])
    impossible = ~np.isfinite(time + memory)
    if impossible.any():
        time, memory = np.where(impossible, np.inf, time), np.where(impossible, np.inf, memory)
    free = not memory.any()
    return Costs(np.ascontiguousarray(time), np.ascontiguousarray(memory), free)


def _other(term: Term, variable: int) -> int | None:
    """The variable at the other end of an edge."""
    return None if len(term.scope) == 1 else term.scope[1 if term.scope[0] == variable else 0]


def _possible(problem: Problem, members: list[list[int]], of: list[list[Term]]) -> list[IntArray]:
    """Configurations that some configuration of every neighbour can stand beside (arc consistency)."""
    masks = []
    for v, nodes in enumerate(members):
        mask = np.ones(problem.configurations(nodes[0]), bool)
        for term in of[v]:
            if len(term.scope) == 1:
                mask &= np.isfinite(term.costs.time_s).any(axis=-1)
        masks.append(mask)
    supports: dict[int, np.ndarray | None] = {}
    queue = deque(range(len(members)))
    waiting = [True] * len(members)
    while queue:
        v = queue.popleft()
        waiting[v] = False
        mask = masks[v].copy()
        for term in of[v]:
            other = _other(term, v)
            if other is None:
                continue
            key = id(term.costs)
            if key not in supports:
                pairs = np.asarray(np.isfinite(term.costs.time_s).any(axis=-1))
                supports[key] = None if pairs.all() else pairs
            possible = supports[key]
            if possible is not None:
                possible = possible if term.scope[0] == v else possible.T
                mask &= possible[:, masks[other]].any(axis=1)
        if not mask.any():
            names = ", ".join(repr(problem.names[i]) for i in members[v])
            beside = sorted({i for term in of[v] for w in term.scope if w != v for i in members[w]})
            raise InfeasibleError(
                f"Problem node {names}: must have a configuration of finite cost beside its neighbours "
                f"({', '.join(repr(problem.names[i]) for i in beside) or 'none'}), but all {len(mask)} are "
                "impossible. Allow more configurations there."
            )
        if not np.array_equal(mask, masks[v]):
            masks[v] = mask
            for term in of[v]:
                for w in term.scope:
                    if w != v and not waiting[w]:
                        waiting[w] = True
                        queue.append(w)
    return [np.flatnonzero(mask) for mask in masks]


def _drop_dominated(alive: list[IntArray], of: list[list[Term]]) -> None:
    """Drops configurations for which another is at least as good in both costs, beside anything.

    Going from *j* to *k* changes each table by at most its worst row difference. If these sum to <= 0 for
    time and for memory, every strategy with *j* is matched by the one with *k* instead (of equal ones the
    first stays).
    """
    # Imported here because it takes Numba.
    from tensoropt.ft.kernels import worst

    done: dict[tuple[object, ...], IntArray] = {}
    seen: dict[tuple[object, ...], tuple[FloatArray, FloatArray]] = {}
    queue = deque(range(len(alive)))
    waiting, visits = [True] * len(alive), [0] * len(alive)
    while queue:
        v = queue.popleft()
        waiting[v] = False
        visits[v] += 1
        rows = alive[v]
        if len(rows) == 1:
            continue
        sides: dict[tuple[object, ...], tuple[_Side, int]] = {}
        for term in of[v]:
            other = _other(term, v)
            columns = None if other is None else alive[other]
            key = (id(term.costs), term.scope[0] == v, b"" if columns is None else columns.tobytes())
            side, count = sides.get(key) or (_Side(term.costs, term.scope[0] == v, columns), 0)
            sides[key] = side, count + 1
        what = (rows.tobytes(), *((key, count) for key, (_, count) in sides.items()))
        known = done.get(what)
        if known is None:
            known = done[what] = _undominated(rows, sides, seen, worst)
        if len(known) < len(rows):
            alive[v] = known
            for term in of[v]:
                for w in term.scope:
                    if w != v and not waiting[w] and visits[w] < _VISITS:
                        waiting[w] = True
                        queue.append(w)


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One variable's side of a table.

    Attributes:
        costs: the table.
        first: whether the variable is its first axis.
        columns: the other variable's configurations; None if there is none.
    """

    costs: Costs
    first: bool
    columns: IntArray | None

    def tables(self, rows: IntArray | slice) -> list[FloatArray]:
        """Time, and memory unless it is free, of some configurations."""
        found = []
        for table in (self.costs.time_s, self.costs.memory_bytes)[: 1 if self.costs.free_memory else 2]:
            turned = table if self.first else table.swapaxes(0, 1)
            part = turned[rows] if self.columns is None else turned[rows][:, self.columns]
            found.append(np.ascontiguousarray(part.reshape(len(part), -1)))
        return found


def _undominated(
    rows: IntArray,
    sides: dict[tuple[object, ...], tuple[_Side, int]],
    seen: dict[tuple[object, ...], tuple[FloatArray, FloatArray]],
    worst: Callable[..., None],
) -> IntArray:
    """The configurations among ``rows`` that none of the others can stand in for.

    A few columns rule most pairs out, and are compared once per table (``seen``); the other pairs are compared in all.

    Args:
        rows: configurations.
        sides: the tables around, and how often each is there, by what makes them equal.
        seen: is added to.
        worst: the compiled loop.
    """
    totals = [np.zeros((len(rows), len(rows))) for _ in range(2)]
    for key, (side, count) in sides.items():
        found = seen.get(key) or _compared(side.tables(slice(None)), None, _SAMPLE, worst)
        if len(found[0]) <= _SEEN_ROWS:
            seen[key] = found
        for total, difference in zip(totals, found, strict=True):
            with np.errstate(invalid="ignore"):  # of impossible ones, whose sums rule pairs out
                total += count * (difference if len(difference) == len(rows) else difference[np.ix_(rows, rows)])
    wanted = (totals[0] <= 0.0) & (totals[1] <= 0.0)
    np.fill_diagonal(wanted, False)
    if not wanted.any():
        return rows
    whole = [np.zeros((len(rows), len(rows))) for _ in range(2)]
    for side, count in sides.values():
        for total, difference in zip(whole, _compared(side.tables(rows), wanted, 1 << 62, worst), strict=True):
            with np.errstate(invalid="ignore"):
                total += count * difference
    wanted &= (whole[0] <= 0.0) & (whole[1] <= 0.0)
    index = np.arange(len(rows))
    gone = (wanted & (~wanted.T | (index[:, None] < index))).any(axis=0)
    kept: IntArray = rows[~gone]
    return kept


def _compared(
    tables: list[FloatArray], wanted: npt.NDArray[np.bool_] | None, columns: int, worst: Callable[..., None]
) -> tuple[FloatArray, FloatArray]:
    """By how much each row exceeds each other at most, in time and in memory; 0.0 where it is not wanted."""
    count = len(tables[0])
    pairs = np.ones((count, count), bool) if wanted is None else wanted
    found = [np.zeros((count, count)) for _ in range(2)]
    for total, table in zip(found, tables, strict=False):
        worst(table, pairs, columns, total)
    return found[0], found[1]


def _classes(
    variable: int, alive: list[IntArray], terms: list[Term], done: dict[tuple[object, ...], IntArray]
) -> IntArray:
    """Numbers the configurations whose edge tables' rows are bitwise equal.

    ``done`` has the numbers that single tables give; repeated layers ask for the same.
    """
    rows = alive[variable]
    classes = np.zeros(len(rows), np.int64)
    for term in terms:
        other = _other(term, variable)
        if other is None:
            continue
        key = (id(term.costs), term.scope[0] == variable, rows.tobytes(), alive[other].tobytes())
        if key not in done:
            parts = _Side(term.costs, term.scope[0] == variable, alive[other]).tables(rows)
            number: dict[bytes, int] = {}
            done[key] = np.array(
                [number.setdefault(b"".join(row), len(number)) for row in zip(*map(_row_bytes, parts), strict=True)],
                np.int64,
            )
        pairs = classes * len(rows) + done[key]
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        if len(first) == len(rows):
            return np.arange(len(rows))
        # Numbered by first members.
        place = np.empty(len(first), np.int64)
        place[np.argsort(first)] = np.arange(len(first))
        classes = place[inverse.reshape(-1)]
    return classes


def _row_bytes(table: FloatArray) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(table)]
