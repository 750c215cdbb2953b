"""Products and eliminations of tables, each computed once for tables that are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tensoropt.ft.origin import Choice, Fold, Join, Origin, copy_of
from tensoropt.problem.frontier import Elimination
from tensoropt.problem.frontier_tables import Box, Folded, FrontierTable, Joined, Prune, fold, join
from tensoropt.problem.pareto import reduce_segments
from tensoropt.problem.problem import FloatArray

__all__ = ["EliminationState", "Factor", "Limits", "Reach", "Taken", "TooLongError", "choice", "nothing", "unit"]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The contribution of a table to the least cost of all strategies, under several pairs of weights.

    Attributes:
        shares: per variable of its scope ``(weights, configurations)``.
        decided: ``(weights,)``, of the variables that were decided in it.
    """

    shares: dict[int, FloatArray]
    decided: FloatArray

    def plus(self, other: Taken) -> Taken:
        """Returns the contribution of a product of two tables."""
        with np.errstate(invalid="ignore"):  # of impossible configurations, which tests leave out
            shares = {v: a + other.shares[v] if v in other.shares else a for v, a in self.shares.items()}
        shares.update((v, a) for v, a in other.shares.items() if v not in self.shares)
        return Taken(shares, self.decided + other.decided)


class Reach:
    """The contribution of a table to the least costs, computed on demand: most tables are too small to be tested."""

    __slots__ = ("_gone", "_limits", "_parts", "_scope", "_taken")

    def __init__(
        self, limits: Limits, scope: tuple[int, ...], parts: tuple[Reach, ...] = (), gone: tuple[int, ...] = ()
    ) -> None:
        """Takes the scope of a table of the graph; or of which tables it is the product, and what was decided then."""
        self._limits, self._scope, self._parts, self._gone = limits, scope, parts, gone
        self._taken: Taken | None = None

    def taken(self) -> Taken:
        """Returns the contribution of the table."""
        # A stack and not recursion: products of a thousand layers are a thousand deep.
        stack = [self]
        while self._taken is None:
            at = stack[-1]
            waiting = [part for part in at._parts if part._taken is None]
            if waiting:
                stack += waiting
                continue
            if at._taken is None and at._parts:
                left, right = (part.taken() for part in at._parts)
                at._taken, at._parts = at._limits.without(left.plus(right), at._gone), ()
            elif at._taken is None:
                at._taken = at._limits.taken(at._scope)
            stack.pop()
        return self._taken


class Limits(Protocol):
    """Tests of what can still end on the frontier; see `tensoropt.ft.bounds`."""

    def taken(self, scope: tuple[int, ...]) -> Taken:
        """Returns the contribution of one table of the graph to the least costs."""

    def without(self, taken: Taken, gone: Sequence[int]) -> Taken:
        """Returns the contribution after some variables were decided."""

    def tests(self, taken: Taken, scope: tuple[int, ...]) -> tuple[Prune, Box]:
        """The tests for the points of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A frontier for every joint configuration of ``scope``'s variables (ascending), with its back-pointers.

    ``reach`` is there while limits are.

    Attributes:
        copies: how often it is there, since nodes and edges of the problem may have equal tables over the same
            variables. Merging them leaves one.
    """

    scope: tuple[int, ...]
    table: FrontierTable
    origin: Origin
    reach: Reach | None = None
    copies: int = 1


class TooLongError(Exception):
    """Products have more candidates than is allowed; whoever set the limit does something else then."""


PRUNE_FROM = 200_000
"""Candidates of a product from which its points are tested by bounds. Smaller ones of repeated layers are equal as long
as they are not, and made once."""


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """The product of some of several tables.

    Attributes:
        table: the product.
        places: which of them it is made of, if they are equal.
        copy: which copy, if it is one of a single place.
        parts: what else it was made of.
        made: how.
    """

    table: FrontierTable
    places: tuple[int, ...]
    copy: int = 0
    parts: tuple[_Merged, ...] = ()
    made: Joined | Folded | None = None

    def origin_of(self, factors: list[Factor]) -> Origin:
        """Returns the origin of the points if the tables are these factors'."""
        match self.made:
            case None:
                whole = factors[self.places[0]]
                return whole.origin if whole.copies == 1 else copy_of(whole.origin, self.copy)
            case Folded():
                several = [factors[place] for place in self.places]
                origins, copies = tuple(f.origin for f in several), tuple(f.copies for f in several)
                return Fold(origins, copies, self.made.points, self.made.second)
            case Joined():
                left, right = (part.origin_of(factors) for part in self.parts)
                return Join(left, right, self.made.left, self.made.right)


@dataclass(slots=True, eq=False)
class EliminationState:
    """The state that all eliminations of one search share.

    Attributes:
        names: per variable, the names of its nodes.
        rank: per variable, its place in topological order.
        ratio: thinning per elimination, see `tensoropt.problem.frontier_tables.join`; 0.0 for exact.
        pool: threads, or None.
        left: candidates that products may still have before they are refused.
        steps: what was done, in order.
        exact: false once something was decided by a heuristic, or thinned.
        conflict: variables of the first table that turned out to have no finite cost.
        progress: is told (variables decided, variables).
        decided: variables eliminated or fixed so far; of those decided several times, the first.
        joined: results by what was joined. Repeated layers have equal tables, so their joins are made once.
        merged: the same of whole merges.
        folded: the same of equal tables.
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
    merged: dict[tuple[tuple[int, int], ...], tuple[list[FrontierTable], _Merged]] = field(default_factory=dict)
    folded: dict[tuple[int, int], tuple[FrontierTable, Folded]] = field(default_factory=dict)

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
        self,
        kind: str,
        variables: Iterable[int],
        into: Iterable[int] = (),
        configuration: int | None = None,
        times: int = 1,
    ) -> None:
        """Notes a step, or several that are the same."""
        nodes: tuple[str, ...] = ()
        for v in variables:
            nodes += self.names[v]
        self.steps += [Elimination(kind, nodes, tuple([self.names[v][0] for v in into]), configuration)] * times
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
        joint = math.prod([sizes[v] for v in axes])
        candidates = joint * max(1.0, left.table.mean_points) * max(1.0, right.table.mean_points)
        reach, prune, box = None, None, None
        if limits is not None and left.reach is not None and right.reach is not None:
            reach = Reach(limits, scope, (left.reach, right.reach), gone)
            if candidates > PRUNE_FROM:
                prune, box = limits.tests(reach.taken(), scope)
        self._spend(candidates)
        place = {v: axis for axis, v in enumerate(axes)}
        lengths = tuple(sizes[v] for v in axes)
        left_axes, right_axes = (tuple(place[v] for v in f.scope) for f in (left, right))
        made = self._product(left.table, left_axes, right.table, right_axes, lengths, len(scope), ratio, prune, box)
        if made.table.points == 0 and limits is None and not self.conflict:
            self.conflict = tuple(sorted(axes))
        return Factor(scope, made.table, Join(left.origin, right.origin, made.left, made.right), reach)

    def _spend(self, candidates: float) -> None:
        self.left -= candidates
        if self.left < 0.0:
            raise TooLongError(candidates)

    def merge(self, factors: list[Factor], sizes: dict[int, int], limits: Limits | None = None) -> Factor:
        """The product of factors over the same variables (edge elimination, Eq. 5); a single one is its own."""
        if len(factors) == 1 and factors[0].copies == 1:
            return factors[0]
        scope = factors[0].scope
        if len(scope) > 1:
            self.record("edge", scope, scope, times=sum([factor.copies for factor in factors]) - 1)
        if limits is not None and all(factor.reach is not None for factor in factors):
            whole = factors[0]
            for factor in factors[1:]:
                whole = self.join(whole, factor, scope, (), sizes, limits=limits)
            return whole
        merged = self._merge_tables([factor.table for factor in factors], [factor.copies for factor in factors])
        if merged.table.points == 0 and limits is None and not self.conflict:
            self.conflict = scope
        return Factor(scope, merged.table, merged.origin_of(factors))

    def _merge_tables(self, tables: list[FrontierTable], copies: list[int]) -> _Merged:
        """The product of tables of one shape, each as often as there are copies.

        Two by two, and equal ones first, so that most of many equal ones are made once.
        """
        key = tuple(zip(map(id, tables), copies, strict=True))
        if key not in self.merged:
            equal: dict[int, list[int]] = {}
            for place, table in enumerate(tables):
                equal.setdefault(id(table), []).append(place)
            left = [merged for places in equal.values() for merged in self._fold(tables[places[0]], places, copies)]
            while len(left) > 1:
                made = []
                for one, two in zip(left[::2], left[1::2], strict=False):
                    shape, axes = one.table.shape, tuple(range(len(one.table.shape)))
                    points = max(1.0, one.table.mean_points) * max(1.0, two.table.mean_points)
                    self._spend(max(1, one.table.cells) * points)
                    both = self._product(one.table, axes, two.table, axes, shape, len(axes), 0.0, None, None)
                    made.append(_Merged(both.table, (), 0, (one, two), both))
                left = [*made, *left[2 * len(made) :]]
            self.merged[key] = tables, left[0]
        return self.merged[key][1]

    def _fold(self, table: FrontierTable, places: list[int], copies: list[int]) -> list[_Merged]:
        """Equal tables, as one where that can be said at once."""
        count = sum([copies[place] for place in places])
        if count == 1 or table.counts.max(initial=0) > 2:
            return [_Merged(table, (place,), copy) for place in places for copy in range(copies[place])]
        key = (id(table), count)
        if key not in self.folded:
            self._spend(table.cells + (count + 1) * max(0, table.points - table.cells))
            self.folded[key] = table, fold(table, count)  # holds the table, so that its id stays its own
        made = self.folded[key][1]
        return [_Merged(made.table, tuple(places), 0, (), made)]

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
        """`tensoropt.problem.frontier_tables.join`, once for the same tables if nothing is pruned."""
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
