"""Columns: the strategies of least ``time + weight * memory``, by which strategies within a limit are found and judged.

A search of one cost over all operators is cheap. Its results for several weights of memory are the corners of the lower
convex hull of all strategies, and each weight gives a line below which no strategy lies. Between two corners are the
strategies that mix what they do: layer by layer, or node by node (as columns are mixed in Dantzig-Wolfe decomposition;
that few layers need to differ from both follows from the Shapley-Folkman lemma).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.determined import determined
from tensoropt.problem.frontier import (
    Candidates,
    Frontier,
    FrontierPoint,
    by_both_costs,
    frontier_among,
    frontier_of,
    joined,
)
from tensoropt.problem.lower_bounds import LowerBounds
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.problem.restriction import restricted
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.registry import get_solver
from tensoropt.space.followers import contracted, without_choice
from tensoropt.space.repeated_cells import repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["APART", "Columns", "SpaceColumns", "best_within", "fast_within", "least_alone", "with_less"]

_TURNS = 12
"""Weights of memory that are tried at most for one limit; most problems take half as many."""

_GUESSES = (1.0, 4.0)
"""Weights of memory that are tried for a limit before the smallest strategy is asked for; see `Columns.within`."""

_CLOSE = 1e-9
"""Relative: what a weight must gain, far more than rounding errors."""

_ENOUGH = 1e-3
"""Relative: how much slower than the best a column may be in whose place nothing else is searched."""

_SLACK = 1e-8
"""Relative: by which bounds are lowered, as searches tell costs apart up to a trace of the other cost."""

_ROUNDING = 1e-7
"""Relative: more than `_SLACK`, and too little to be said."""

APART = 0.0015
"""Relative: how near strategies of a frontier are to others that stand for them."""

_MIXED_NODES = 1500
"""Nodes with a choice up to which columns are mixed node by node, in a second or two, and at worst in twenty."""

_SMALL = 150
"""Nodes up to which whole frontiers are as quick as columns."""

_CUTS = 256
"""Places at which one column's layers end and the other's begin."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A strategy of least ``time_weight * time + memory_weight * memory``.

    Attributes:
        assignment: the configuration of each node.
        alternatives: the alternative of each node, then of each edge.
        time_s: seconds.
        memory_bytes: bytes.
        time_weight: per second.
        memory_weight: per byte.
        exact: whether no strategy costs less, so that there is none below its line.
    """

    assignment: IntArray
    alternatives: IntArray
    time_s: float
    memory_bytes: float
    time_weight: float
    memory_weight: float
    exact: bool

    def value(self, weight: float) -> float:
        """The time and the weight times the memory."""
        return self.time_s + weight * self.memory_bytes

    def least_s(self, limit_bytes: float) -> float:
        """A bound of the time of strategies within a limit; of a column that is exact, with a weight of time of 1."""
        return self.value(self.memory_weight) * (1.0 - _SLACK) - self.memory_weight * limit_bytes

    def time_to(self, faster: _Column, memory_bytes: float) -> float:
        """The seconds on the straight line to a faster column where that takes some memory."""
        share = (memory_bytes - self.memory_bytes) / (faster.memory_bytes - self.memory_bytes)
        return self.time_s + share * (faster.time_s - self.time_s)

    def weight_to(self, faster: _Column) -> float | None:
        """The weight at which this column and a faster one cost equally; None where none is between them."""
        more = faster.memory_bytes - self.memory_bytes
        return (self.time_s - faster.time_s) / more if more > 0 and self.time_s > faster.time_s else None


_Pair = tuple[FloatArray, FloatArray]
Bounded = tuple[Frontier, LowerBounds | None]
"""Strategies, and the lines below which there are none; None if tables were too large for searches that are exact."""


class Columns:
    """Columns of a problem. What is found does not depend on what was asked for before."""

    def __init__(self, problem: Problem, *, exactly: bool = False) -> None:
        """Takes a problem.

        Args:
            problem: tables of costs; of alternatives any may be taken.
            exactly: whether to raise `ProblemError` where tables would be too large for searches that are exact.
        """
        self.problem = problem
        self._exactly = exactly
        self._known: dict[float, _Column] = {}  # by weight of memory

    @functools.cached_property
    def fastest(self) -> _Column:
        """The strategy of least time.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        return self._solved(single_cost(self.problem, "time"), 1.0, 0.0)

    @functools.cached_property
    def smallest(self) -> _Column:
        """The strategy of least memory.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        return self._solved(single_cost(self.problem, "memory"), 0.0, 1.0)

    def hull(self, most: int) -> Bounded:
        """Strategies on the convex hull and between its corners, by both costs.

        Args:
            most: columns at most.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        found, level = [self.smallest, self.fastest], [(self.smallest, self.fastest)]
        while level and len(found) < most:
            below = []
            for small, fast in level[: most - len(found)]:
                between, is_better = self._between(small, fast)
                if between is not None:
                    found.append(between)
                if between is not None and is_better:
                    below += [(small, between), (between, fast)]
            level = below
        columns = sorted(found, key=lambda one: one.memory_bytes)
        return joined([*map(self.one, columns), *self._mixed(columns)]), _lines(found)

    def within(self, limit_bytes: float, near: Sequence[int] | IntArray | None = None) -> Bounded | None:
        """A fast strategy within a memory limit, as a frontier of one point; exact where the limit does not bind.

        Args:
            limit_bytes: what a device may hold.
            near: the configurations of a strategy that may be worth mixing in; those that are impossible are left out.

        Returns:
            None if no strategy keeps to the limit.
        """
        if least_bytes(self.problem) > limit_bytes:
            return None
        try:
            if self.fastest.memory_bytes <= limit_bytes:
                return self.one(self.fastest), _lines([self.fastest])
            found = self._around(limit_bytes)
        except InfeasibleError:
            return None
        if found is None:
            return None
        small, fast = found[-1], found[-2]
        for _ in range(_TURNS):
            between, is_better = self._between(small, fast)
            if between is not None:
                found.append(between)
            if between is None or not is_better:
                break
            if between.memory_bytes <= limit_bytes:
                small = between
            else:
                fast = between
            enough_s = _least_s(_lines(found), limit_bytes) * (1.0 + _ENOUGH)
            if small.time_s <= enough_s:
                return self.one(small), _lines(found)
            if small.time_to(fast, limit_bytes) <= enough_s:  # as fast as mixtures of both can be
                break
        enough_s = _least_s(_lines(found), limit_bytes) * (1.0 + _ENOUGH)
        best = joined([self.one(small), *self._mixed([small, fast], near, limit_bytes, enough_s)]).best(limit_bytes)
        return self._frontier(np.array(best.assignment), np.array(best.alternatives)), _lines(found)

    def fits(self, limit_bytes: float) -> bool:
        """Tells whether a strategy keeps to a limit, mostly by searches with which `within` begins.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        return self.fastest.memory_bytes <= limit_bytes or self._around(limit_bytes) is not None

    def price(self, limit_bytes: float) -> float:
        """The weight of memory that bounds strategies within a limit best, of those that were searched for.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        return max((self.fastest, *self._known.values()), key=lambda one: one.least_s(limit_bytes)).memory_weight

    def least_s(self, limit_bytes: float, price: float | None = None) -> float:
        """A bound of the time of all strategies within a limit.

        Args:
            limit_bytes: what a device may hold.
            price: the weight of memory of the one search that the bound is of; by default it is of two, with which
                `within` begins.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        if price is not None:
            column = self._column(price) if price else self.fastest
            return column.least_s(limit_bytes) if column.exact else 0.0
        found = [self.fastest, *itertools.islice(self._guesses(limit_bytes), 1)]
        return _least_s(_lines(found), limit_bytes)

    def _around(self, limit_bytes: float) -> list[_Column] | None:
        """Columns, of which the last keeps to a limit and the one before does not; None if no strategy keeps to it.

        The smallest may be far slower than those near the limit, so others are tried first.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        found = [self.fastest]
        for guess in self._guesses(limit_bytes):
            found.append(guess)
            if guess.memory_bytes <= limit_bytes:
                return found
        found.append(self.smallest)
        return found if self.smallest.memory_bytes <= limit_bytes else None

    def _guesses(self, limit_bytes: float) -> Iterator[_Column]:
        """Columns of weights by which what the fastest holds beyond a limit costs its time, and several times that."""
        missing_bytes = self.fastest.memory_bytes - limit_bytes
        for several in _GUESSES if missing_bytes > 0 and self.fastest.time_s > 0 else ():
            yield self._column(several * self.fastest.time_s / missing_bytes)

    def _column(self, weight: float) -> _Column:
        if weight not in self._known:
            self._known[weight] = self._solved(_weighted(self.problem, weight), 1.0, weight)
        return self._known[weight]

    def _between(self, small: _Column, fast: _Column) -> tuple[_Column | None, bool]:
        """The column for the weight at which two cost equally, if there is one, and whether it is better than both."""
        weight = small.weight_to(fast)
        if weight is None:
            return None, False
        column = self._column(weight)
        return column, column.value(weight) < small.value(weight) * (1.0 - _CLOSE)

    def _solved(self, merged: Problem, time_weight: float, memory_weight: float) -> _Column:
        """The strategy of least time of a problem of merged costs."""
        try:
            found, exact = get_solver("pase")(merged), True
        except ProblemError:  # a table would be too large
            if self._exactly:
                raise
            found = get_solver("ft")(merged)
            exact = found.exact
        assignment, alternatives = found.assignments[-1], found.alternatives[-1]
        time_s, memory_bytes = self.problem.costs(assignment, alternatives)
        return _Column(
            assignment, alternatives, float(time_s[0]), float(memory_bytes[0]), time_weight, memory_weight, exact
        )

    def _mixed(
        self,
        columns: Sequence[_Column],
        near: Sequence[int] | IntArray | None = None,
        limit_bytes: float | None = None,
        enough_s: float = 0.0,
    ) -> list[Frontier]:
        """Strategies between columns, node by node; where that is too much, layer by layer of each two neighbours.

        Args:
            columns: by memory.
            near: the configurations of a strategy that is mixed in, too.
            limit_bytes: what one of them is to keep to.
            enough_s: how fast one that does so may be for no more to be done.
        """
        strategies = [*(one.assignment for one in columns), *([] if near is None else [np.asarray(near, np.int64)])]
        allowed = self._allowed(strategies)
        nodes = sum(len(several) > 1 for several in allowed.values())
        too_many = nodes > _MIXED_NODES
        if too_many or (limit_bytes is not None and self.problem.nodes > _MIXED_NODES):
            mixed = (self._mixed_by_layers(*pair) for pair in itertools.pairwise(columns))
            by_layers = [one for one in mixed if one is not None]
            if too_many or limit_bytes is None or _has(by_layers, limit_bytes, enough_s):
                return by_layers
        return [self._mixed_by_nodes(allowed, limit_bytes)]

    def _mixed_by_layers(self, one: _Column, other: _Column) -> Frontier | None:
        """The strategies that do as one column up to a layer, and as the other from there on."""
        places = self._places
        cuts = np.unique(places)[1:]
        if len(cuts) > _CUTS:
            cuts = cuts[np.linspace(0, len(cuts) - 1, _CUTS).astype(np.int64)]
        differ = places[one.assignment != other.assignment]
        cuts = cuts[(cuts > differ.min(initial=len(places))) & (cuts <= differ.max(initial=-1))]
        if not len(cuts):
            return None
        to_other, to_one = self._fastest_between(one, other), self._fastest_between(other, one)
        is_before = places < cuts[:, None]
        ways = (self._cut(one, other, is_before, to_other, to_one), self._cut(other, one, is_before, to_one, to_other))
        rows, picks = (np.concatenate(each) for each in zip(*ways, strict=True))
        time_s, memory_bytes = self.problem.costs(rows, picks)
        if not np.isfinite(time_s).any():
            return None
        given = Candidates(time_s, memory_bytes, lambda points: (rows[points], picks[points]))
        return frontier_among(self.problem.names, [given], exact=False, eliminations=(), seconds=0.0)

    def _cut(
        self, before: _Column, after: _Column, is_before: NDArray[np.bool_], onward: IntArray, back: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Strategies whose nodes do as one column or as another, each with its own alternatives.

        Args:
            before: the column of some nodes.
            after: that of the others.
            is_before: ``(strategies, N)``, whose a node is.
            onward: ``(E,)``, the alternatives of edges from one's nodes to the other's.
            back: of those from the other's nodes to the one's.

        Returns:
            configurations and alternatives.
        """
        ends, nodes = self.problem.edges, self.problem.nodes
        rows = np.where(is_before, before.assignment, after.assignment)
        first, second = is_before[:, ends[:, 0]], is_before[:, ends[:, 1]]
        by_node = np.where(is_before, before.alternatives[:nodes], after.alternatives[:nodes])
        within = np.where(first, before.alternatives[nodes:], after.alternatives[nodes:])
        by_edge = np.where(first == second, within, np.where(first, onward, back))
        return rows, np.concatenate([by_node, by_edge], axis=1)

    def _fastest_between(self, one: _Column, other: _Column) -> IntArray:
        """``(E,)``, of each edge the fastest possible alternative from what one column does to what another does."""
        picks = np.zeros(len(self.problem.edges), np.int64)
        for e, (u, v) in enumerate(self.problem.edges.tolist()):
            ends = one.assignment[u], other.assignment[v]
            time_s, memory_bytes = (table[ends] for table in self.problem.edge_tables(e))
            picks[e] = np.where(np.isfinite(memory_bytes), time_s, np.inf).argmin()
        return picks

    @functools.cached_property
    def _places(self) -> IntArray:
        """The place of each node in the order of layers: a variable's is that of what reads it first, a group's one."""
        places = np.arange(self.problem.nodes)
        begins = np.ones(self.problem.nodes, bool)
        begins[self.problem.edges[:, 1]] = False
        for u, v in sorted(self.problem.edges.tolist(), key=lambda pair: -pair[1]):
            if begins[u]:
                places[u] = v
        if self.problem.groups is None:
            return places
        _, member = np.unique(self.problem.groups, return_inverse=True)
        first = np.full(member.max() + 1, self.problem.nodes)
        np.minimum.at(first, member, places)
        return first[member]

    @property
    def _groups(self) -> IntArray:
        return np.arange(self.problem.nodes) if self.problem.groups is None else self.problem.groups

    def _allowed(self, strategies: Sequence[IntArray]) -> dict[int, set[int]]:
        """What strategies do in each group of nodes, where that is possible."""
        allowed: dict[int, set[int]] = {}
        for node, group in enumerate(self._groups.tolist()):
            time_s, memory_bytes = self.problem.node_tables(node)
            for choice in {int(strategy[node]) for strategy in strategies}:
                if np.isfinite(time_s[choice] + memory_bytes[choice]).any():
                    allowed.setdefault(group, set()).add(choice)
        return allowed

    def _mixed_by_nodes(self, allowed: Mapping[int, set[int]], limit_bytes: float | None) -> Frontier:
        """The frontier over what is allowed in each group of nodes.

        With a limit only its fastest strategy within that, else those that stand for all: to write thousands of
        strategies down takes longest.
        """
        problem = self.problem
        smaller, kept = restricted(problem, [sorted(allowed[group]) for group in self._groups.tolist()])
        search = functools.partial(get_solver("ft"), epsilon=APART if limit_bytes is None else _ENOUGH)
        if limit_bytes is None:
            found = by_both_costs(smaller, search, apart=APART)
            points = np.arange(len(found))
        else:
            found = search(smaller)
            points = np.array([max(int(np.searchsorted(found.memory_bytes, limit_bytes, side="right")) - 1, 0)])
        assignments, alternatives = found.rows(points)
        rows = np.stack([kept[node][assignments[:, node]] for node in range(problem.nodes)], axis=1)
        return frontier_of(problem, rows, alternatives, exact=False, eliminations=(), seconds=found.seconds)

    def one(self, column: _Column) -> Frontier:
        """A column as a frontier of one point."""
        return self._frontier(column.assignment, column.alternatives)

    def _frontier(self, assignment: IntArray, alternatives: IntArray) -> Frontier:
        return frontier_of(self.problem, assignment, alternatives, exact=False, eliminations=(), seconds=0.0)


class SpaceColumns:
    """Columns of a space: over all operators or, where tables would be too large, over those that decide."""

    def __init__(self, space: SearchSpace) -> None:
        """Takes a space; nothing is worked out before it is asked for."""
        self._space = space
        self._is_whole = True
        self._within: dict[float, Frontier] = {}  # by limit

    def hull(self, most: int) -> Frontier:
        """`Columns.hull` as a frontier of the space, each point with its bound.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        return self._made(lambda columns: columns.hull(most), f"at {most} prices of memory")

    @functools.cached_property
    def fastest(self) -> Frontier:
        """The strategy of least time over all operators, cells that repeat alike; then it is its own bound.

        Over those that decide where tables would be too large, or where cells need not be alike and that is faster.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        with suppress(ProblemError):  # a table would be too large; for other prices of memory none need be
            whole = self._fastest_over(_over_all)
            deciding = self._fastest_over(_over_deciding) if _has_cells(self._space) else whole
            if deciding.time_s[0] >= whole.time_s[0]:
                return dataclasses.replace(whole, bound_s=whole.time_s.copy())
            return deciding
        return self._fastest_over(_over_deciding)

    def _fastest_over(self, parts: Callable[[SearchSpace], tuple[Contraction, Columns, str]]) -> Frontier:
        began = time.perf_counter()
        contraction, columns, searched = self._space.kept(parts)
        found = contraction.expand(columns.one(columns.fastest))
        return dataclasses.replace(found, searched=searched, seconds=time.perf_counter() - began)

    @functools.cached_property
    def smallest(self) -> Frontier:
        """The strategy of least memory; exact over all operators, unless cells that repeat were held alike.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        found = self._made(lambda columns: (columns.one(columns.smallest), None))
        return dataclasses.replace(found, exact=self._is_whole and not _has_cells(self._space))

    def within(self, limit_bytes: float) -> Frontier:
        """`Columns.within` as a frontier of one point of the space, with the bound of all within the limit.

        Raises:
            InfeasibleError: no strategy keeps to the limit; the message says how much is missing.
        """

        def found(columns: Columns) -> Bounded:
            fits = columns.within(limit_bytes)
            if fits is None:
                least = columns.smallest.memory_bytes
                takes = "that any takes" if self._is_whole else "that was found"
                raise InfeasibleError(
                    f"a strategy must fit in {limit_bytes:,.0f} bytes, but the least {takes} is {least:,.0f} "
                    f"bytes: {least - limit_bytes:,.0f} bytes are missing. Use more devices, or a smaller batch."
                )
            return fits

        if limit_bytes not in self._within:
            self._within[limit_bytes] = self._made(found, limit_bytes=limit_bytes)
        return self._within[limit_bytes]

    def fits(self, limit_bytes: float) -> bool:
        """`Columns.fits`; where tables are too large of strategies that are searched, which may not be all.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        try:
            return self._parts[1].fits(limit_bytes)
        except ProblemError:  # a table would be too large
            return bool(self.smallest.memory_bytes[0] <= limit_bytes)

    def price(self, limit_bytes: float) -> float | None:
        """`Columns.price`; None where tables are too large.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        try:
            return self._space.kept(_over_all)[1].price(limit_bytes)
        except ProblemError:
            return None

    def least_s(self, limit_bytes: float, price: float | None = None) -> float:
        """`Columns.least_s`; 0 where tables are too large for a bound.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        try:
            return self._space.kept(_over_all)[1].least_s(limit_bytes, price)
        except ProblemError:
            return 0.0

    @property
    def _parts(self) -> tuple[Contraction, Columns, str]:
        return self._space.kept(_over_all if self._is_whole else _over_deciding)

    def _made(
        self, make: Callable[[Columns], Bounded], how: str | None = None, limit_bytes: float | None = None
    ) -> Frontier:
        """What columns give, as a frontier of the space; with a limit its bound is that of all within the limit."""
        began = time.perf_counter()
        contraction, columns, searched = self._parts
        try:
            made, bounds = make(columns)
        except ProblemError:  # a table would be too large
            if not self._is_whole:
                raise
            self._is_whole = False
            return self._made(make, how, limit_bytes)
        found = dataclasses.replace(contraction.expand(made), seconds=time.perf_counter() - began)
        searched = searched if how is None else f"{searched}, {how}"
        if bounds is None or not self._is_whole:
            return dataclasses.replace(found, searched=searched)
        limits = found.memory_bytes if limit_bytes is None else np.full(len(found), limit_bytes)
        found = dataclasses.replace(found, bound_s=np.minimum(bounds.least_time_s(limits), found.time_s))
        gap = None if limit_bytes is None else found.point(0).gap
        if gap is not None:
            searched += ", of which none is faster" if gap <= _ROUNDING else f", of which none is {gap:.2g} faster"
        return dataclasses.replace(found, searched=searched)


def _over_all(space: SearchSpace) -> tuple[Contraction, Columns, str]:
    """Over all operators that have a choice beside others; cells that repeat are alike."""
    leaders, index = space.kept(without_choice)
    contraction = Contraction(space.problem, space.kept(repeated_cells)[leaders], index)
    alike = ", cells that repeat alike" if _has_cells(space) else ""
    return contraction, Columns(contraction.problem, exactly=True), f"all {space.problem.nodes:,} operators{alike}"


def _has_cells(space: SearchSpace) -> bool:
    return len(np.unique(space.kept(repeated_cells))) < space.problem.nodes


def _over_deciding(space: SearchSpace) -> tuple[Contraction, Columns, str]:
    contraction = space.kept(contracted)
    return contraction, Columns(contraction.problem), contraction.searched


def least_bytes(problem: Problem) -> float:
    """A bound of the memory of all strategies, of no search: what each node and edge takes at least, alone."""
    tables = itertools.chain(problem.node_memory_bytes, problem.edge_memory_bytes)
    return sum(float(table.min()) for table in tables) * (1.0 - _SLACK)


def least_alone(space: SearchSpace) -> float:
    """`least_bytes` of a space's operators. In micro-batches *k* times as many they take a *k*-th or more."""
    return least_bytes(space.problem)


def with_less(
    space: SearchSpace, point: FrontierPoint, free: NDArray[np.bool_], times: Sequence[float], saved_bytes: float
) -> Frontier | None:
    """A fast strategy in which some operators hold less than in a given one, and the others are as in that one.

    Args:
        space: of the strategies.
        point: the given strategy.
        free: ``(N,)``, whether an operator may change.
        times: ``(N + E,)``, how often a device holds what the tables have of an operator, and of an edge.
        saved_bytes: how much less the free operators and their edges are to hold.

    Returns:
        a frontier of one point; None if they cannot hold so much less.
    """
    problem, cells, every = space.problem, space.kept(repeated_cells), range(space.problem.nodes)
    chosen, picks = [int(choice) for choice in point.assignment], np.asarray(point.alternatives)
    kept = [np.arange(problem.configurations(node)) if free[node] else np.array([chosen[node]]) for node in every]
    counted = _counting(restricted(problem, kept)[0], free, times, picks.tolist())
    leaders, index = determined(counted)
    first: dict[int, int] = {}  # of the cells that may change, those that repeat stay alike
    groups = np.array([first.setdefault(int(cells[node]), node) if free[node] else node for node in every])
    contraction = Contraction(counted, groups[leaders], index)
    now = [chosen[node] if free[node] else 0 for node in every]
    held_bytes = float(counted.costs(np.array(now), picks)[1][0])
    found = best_within(contraction.problem, held_bytes - saved_bytes)
    if found is None:
        return None
    assignments, alternatives = contraction.expand(found).rows()
    rows = np.stack([kept[node][assignments[:, node]] for node in every], axis=1)
    return frontier_of(problem, rows, alternatives, exact=False, eliminations=(), seconds=found.seconds)


def _counting(problem: Problem, free: NDArray[np.bool_], times: Sequence[float], picks: Sequence[int]) -> Problem:
    """The problem in which memory counts so many times, and alternatives are given where nothing else may change."""
    shared: dict[tuple[object, ...], tuple[FloatArray, FloatArray]] = {}  # tables that are shared stay shared

    def tables(time_s: FloatArray, memory_bytes: FloatArray, axes: int, term: int, may_change: bool) -> _Pair:
        pick = None if may_change or time_s.ndim == axes else picks[term]
        key = id(time_s), id(memory_bytes), times[term] if may_change else 0, pick
        if key not in shared:
            none = np.where(np.isfinite(memory_bytes), 0.0, np.inf)
            if pick is not None:
                none[..., np.arange(none.shape[-1]) != pick] = np.inf
            shared[key] = (time_s, times[term] * memory_bytes) if may_change else (time_s + none, none)
        return shared[key]

    ends = problem.edges
    nodes = [
        tables(time_s, memory_bytes, 1, node, bool(free[node]))
        for node, (time_s, memory_bytes) in enumerate(zip(problem.node_time_s, problem.node_memory_bytes, strict=True))
    ]
    edges = [
        tables(time_s, memory_bytes, 2, problem.nodes + edge, bool(free[ends[edge]].any()))
        for edge, (time_s, memory_bytes) in enumerate(zip(problem.edge_time_s, problem.edge_memory_bytes, strict=True))
    ]
    return Problem(
        problem.names,
        [time_s for time_s, _ in nodes],
        [memory_bytes for _, memory_bytes in nodes],
        ends,
        [time_s for time_s, _ in edges],
        [memory_bytes for _, memory_bytes in edges],
        None,
        problem.constant_time_s,
    )


def fast_within(problem: Problem, limit_bytes: float, near: Sequence[int] | IntArray | None = None) -> Frontier | None:
    """`Columns.within` of a problem, without the bound."""
    found = Columns(problem).within(limit_bytes, near)
    return None if found is None else found[0]


def best_within(problem: Problem, limit_bytes: float, near: Sequence[int] | IntArray | None = None) -> Frontier | None:
    """The fastest strategy of a small problem within a memory limit, from its whole frontier; else `fast_within`."""
    if problem.nodes > _SMALL:
        return fast_within(problem, limit_bytes, near)
    try:
        best = get_solver("ft")(problem).best(limit_bytes)
    except InfeasibleError:
        return None
    picks = np.array(best.alternatives)
    return frontier_of(problem, best.assignment, picks, exact=False, eliminations=(), seconds=0.0)


def _has(frontiers: Sequence[Frontier], limit_bytes: float, enough_s: float) -> bool:
    """Tells whether a strategy of some frontiers keeps to a limit and takes no longer than that."""
    return any(((one.memory_bytes <= limit_bytes) & (one.time_s <= enough_s)).any() for one in frontiers)


def _lines(columns: Sequence[_Column]) -> LowerBounds | None:
    """The lines of columns; None without that of time alone, or where searches were not exact."""
    exact = [one for one in columns if one.exact]
    if not any(one.memory_weight == 0.0 for one in exact):
        return None
    weights = np.array([(one.time_weight, one.memory_weight) for one in exact])
    costs = np.array([one.time_weight * one.time_s + one.memory_weight * one.memory_bytes for one in exact])
    return LowerBounds(weights[:, 0], weights[:, 1], costs * (1.0 - _SLACK))


def _least_s(bounds: LowerBounds | None, limit_bytes: float) -> float:
    return 0.0 if bounds is None else float(bounds.least_time_s(np.array([limit_bytes]))[0])


def _weighted(problem: Problem, weight: float) -> Problem:
    """The problem whose time is the time and a weight times the memory, and whose memory is nothing."""

    def merged(time_s: FloatArray, memory_bytes: FloatArray, _: int) -> tuple[FloatArray, FloatArray]:
        exists = np.isfinite(time_s) & np.isfinite(memory_bytes)
        total = np.where(exists, time_s + weight * np.where(exists, memory_bytes, 0.0), np.inf)
        return total, np.where(exists, 0.0, np.inf)

    return problem.with_tables(merged)
