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

from tensoropt.errors import InfeasibleError
from tensoropt.search.grid import Grid, on_grid, problem_grids
from tensoropt.search.problem import FloatArray, IntArray, Problem, same_memory

__all__ = ["Reduced", "Term", "reduce_problem"]

_VISITS = 4
"""How often a variable's configurations are compared again after a neighbour lost some. Later visits find
little."""


_SAMPLE = 5
"""Columns in which configurations are compared at first."""


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


def _side(term: Term, variable: int) -> tuple[FloatArray, FloatArray, int | None]:
    """The term's (time, memory) with ``variable``'s axis first, and the other variable."""
    time, memory = term.costs.time_s, term.costs.memory_bytes
    if len(term.scope) == 1:
        return time, memory, None
    if term.scope[0] == variable:
        return time, memory, term.scope[1]
    return time.swapaxes(0, 1), memory.swapaxes(0, 1), term.scope[0]


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
            if len(term.scope) == 1:
                continue
            key = id(term.costs)
            if key not in supports:
                pairs = np.asarray(np.isfinite(term.costs.time_s).any(axis=-1))
                supports[key] = None if pairs.all() else pairs
            possible = supports[key]
            if possible is not None:
                possible = possible if term.scope[0] == v else possible.T
                other = term.scope[1] if term.scope[0] == v else term.scope[0]
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
    queue = deque(range(len(alive)))
    waiting, visits = [True] * len(alive), [0] * len(alive)
    while queue:
        v = queue.popleft()
        waiting[v] = False
        visits[v] += 1
        rows = alive[v]
        if len(rows) == 1:
            continue
        parts = []
        key: list[object] = [rows.tobytes()]
        for term in of[v]:
            time, memory, other = _side(term, v)
            columns = slice(None) if other is None else alive[other]
            parts.append((time, memory, columns, term.costs.free_memory))
            key += [id(term.costs), term.scope[0] == v, b"" if other is None else alive[other].tobytes()]
        known = done.get(tuple(key))
        if known is None:
            known = done[tuple(key)] = _undominated(rows, parts, worst)
        if len(known) < len(rows):
            alive[v] = known
            for term in of[v]:
                for w in term.scope:
                    if w != v and not waiting[w] and visits[w] < _VISITS:
                        waiting[w] = True
                        queue.append(w)


_Part = tuple[FloatArray, FloatArray, "slice | IntArray", bool]
"""Time and memory with the variable's axis first, the other variable's configurations, whether memory is free."""


def _undominated(rows: IntArray, parts: list[_Part], worst: Callable[..., None]) -> IntArray:
    """The configurations among ``rows`` that none of the others can stand in for."""
    whole: list[list[FloatArray]] = [[], []]
    for time, memory, columns, free_memory in parts:
        for which, table in enumerate((time, memory)):
            if which == 0 or not free_memory:
                part = table[rows] if isinstance(columns, slice) else table[np.ix_(rows, columns)]
                whole[which].append(np.ascontiguousarray(part.reshape(len(rows), -1)))
    wanted = ~np.eye(len(rows), dtype=bool)
    # A few columns rule most pairs out; only the others are compared in all of them.
    for columns_seen in (_SAMPLE, 1 << 62):
        for which in (0, 1):
            total = np.zeros((len(rows), len(rows)))
            for table in whole[which]:
                worst(table, wanted, columns_seen, total)
            wanted &= total <= 0.0
    index = np.arange(len(rows))
    gone = (wanted & (~wanted.T | (index[:, None] < index))).any(axis=0)
    kept: IntArray = rows[~gone]
    return kept


def _classes(
    variable: int, alive: list[IntArray], terms: list[Term], done: dict[tuple[object, ...], IntArray]
) -> IntArray:
    """Numbers the configurations whose edge tables' rows are bitwise equal.

    ``done`` has the numbers that single tables give; repeated layers ask for the same.
    """
    rows = alive[variable]
    classes = np.zeros(len(rows), np.int64)
    for term in terms:
        time, memory, other = _side(term, variable)
        if other is None:
            continue
        key = (id(term.costs), term.scope[0] == variable, rows.tobytes(), alive[other].tobytes())
        if key not in done:
            where = np.ix_(rows, alive[other])
            parts = [time[where].reshape(len(rows), -1)]
            if not term.costs.free_memory:
                parts.append(memory[where].reshape(len(rows), -1))
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
