"""The graph that eliminations simplify: variables, and frontier tables over the configurations of some of
them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tensoropt.ft.origin import Choice, Join, Leaf, Origin, Select, Sum
from tensoropt.ft.reduction import Reduced
from tensoropt.search.frontier import reduce_segments
from tensoropt.search.problem import FloatArray, IntArray, Problem
from tensoropt.search.result import Elimination
from tensoropt.search.tables import Box, FrontierTable, Joined, Prune, join, table_from_costs

__all__ = ["CostGraph", "Factor", "Limits", "Reach", "TooLongError", "Workshop", "build_cost_graph", "choice", "unit"]


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What a table takes of the least cost of all, under several pairs of weights.

    Attributes:
        taken: per variable of its scope ``(weights, configurations)``.
        decided: ``(weights,)``, of the variables that were decided in it.
    """

    taken: dict[int, FloatArray]
    decided: FloatArray

    def plus(self, other: Reach) -> Reach:
        """That of a product."""
        with np.errstate(invalid="ignore"):  # of impossible configurations, which tests leave out
            taken = {v: a + other.taken[v] if v in other.taken else a for v, a in self.taken.items()}
        taken.update((v, a) for v, a in other.taken.items() if v not in self.taken)
        return Reach(taken, self.decided + other.decided)


class Limits(Protocol):
    """Tests of what can still end on the frontier; see `tensoropt.ft.bounds`."""

    def reach(self, scope: tuple[int, ...]) -> Reach:
        """What one table of the graph takes."""

    def without(self, reach: Reach, gone: Sequence[int]) -> Reach:
        """The same after some variables were decided."""

    def tests(self, reach: Reach, scope: tuple[int, ...]) -> tuple[Prune, Box]:
        """The tests for the points of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A frontier for every joint configuration of ``scope``'s variables (ascending), with its back-pointers.

    ``reach`` is there while limits are.
    """

    scope: tuple[int, ...]
    table: FrontierTable
    origin: Origin
    reach: Reach | None = None


class TooLongError(Exception):
    """Products have more candidates than is allowed; whoever set the limit does something else then."""


_MOST_AXES = 60


PRUNE_FROM = 100_000
"""Candidates of a product from which its points are tested by bounds. Smaller ones of repeated layers are equal as long
as they are not, and made once."""


@dataclass(slots=True, eq=False)
class Workshop:
    """What all eliminations of one search share.

    Attributes:
        names: per variable, the names of its nodes.
        rank: per variable, its place in topological order.
        ratio: thinning per elimination, see `tensoropt.search.tables.join`; 0.0 for exact.
        pool: threads, or None.
        left: candidates that products may still have before they are refused.
        steps: what was done, in order.
        exact: false once something was decided by a heuristic, or thinned.
        conflict: variables of the first table that turned out to have no finite cost.
        progress: is told (variables decided, variables).
        decided: variables eliminated or fixed so far; of those decided several times, the first.
        joined: results by what was joined. Repeated layers have equal tables, so their joins are made once.
        merged: the same of whole merges.
    """

    names: tuple[tuple[str, ...], ...]
    rank: tuple[int, ...]
    ratio: float
    pool: ThreadPoolExecutor | None
    left: float = math.inf
    steps: list[Elimination] = field(default_factory=list)
    exact: bool = True
    conflict: tuple[int, ...] = ()
    progress: Callable[[int, int], None] | None = None
    decided: int = 0
    joined: dict[tuple[object, ...], tuple[FrontierTable, FrontierTable, Joined]] = field(default_factory=dict)
    merged: dict[tuple[int, ...], tuple[list[FrontierTable], FrontierTable, tuple[IntArray, ...]]] = field(
        default_factory=dict
    )

    @contextmanager
    def within(self, ratio: float, candidates: float) -> Iterator[None]:
        """While it lasts, eliminations thin their results, and all products together are limited."""
        before = self.ratio, self.left
        self.ratio, self.left = ratio, candidates
        try:
            yield
        finally:
            self.ratio, self.left = before

    def record(
        self, kind: str, variables: Iterable[int], into: Iterable[int] = (), configuration: int | None = None
    ) -> None:
        """Notes a step."""
        nodes = tuple(name for v in variables for name in self.names[v])
        self.steps.append(Elimination(kind, nodes, tuple(self.names[v][0] for v in into), configuration))
        if self.progress is not None and kind not in ("edge", "product"):
            self.decided = min(self.decided + 1, len(self.names))
            self.progress(self.decided, len(self.names))

    def join(
        self,
        left: Factor,
        right: Factor,
        scope: tuple[int, ...],
        gone: tuple[int, ...],
        sizes: dict[int, int],
        ratio: float = 0.0,
        limits: Limits | None = None,
    ) -> Factor:
        """Product of two factors, then union over ``gone``; the result is over ``scope``."""
        axes = (*scope, *gone)
        candidates = math.prod(sizes[v] for v in axes) * math.prod(
            max(1.0, f.table.points / max(1, f.table.cells)) for f in (left, right)
        )
        reach, prune, box = None, None, None
        if limits is not None and left.reach is not None and right.reach is not None:
            reach = limits.without(left.reach.plus(right.reach), gone)
            if candidates > PRUNE_FROM:
                prune, box = limits.tests(reach, scope)
        self.left -= candidates
        # NumPy has no tables of more than 64 axes, and a variable beside so many others is better fixed.
        if self.left < 0.0 or (self.left < math.inf and len(axes) > _MOST_AXES):
            raise TooLongError(candidates)
        place = {v: axis for axis, v in enumerate(axes)}
        lengths = tuple(sizes[v] for v in axes)
        left_axes, right_axes = (tuple(place[v] for v in f.scope) for f in (left, right))
        made = self._product(left.table, left_axes, right.table, right_axes, lengths, len(scope), ratio, prune, box)
        if made.table.points == 0 and limits is None and not self.conflict:
            self.conflict = tuple(sorted(axes))
        return Factor(scope, made.table, Join(left.origin, right.origin, made.left, made.right), reach)

    def merge(self, factors: list[Factor], sizes: dict[int, int], limits: Limits | None = None) -> Factor:
        """The product of factors over the same variables (edge elimination, Eq. 5)."""
        scope = factors[0].scope
        if len(scope) > 1:
            for _ in factors[1:]:
                self.record("edge", scope, scope)
        if limits is not None and all(factor.reach is not None for factor in factors):
            whole = factors[0]
            for factor in factors[1:]:
                whole = self.join(whole, factor, scope, (), sizes, limits=limits)
            return whole
        table, points = self.merge_tables([factor.table for factor in factors])
        if table.points == 0 and limits is None and not self.conflict:
            self.conflict = scope
        return Factor(scope, table, Sum(tuple(factor.origin for factor in factors), points))

    def merge_tables(self, tables: list[FrontierTable]) -> tuple[FrontierTable, tuple[IntArray, ...]]:
        """The product of tables of one shape, and which point of each is in each of its points.

        Two by two, and equal ones first, so that most of many equal ones are made once.
        """
        key = tuple(map(id, tables))
        if key not in self.merged:
            first: dict[int, int] = {}
            for table in tables:
                first.setdefault(id(table), len(first))
            order = sorted(range(len(tables)), key=lambda i: first[id(tables[i])])
            left = [(tables[i], [(i, np.arange(tables[i].points))]) for i in order]
            while len(left) > 1:
                made = []
                for (one, of_one), (two, of_two) in zip(left[::2], left[1::2], strict=False):
                    axes = tuple(range(len(one.shape)))
                    both = self._product(one, axes, two, axes, one.shape, len(axes), 0.0, None, None)
                    parts = [(i, points[both.left]) for i, points in of_one]
                    made.append((both.table, [*parts, *((i, points[both.right]) for i, points in of_two)]))
                left = [*made, *left[2 * len(made) :]]
            whole, chosen = left[0]
            self.merged[key] = tables, whole, tuple(points for _, points in sorted(chosen, key=lambda part: part[0]))
        return self.merged[key][1:]

    def _product(
        self,
        left: FrontierTable,
        left_axes: tuple[int, ...],
        right: FrontierTable,
        right_axes: tuple[int, ...],
        lengths: tuple[int, ...],
        keep: int,
        ratio: float,
        prune: Prune | None,
        box: Box | None,
    ) -> Joined:
        """`tensoropt.search.tables.join`, once for the same tables if nothing is pruned."""
        key = (id(left), left_axes, id(right), right_axes, lengths, keep, ratio)
        known = self.joined.get(key) if prune is None else None
        if known is None:
            made = join(
                left, left_axes, right, right_axes, lengths, keep, ratio=ratio, prune=prune, box=box, pool=self.pool
            )
            known = (left, right, made)  # holds the tables, so that their ids stay theirs
            if prune is None:
                self.joined[key] = known
        return known[2]


class CostGraph:
    """Variables that are undecided, and factors over them.

    Factors over the same variables are merged (edge elimination, Eq. 5) only once they are needed: bounds are worked out
    without, and leave less to merge.

    Attributes:
        sizes: the number of configurations of each variable.
        workshop: what all eliminations share.
        limits: what every new table's points are tested by, or None.
    """

    def __init__(self, sizes: dict[int, int], workshop: Workshop, limits: Limits | None = None) -> None:
        self.sizes = dict(sizes)
        self.limits = limits
        self.workshop = workshop
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
        several = self._factors[scope]
        if len(several) > 1:
            self._factors[scope] = [self.workshop.merge(several, self.sizes, self.limits)]
        return self._factors[scope][0]

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
            factors.append(unit() if self.limits is None else dataclasses.replace(unit(), reach=self.limits.reach(())))
        for factor in factors[1:-1]:
            scope = tuple(sorted({*whole.scope, *factor.scope}))
            whole = self.workshop.join(whole, factor, scope, (), self.sizes, limits=self.limits)
        scope = tuple(sorted({*whole.scope, *factors[-1].scope} - {variable}))
        self.workshop.record(kind, (variable,), scope)
        result = self.workshop.join(
            whole, factors[-1], scope, (variable,), self.sizes, self.workshop.ratio, self.limits
        )
        del self.sizes[variable], self._of[variable]
        self.add(result)
        return result

    def work(self, variable: int) -> float:
        """About how many candidates eliminating ``variable`` makes: mean frontier lengths times joint
        cells."""
        candidates = float(math.prod([self.sizes[v] for v in (variable, *self.neighbours(variable))]))
        for scope in self._of[variable]:
            candidates *= 1.0 + sum([f.table.points / max(1, f.table.cells) - 1.0 for f in self._factors[scope]])
        return candidates

    def copy(self) -> CostGraph:
        """The same graph, to be changed apart."""
        return self.restricted({v: np.arange(k) for v, k in self.sizes.items()}, self.workshop, self.limits)

    def restricted(self, chosen: dict[int, IntArray], workshop: Workshop, limits: Limits | None) -> CostGraph:
        """The graph with only some configurations of each variable."""
        graph = CostGraph({v: len(chosen[v]) for v in self.sizes}, workshop, limits)
        made: dict[tuple[object, ...], tuple[list[FrontierTable], list[IntArray]]] = {}
        for scope, factors in sorted(self._factors.items()):
            left = factors
            if any(len(chosen[v]) < self.sizes[v] for v in scope):
                key = (*(id(f.table) for f in factors), *(chosen[v].tobytes() for v in scope))
                if key not in made:
                    cells = np.ravel_multi_index(np.ix_(*(chosen[v] for v in scope)), factors[0].table.shape)
                    taken = {id(f.table): f.table.take(cells.reshape(-1), cells.shape) for f in factors}
                    made[key] = tuple(map(list, zip(*(taken[id(f.table)] for f in factors), strict=True)))
                parts = zip(factors, *made[key], strict=True)
                left = [Factor(scope, table, Select(f.origin, points)) for f, table, points in parts]
            if limits is not None:
                # What a scope takes is known of its factors together only.
                whole = left[0] if len(left) == 1 else workshop.merge(left, graph.sizes)
                left = [Factor(scope, whole.table, whole.origin, limits.reach(scope))]
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
        graph = CostGraph({v: self.sizes[v] for v in variables}, self.workshop)
        for factor in self.factors():
            if factor.scope and factor.scope[0] in chosen:
                graph.add(factor)
        return graph

    def fixed(self, variable: int, configuration: int) -> CostGraph:
        """The graph after ``variable`` took one configuration (Eq. 7)."""
        graph = CostGraph({v: k for v, k in self.sizes.items() if v != variable}, self.workshop)
        for factor in self.factors():
            if variable in factor.scope:
                axis = factor.scope.index(variable)
                cells = np.arange(factor.table.cells).reshape(factor.table.shape).take(configuration, axis=axis)
                table, points = factor.table.take(cells.reshape(-1), cells.shape)
                scope = tuple(v for v in factor.scope if v != variable)
                factor = Factor(scope, table, Select(factor.origin, points))
            graph.add(factor)
        return graph


_UNIT = Factor(
    (),
    FrontierTable((), np.array([0, 1]), np.zeros(1), np.zeros(1)),
    Choice((), np.zeros(1, np.int64), np.zeros(1, np.int64)),
)


def unit() -> Factor:
    """The factor over nothing that costs nothing: the one of product."""
    return _UNIT


def nothing() -> Factor:
    """The factor over nothing that has no strategy: the zero of union."""
    empty = np.zeros(0, np.int64)
    return Factor((), FrontierTable((), np.array([0, 0]), np.zeros(0), np.zeros(0)), Choice((), empty, empty))


def choice(factors: list[Factor]) -> Factor:
    """Union of fully decided factors."""
    tables = [f.table for f in factors]
    time = np.concatenate([t.time_s for t in tables])
    memory = np.concatenate([t.memory_bytes for t in tables])
    child = np.repeat(np.arange(len(tables)), [t.points for t in tables])
    points = np.concatenate([np.arange(t.points) for t in tables])
    kept, offsets = reduce_segments(np.array([0, len(time)]), time, memory)
    return Factor(
        (),
        FrontierTable((), offsets, time[kept], memory[kept]),
        Choice(tuple(f.origin for f in factors), child[kept], points[kept]),
    )


def build_cost_graph(problem: Problem, reduced: Reduced, workshop: Workshop) -> CostGraph:
    """Initialization (Algorithm 2, line 3): the frontiers of single nodes and edges."""
    sizes = {v: len(alive) for v, alive in enumerate(reduced.alive)}
    whole = CostGraph(sizes, workshop)
    made: dict[tuple[object, ...], tuple[FrontierTable, IntArray]] = {}

    def leaf_table(
        costs: object, time: FloatArray, memory: FloatArray, rows: list[IntArray]
    ) -> tuple[FrontierTable, IntArray]:
        key = (id(costs), *(r.tobytes() for r in rows))
        if key not in made:
            made[key] = table_from_costs(time[np.ix_(*rows)], memory[np.ix_(*rows)])
        return made[key]

    for term in reduced.terms:
        if len(term.scope) == 1:
            v = term.scope[0]
            rows = reduced.alive[v]
            table, source = leaf_table(term.costs, term.costs.time_s, term.costs.memory_bytes, [rows])
            several = term.costs.time_s.shape[-1]
            configuration = rows[source // several] if term.term < problem.nodes else None
            alternative = source % several if several > 1 else None
            whole.add(Factor(term.scope, table, Leaf(term.term, configuration, alternative)))
    graph = CostGraph({v: int(c.max()) + 1 for v, c in enumerate(reduced.classes)}, workshop)
    for v, classes in enumerate(reduced.classes):
        factor = whole.merged((v,))
        if graph.sizes[v] < sizes[v]:
            factor = _merge_classes(factor, classes, made)
        graph.add(factor)
    representatives = [reduced.representatives(v) for v in range(len(reduced.members))]
    for term in reduced.terms:
        if len(term.scope) == 2:
            ends = [representatives[v] for v in term.scope]
            table, source = leaf_table(term.costs, term.costs.time_s, term.costs.memory_bytes, ends)
            several = term.costs.time_s.shape[-1]
            alternative = source % several if several > 1 else None
            graph.add(Factor(term.scope, table, Leaf(term.term, None, alternative)))
    return graph


def _merge_classes(
    factor: Factor, classes: IntArray, made: dict[tuple[object, ...], tuple[FrontierTable, IntArray]]
) -> Factor:
    """Union of the frontiers of each class."""
    key = ("classes", id(factor.table), classes.tobytes())
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


def joint_size(sizes: dict[int, int], scope: Iterable[int]) -> int:
    """The number of joint configurations."""
    return math.prod(sizes[v] for v in scope)
