"""Exact reductions before any elimination: nodes that share a configuration, configurations that are impossible.

The nodes of one group become one *variable*. Configurations that no configuration of some neighbour is compatible with
are removed; those that the rest of the graph cannot tell apart become one class.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.problem.variables import VariableTable, node_variables, tables_over_variables
from tensoropt.storage.document import quoted

__all__ = ["Reduced", "Term", "reduce_problem"]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Time and memory of one table, ``(..., P)``; +inf in both where impossible. One object per distinct
    table."""

    time_s: FloatArray
    memory_bytes: FloatArray
    free_memory: bool


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A table of the problem over variables, once for all nodes, or all edges, that have it over the same ones.

    Attributes:
        terms: the nodes *i*, or N + *e* for edges *e*.
        scope: one variable, or two different ones.
        costs: one axis per variable of ``scope``, then alternatives.
    """

    terms: tuple[int, ...]
    scope: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """A problem over variables.

    Attributes:
        members: per variable, the nodes that it decides, ascending.
        terms: all nodes, then all edges.
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
    """Contracts groups, drops impossible configurations, and finds classes.

    Raises:
        InfeasibleError: a node has no possible configuration.
    """
    variable, members = node_variables(problem)
    terms = _terms(problem, variable)
    of: list[list[Term]] = [[] for _ in members]
    for term in terms:
        for v in term.scope:
            of[v].append(term)
    alive = _possible(problem, members, of)
    return Reduced(members, tuple(terms), tuple(alive), tuple(_classes(alive, of)))


def _terms(problem: Problem, variable: tuple[int, ...]) -> list[Term]:
    known: dict[object, Costs] = {}

    def costs(table: VariableTable) -> Costs:
        key = (table.form, id(table.time_s), id(table.memory_bytes))
        if key not in known:
            made = _costs(table)
            content = (table.form, made.time_s.shape, made.time_s.tobytes(), made.memory_bytes.tobytes())
            known[key] = known.setdefault(content, made)
        return known[key]

    # What has the same tables over the same variables, by the tables as they are, then by what they hold.
    same: dict[tuple[object, ...], tuple[VariableTable, list[int]]] = {}
    for term, table in enumerate(tables_over_variables(problem, variable)):
        key = (id(table.time_s), id(table.memory_bytes), table.scope, table.form)
        same.setdefault(key, (table, []))[1].append(term)
    grouped: dict[tuple[bool, tuple[int, ...], int], tuple[Costs, list[int]]] = {}
    for table, terms in same.values():
        made = costs(table)
        grouped.setdefault((table.form == "node", table.scope, id(made)), (made, []))[1].extend(terms)
    return [Term(tuple(sorted(terms)), scope, made) for (_, scope, _), (made, terms) in grouped.items()]


def _costs(table: VariableTable) -> Costs:
    time, memory = table.over_variables()
    if time.ndim == len(table.scope):  # without alternatives
        time, memory = time[..., None], memory[..., None]
    exists = np.isfinite(time) & np.isfinite(memory)
    if not exists.all():
        time, memory = np.where(exists, time, np.inf), np.where(exists, memory, np.inf)
    return Costs(np.ascontiguousarray(time), np.ascontiguousarray(memory), not memory.any())


def _other(term: Term, variable: int) -> int | None:
    """The variable at the other end of an edge."""
    return None if len(term.scope) == 1 else term.scope[1 if term.scope[0] == variable else 0]


def _possible(problem: Problem, members: Sequence[Sequence[int]], of: list[list[Term]]) -> list[IntArray]:
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
            names = ", ".join(quoted(problem.names[i]) for i in members[v])
            beside = sorted({i for term in of[v] for w in term.scope if w != v for i in members[w]})
            raise InfeasibleError(
                f"Problem node {names}: must have a configuration of finite cost beside its neighbours "
                f"({', '.join(quoted(problem.names[i]) for i in beside) or 'none'}), but all {len(mask)} are "
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


def _classes(alive: list[IntArray], of: list[list[Term]]) -> list[IntArray]:
    """Numbers each variable's configurations whose edge tables' rows are equal, by first members.

    Repeated layers ask for the same, of a table and of all tables of a variable.
    """
    content = [rows.tobytes() for rows in alive]
    by_table: dict[tuple[object, ...], list[int]] = {}
    by_tables: dict[tuple[object, ...], IntArray] = {}
    found = []
    for variable, terms in enumerate(of):
        beside = [(term, other) for term in terms if (other := _other(term, variable)) is not None]
        keys = [(id(t.costs), t.scope[0] == variable, content[variable], content[other]) for t, other in beside]
        whole = (content[variable], *sorted({*keys}))
        if whole not in by_tables:
            count = len(alive[variable])
            classes = [0] * count
            for key, (term, other) in zip(keys, beside, strict=True):
                if key not in by_table:
                    by_table[key] = _equal_rows(term, variable, alive[variable], alive[other])
                number: dict[tuple[int, int], int] = {}
                pairs = zip(classes, by_table[key], strict=True)
                classes = [number.setdefault(pair, len(number)) for pair in pairs]
                if len(number) == count:
                    break
            by_tables[whole] = np.array(classes, np.int64)
        found.append(by_tables[whole])
    return found


def _equal_rows(term: Term, variable: int, rows: IntArray, beside: IntArray) -> list[int]:
    """The class of each row of a table, by first members."""
    # Imported here because it takes Numba.
    from tensoropt.ft.kernels import equal_rows

    same = np.zeros(len(rows), np.int64)
    for table in [term.costs.time_s, term.costs.memory_bytes][: 1 if term.costs.free_memory else 2]:
        seen = table if term.scope[0] == variable else table.swapaxes(0, 1)
        cells = np.ascontiguousarray(seen[np.ix_(rows, beside)]).reshape(len(rows), -1)
        same = equal_rows(cells, same)
    classes: list[int] = same.tolist()
    return classes
