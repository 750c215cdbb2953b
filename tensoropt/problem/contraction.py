"""A problem with fewer nodes: those that others decide for are added up, and the way back."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from tensoropt.problem.frontier import Candidates, Frontier, frontier_among
from tensoropt.problem.problem import FloatArray, IntArray, Problem

__all__ = ["Contraction"]

_Tables = tuple[FloatArray, FloatArray]


class Contraction:
    """A problem in which some nodes decide for all.

    Tables between the same nodes are added up unless they have alternatives, so the costs of a strategy stay what they
    were. Tables that were shared stay shared, if what they are added to is shared, too.

    Attributes:
        whole: the problem that was contracted.
        problem: over the nodes that decide. A table with alternatives that cannot be added is a node of the same
            group, or an edge, of its own.
        restricts: whether equal layers decide as one, see `further`.
    """

    def __init__(
        self,
        whole: Problem,
        leaders: IntArray,
        index: Sequence[IntArray | None] | None = None,
        *,
        together: bool = False,
    ) -> None:
        """Adds up the tables.

        Args:
            whole: a problem; its own groups are kept to if nodes that decide stand for all of theirs.
            leaders: ``(N,)``, per node the one that decides for it, or another one of that node's group.
            index: per node, its configuration by that of the one that decides, ``(K,)``; None for the same. Left
                out if it is the same for all.
            together: whether tables that are one object take the same alternative where they meet. Without it each is
                free to take its own, and the contracted problem has a table of its own for each.
        """
        self.whole = whole
        self.restricts = False
        self._index = (None,) * whole.nodes if index is None else tuple(index)
        self._together = together
        deciding = sorted(set(leaders.tolist()))
        place = {node: number for number, node in enumerate(deciding)}
        self._place = np.array([place[leader] for leader in leaders.tolist()])
        # The term of the contracted problem that has this one's alternatives; -1 where it has none.
        self._term = np.full(whole.nodes + len(whole.edges), -1)
        self._arranged: dict[tuple[object, ...], tuple[_Tables, _Tables]] = {}
        self._added: dict[tuple[object, ...], tuple[tuple[_Tables, ...], _Tables]] = {}
        self.problem = self._contracted(deciding)

    @property
    def searched(self) -> str:
        """Describes in words the operators that a search of `problem` decides."""
        groups = self.problem.nodes if self.problem.groups is None else len({*self.problem.groups.tolist()})
        return f"the {groups} of {self.whole.nodes} operators that decide"

    def further(self, leaders: IntArray) -> Contraction:
        """A contraction to still fewer nodes, which leaves out strategies: its frontiers are not exact.

        Args:
            leaders: per node of `problem`, the one that decides for it, with the same configuration. Tables that are
                one object take the same alternative where they meet.
        """
        inner = Contraction(self.problem, leaders, together=True)
        other = copy.copy(self)
        other.problem, other.restricts = inner.problem, True
        other._place = inner._place[self._place]
        other._term = np.where(self._term < 0, -1, inner._term[self._term])
        return other

    def expand(
        self, frontier: Frontier, *more: Frontier, beside: Sequence[Frontier] = (), exact: bool | None = None
    ) -> Frontier:
        """Frontiers of the contracted problem as one of the whole.

        Args:
            frontier: of `problem`, or of one of the same shape, such as with rounded tables.
            more: others, of which points that none of the others beats are added.
            beside: the same of the whole problem.
            exact: what is claimed of the result; by default what ``frontier`` claims, if nothing `restricts`.
        """
        found = [frontier, *more]
        return frontier_among(
            self.whole.names,
            [
                *(Candidates(*self.problem.costs(*one.rows()), partial(self._rows, one)) for one in found),
                *(Candidates(one.time_s, one.memory_bytes, partial(_compact_rows, one)) for one in beside),
            ],
            exact=(frontier.exact if exact is None else exact) and not self.restricts,
            eliminations=frontier.eliminations,
            seconds=sum(one.seconds for one in (*found, *beside)),
        )

    def deciding(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """Converts a strategy of the whole problem to one of `problem`: the choices of the deciding nodes."""
        chosen = dict(zip(self.whole.names, assignment, strict=True))
        problem = self.problem
        groups = range(problem.nodes) if problem.groups is None else problem.groups.tolist()
        # A group is numbered by the node that decides; the others of it are tables that could not be added.
        return tuple(int(chosen[problem.names[group]]) for group in groups)

    def _rows(self, frontier: Frontier, points: IntArray) -> tuple[IntArray, IntArray]:
        """Points of a frontier of `problem` as strategies of the whole."""
        assignments, alternatives = _compact_rows(frontier, points)
        chosen = assignments.T[self._place]
        for node, by in enumerate(self._index):
            if by is not None:
                chosen[node] = by[chosen[node]]
        picks = alternatives.T[self._term]
        picks[self._term < 0] = 0
        return chosen.T, picks.T

    def _contracted(self, deciding: list[int]) -> Problem:
        whole, places = self.whole, self._place.tolist()
        nodes: list[list[_Tables]] = [[] for _ in deciding]
        edges: dict[tuple[int, int], list[_Tables]] = {}
        apart: dict[tuple[object, ...], tuple[list[int], tuple[int, ...], _Tables]] = {}
        for term in range(whole.nodes + len(whole.edges)):
            if term < whole.nodes:
                ends: tuple[int, ...] = (term,)
                tables = whole.node_time_s[term], whole.node_memory_bytes[term]
            else:
                e = term - whole.nodes
                ends = tuple(whole.edges[e].tolist())
                tables = whole.edge_time_s[e], whole.edge_memory_bytes[e]
            scope = tuple(places[end] for end in ends)
            tables = self._by_deciding(tables, ends, len(set(scope)) == 1)
            scope = tuple(dict.fromkeys(scope))
            if tables[0].ndim > len(scope):
                key = (scope, *map(id, tables)) if self._together else (term,)
                apart.setdefault(key, ([], scope, tables))[0].append(term)
            elif len(scope) == 1:
                nodes[scope[0]].append(tables)
            elif 1 in tables[0].shape:  # who has no choice adds a cost to what the other chooses
                nodes[scope[int(tables[0].shape[0] == 1)]].append(self._flat(tables))
            elif scope[::-1] in edges:
                edges[scope[::-1]].append(self._turned(tables))
            else:
                edges.setdefault((scope[0], scope[1]), []).append(tables)
        names = [whole.names[node] for node in deciding]
        groups = list(range(len(names)))
        # All tables of a node may be kept apart; it costs nothing by itself then.
        node_tables = [
            self._sum(tables) if tables else (np.zeros(whole.configurations(node)),) * 2
            for node, tables in zip(deciding, nodes, strict=True)
        ]
        ends_of = list(edges)
        edge_tables = [self._sum(tables) for tables in edges.values()]
        later = []
        for terms, scope, one in apart.values():
            tables = self._sum([one] * len(terms))
            if len(scope) == 1:
                self._term[terms] = len(names)
                names.append(f"{whole.names[deciding[scope[0]]]}/alternatives{len(names)}")
                groups.append(scope[0])
                node_tables.append(tables)
            else:
                later.append((terms, len(ends_of)))
                ends_of.append((scope[0], scope[1]))
                edge_tables.append(tables)
        for terms, edge in later:
            self._term[terms] = len(names) + edge
        return Problem(
            names,
            [time for time, _ in node_tables],
            [memory for _, memory in node_tables],
            np.array(ends_of, np.int64).reshape(-1, 2),
            [time for time, _ in edge_tables],
            [memory for _, memory in edge_tables],
            groups if len(names) > len(deciding) else None,
            whole.constant_time_s,
            whole.constant_memory_bytes,
        )

    def _by_deciding(self, tables: _Tables, ends: tuple[int, ...], one: bool) -> _Tables:
        """Tables by the configurations of the nodes that decide; without alternatives if only the first exists."""
        by = [self._index[end] for end in ends]
        key = (*map(id, tables), *map(id, by), one)
        if key not in self._arranged:
            time, memory = (_arranged(table, by, one) for table in tables)
            axes = 1 if one else len(ends)
            if time.ndim > axes and not np.isfinite(time[..., 1:] + memory[..., 1:]).any():
                time, memory = time[..., 0], memory[..., 0]
            self._arranged[key] = tables, (time, memory)
        return self._arranged[key][1]

    def _flat(self, tables: _Tables) -> _Tables:
        key = ("flat", *map(id, tables))
        if key not in self._arranged:
            self._arranged[key] = tables, (tables[0].reshape(-1), tables[1].reshape(-1))
        return self._arranged[key][1]

    def _turned(self, tables: _Tables) -> _Tables:
        key = ("turned", *map(id, tables))
        if key not in self._arranged:
            self._arranged[key] = tables, (tables[0].T, tables[1].T)
        return self._arranged[key][1]

    def _sum(self, tables: list[_Tables]) -> _Tables:
        key = tuple(id(part) for pair in tables for part in pair)
        if key not in self._added:
            self._added[key] = tuple(tables), _added(tables) if len(tables) > 1 else tables[0]
        return self._added[key][1]


def _added(tables: list[_Tables]) -> _Tables:
    distinct = {tuple(map(id, pair)): pair for pair in tables}
    counted = Counter(tuple(map(id, pair)) for pair in tables)
    times, memories = zip(*((n * distinct[pair][0], n * distinct[pair][1]) for pair, n in counted.items()), strict=True)
    return sum(times[1:], times[0]), sum(memories[1:], memories[0])


def _arranged(table: FloatArray, by: list[IntArray | None], one: bool) -> FloatArray:
    if len(by) == 2 and one:
        count = next((len(index) for index in by if index is not None), table.shape[0])
        rows, columns = (np.arange(count) if index is None else index for index in by)
        return table[rows, columns]
    for axis, index in enumerate(by):
        if index is not None:
            table = table.take(index, axis=axis)
    return table


def _compact_rows(frontier: Frontier, points: IntArray) -> tuple[IntArray, IntArray]:
    """Rows of some points, in two bytes a number if they fit: of a large model they are a hundred thousand each."""
    assignments, alternatives = frontier.rows(points)
    largest = max(assignments.max(initial=0), alternatives.max(initial=0))
    kind = np.int16 if largest <= np.iinfo(np.int16).max else np.int64
    return assignments.astype(kind, copy=False), alternatives.astype(kind, copy=False)
