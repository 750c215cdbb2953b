"""The graph that eliminations simplify: variables, and frontier tables over the configurations of some of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensoropt.ft.factors import EliminationState, Factor, Limits, Reach, unit
from tensoropt.ft.origin import Leaf, Select
from tensoropt.ft.reduction import Reduced, Term
from tensoropt.problem.frontier_tables import FrontierTable, table_from_costs
from tensoropt.problem.pareto import reduce_segments
from tensoropt.problem.problem import IntArray, Problem

__all__ = ["CostGraph", "build_cost_graph"]


class CostGraph:
    """Variables that are undecided, and factors over them.

    Factors over the same variables are merged (edge elimination, Eq. 5) only once they are needed: bounds are worked
    out without, and leave less to merge.

    Attributes:
        sizes: the number of configurations of each variable.
        state: what all eliminations share.
        limits: what every new table's points are tested by, or None.
    """

    def __init__(self, sizes: dict[int, int], state: EliminationState, limits: Limits | None = None) -> None:
        self.sizes = dict(sizes)
        self.limits = limits
        self.state = state
        self._factors: dict[tuple[int, ...], list[Factor]] = {}
        self._of: dict[int, set[tuple[int, ...]]] = {v: set() for v in sizes}

    def add(self, factor: Factor) -> None:
        """Adds a factor."""
        self._factors.setdefault(factor.scope, []).append(factor)
        for v in factor.scope:
            self._of[v].add(factor.scope)

    def factors(self) -> Iterator[Factor]:
        """All factors as they are, by scope. The empty scope has what is fully decided."""
        for scope in sorted(self._factors):
            yield from self._factors[scope]

    def merged(self, scope: tuple[int, ...]) -> Factor:
        """The one factor over ``scope``, of which there must be any."""
        whole = self.state.merge(self._factors[scope], self.sizes, self.limits)
        self._factors[scope] = [whole]
        return whole

    def around(self, variable: int) -> list[Factor]:
        """The factors over ``variable``, smallest first."""
        found = [self.merged(scope) for scope in sorted(self._of[variable])]
        return sorted(found, key=lambda f: (f.table.cells, f.scope))

    def neighbours(self, variable: int) -> tuple[int, ...]:
        """The variables that share a factor with ``variable``, ascending."""
        return tuple(sorted({v for scope in self._of[variable] for v in scope} - {variable}))

    def _remove(self, scope: tuple[int, ...]) -> None:
        for v in scope:
            self._of[v].discard(scope)
        del self._factors[scope]

    def eliminate(self, variable: int, kind: str) -> Factor:
        """Decides ``variable`` for every joint configuration of its neighbours, and removes it.

        With two neighbours this is node elimination (Eq. 4), with one a step of LDP (Algorithm 3, line 6),
        with more the compound of branch elimination (Eq. 6), reduced over the merged node at once.

        Returns:
            the factor over its neighbours that it left.
        """
        factors = self.around(variable)
        for factor in factors:
            self._remove(factor.scope)
        whole = factors[0]
        if len(factors) == 1:
            factors.append(unit() if self.limits is None else _limited(unit(), self.limits))
        for factor in factors[1:-1]:
            scope = tuple(sorted({*whole.scope, *factor.scope}))
            whole = self.state.join(whole, factor, scope, (), self.sizes, limits=self.limits)
        scope = tuple(sorted({*whole.scope, *factors[-1].scope} - {variable}))
        self.state.record(kind, (variable,), scope)
        result = self.state.join(whole, factors[-1], scope, (variable,), self.sizes, self.state.ratio, self.limits)
        del self.sizes[variable], self._of[variable]
        self.add(result)
        return result

    def work(self, variable: int) -> float:
        """About how many candidates eliminating ``variable`` makes: mean frontier lengths times joint
        cells."""
        candidates = 1.0
        for v in (variable, *self.neighbours(variable)):
            candidates *= self.sizes[v]
        for scope in sorted(self._of[variable]):
            candidates *= 1.0 + sum([f.copies * (f.table.mean_points - 1.0) for f in self._factors[scope]])
        return candidates

    def copy(self) -> CostGraph:
        """The same graph, to be changed apart."""
        return self.restricted({v: np.arange(k) for v, k in self.sizes.items()}, self.state, self.limits)

    def restricted(self, chosen: dict[int, IntArray], state: EliminationState, limits: Limits | None) -> CostGraph:
        """The graph with only some configurations of each variable."""
        graph = CostGraph({v: len(chosen[v]) for v in self.sizes}, state, limits)
        made: dict[tuple[object, ...], tuple[FrontierTable, IntArray]] = {}
        content = {v: rows.tobytes() for v, rows in chosen.items()}
        fewer = {v for v, rows in chosen.items() if len(rows) < self.sizes[v]}
        for scope, factors in sorted(self._factors.items()):
            left = factors
            if not fewer.isdisjoint(scope):
                rows = [content[v] for v in scope]
                left = []
                for factor in factors:
                    key = (id(factor.table), *rows)
                    if key not in made:
                        cells = np.zeros((), np.int64)
                        for v, size in zip(scope, factor.table.shape, strict=True):
                            cells = cells[..., None] * size + chosen[v]
                        made[key] = factor.table.take(cells.reshape(-1), cells.shape)
                    table, points = made[key]
                    left.append(Factor(scope, table, Select(factor.origin, points), copies=factor.copies))
            if limits is not None:
                # What a scope takes is known of its factors together only.
                left = [_limited(state.merge(left, graph.sizes, limits), limits)]
            for factor in left:
                graph.add(factor)
        return graph

    def components(self) -> list[list[int]]:
        """Undecided variables that hang together, each list ascending, lists by their first."""
        seen: set[int] = set()
        found = []
        for start in sorted(self.sizes):
            if start in seen:
                continue
            seen.add(start)
            stack, part = [start], []
            while stack:
                v = stack.pop()
                part.append(v)
                for w in self.neighbours(v):
                    if w not in seen:
                        seen.add(w)
                        stack.append(w)
            found.append(sorted(part))
        return found

    def part(self, variables: list[int]) -> CostGraph:
        """The graph of some variables that share no factor with others."""
        chosen = set(variables)
        graph = CostGraph({v: self.sizes[v] for v in variables}, self.state)
        for factor in self.factors():
            if factor.scope and factor.scope[0] in chosen:
                graph.add(factor)
        return graph

    def fixed(self, variable: int, configuration: int) -> CostGraph:
        """The graph after ``variable`` took one configuration (Eq. 7)."""
        graph = CostGraph({v: k for v, k in self.sizes.items() if v != variable}, self.state)
        for factor in self.factors():
            if variable in factor.scope:
                axis = factor.scope.index(variable)
                cells = np.arange(factor.table.cells).reshape(factor.table.shape).take(configuration, axis=axis)
                table, points = factor.table.take(cells.reshape(-1), cells.shape)
                scope = tuple(v for v in factor.scope if v != variable)
                factor = Factor(scope, table, Select(factor.origin, points), copies=factor.copies)
            graph.add(factor)
        return graph


def _limited(factor: Factor, limits: Limits) -> Factor:
    """A factor of the graph that limits are for."""
    return Factor(factor.scope, factor.table, factor.origin, Reach(limits, factor.scope))


def build_cost_graph(problem: Problem, reduced: Reduced, state: EliminationState) -> CostGraph:
    """Initialization (Algorithm 2, line 3): the frontiers of single nodes and edges."""
    sizes = {v: len(alive) for v, alive in enumerate(reduced.alive)}
    whole = CostGraph(sizes, state)
    made: dict[tuple[object, ...], _Leaves] = {}

    def leaves(term: Term, rows: list[IntArray], content: list[bytes]) -> _Leaves:
        key = (id(term.costs), *content)
        if key not in made:
            time, memory = term.costs.time_s, term.costs.memory_bytes
            *sizes, several = time.shape
            if [len(chosen) for chosen in rows] != sizes:
                time, memory = time[np.ix_(*rows)], memory[np.ix_(*rows)]
            table, source = table_from_costs(time, memory)
            cell, alternative = (source, None) if several == 1 else np.divmod(source, several)
            made[key] = _Leaves(table, rows[0][cell] if len(rows) == 1 else None, alternative)
        return made[key]

    def leaf(term: Term, found: _Leaves, configuration: IntArray | None) -> Factor:
        origin = Leaf(term.terms, configuration, found.alternative)
        return Factor(term.scope, found.table, origin, copies=len(term.terms))

    content = [rows.tobytes() for rows in reduced.alive]
    for term in reduced.terms:
        if len(term.scope) == 1:
            v = term.scope[0]
            found = leaves(term, [reduced.alive[v]], [content[v]])
            configuration = found.configuration if term.terms[0] < problem.nodes else None
            whole.add(leaf(term, found, configuration))
    graph = CostGraph({v: int(c.max()) + 1 for v, c in enumerate(reduced.classes)}, state)
    merged: dict[tuple[int, bytes], tuple[FrontierTable, IntArray]] = {}
    for v, classes in enumerate(reduced.classes):
        factor = whole.merged((v,))
        if graph.sizes[v] < sizes[v]:
            factor = _merge_classes(factor, classes, merged)
        graph.add(factor)
    ends = [reduced.representatives(v) for v in range(len(reduced.members))]
    content = [rows.tobytes() for rows in ends]
    for term in reduced.terms:
        if len(term.scope) == 2:
            u, v = term.scope
            found = leaves(term, [ends[u], ends[v]], [content[u], content[v]])
            graph.add(leaf(term, found, None))
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class _Leaves:
    """The frontiers of one table of the problem, and of each point its configuration, for a node, and alternative."""

    table: FrontierTable
    configuration: IntArray | None
    alternative: IntArray | None


def _merge_classes(
    factor: Factor, classes: IntArray, made: dict[tuple[int, bytes], tuple[FrontierTable, IntArray]]
) -> Factor:
    """Union of the frontiers of each class."""
    key = (id(factor.table), classes.tobytes())
    if key not in made:
        table = factor.table
        order = np.argsort(classes, kind="stable")
        regrouped, points = table.take(order, table.shape)
        counts = np.bincount(classes[order], weights=regrouped.counts).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        kept, offsets = reduce_segments(offsets, regrouped.time_s, regrouped.memory_bytes)
        made[key] = (
            FrontierTable((len(counts),), offsets, regrouped.time_s[kept], regrouped.memory_bytes[kept]),
            points[kept],
        )
    merged, points = made[key]
    return Factor(factor.scope, merged, Select(factor.origin, points))
