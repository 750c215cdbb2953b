"""Eliminations over one weighted cost instead of frontiers: what the rest of the graph costs at least.

With time and memory weighted into one number, elimination is a shortest path (the time-only dynamic
programming of OptCNN and PaSE). It takes a hundredth of the time of frontiers, and says for every cell of
every table that LDP will make the least that whatever is still undecided adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.ft.cost_graph import CostGraph, Factor
from tensoropt.search.problem import FloatArray, IntArray

__all__ = ["ScalarElimination", "Weighted"]

_Cheapest = dict[int, tuple[FloatArray, IntArray]]
"""By the id of a table: per cell its least weighted cost, and the point that has it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """What one elimination puts together: ``axes`` are the variables that stay, then the one that goes."""

    axes: tuple[int, ...]
    factors: tuple[Factor, ...]
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """The result for one pair of weights.

    Attributes:
        time_weight: per second.
        memory_weight: per byte.
        time_s: of a strategy of least weighted cost.
        memory_bytes: of the same.
        inside: per elimination, for each cell of its result, the least weighted cost of what is in it.
        outside: the same of all that is not in it, as a flat array.
    """

    time_weight: float
    memory_weight: float
    time_s: float
    memory_bytes: float
    inside: tuple[FloatArray, ...]
    outside: tuple[FloatArray, ...]


class ScalarElimination:
    """A fixed order of elimination, run for any weights."""

    def __init__(self, graph: CostGraph, order: list[int]) -> None:
        """Finds out which tables meet in which elimination.

        Args:
            graph: as it is before the first elimination; stays as it is.
            order: all its variables.
        """
        self._sizes = dict(graph.sizes)
        self._place = place = {v: i for i, v in enumerate(order)}
        waiting: list[list[Factor]] = [[] for _ in order]
        arriving: list[list[int]] = [[] for _ in order]
        for scope in sorted(graph.factors):
            if scope:
                waiting[min(place[v] for v in scope)].append(graph.factors[scope])
        decided = [graph.factors[()]] if () in graph.factors else []
        self._decided = tuple(decided)
        self._buckets: list[_Bucket] = []
        for i, v in enumerate(order):
            scopes = [f.scope for f in waiting[i]] + [self._buckets[j].axes[:-1] for j in arriving[i]]
            rest = tuple(sorted({w for scope in scopes for w in scope} - {v}))
            self._buckets.append(_Bucket((*rest, v), tuple(waiting[i]), tuple(arriving[i])))
            if rest:
                arriving[min(place[w] for w in rest)].append(i)

    def scope(self, step: int) -> tuple[int, ...]:
        """The variables of the table that elimination number ``step`` makes."""
        return self._buckets[step].axes[:-1]

    def run(self, time_weight: float, memory_weight: float) -> Weighted | None:
        """The least weighted cost, inside and outside of every elimination; None if no strategy is
        possible."""
        cheapest: _Cheapest = {}
        cost = _cost(cheapest, time_weight, memory_weight)
        inside: list[FloatArray] = []
        choices: list[IntArray] = []
        for bucket in self._buckets:
            whole = self._sum(bucket, cost, inside)
            choices.append(whole.argmin(axis=-1))
            inside.append(whole.min(axis=-1))
        roots = [i for i, bucket in enumerate(self._buckets) if len(bucket.axes) == 1]
        if not all(np.isfinite(inside[i]).all() for i in roots):
            return None
        time, memory = self._trace(choices, cost, cheapest)
        total = float(sum(float(inside[i]) for i in roots))
        total += sum(float(cost(f)) for f in self._decided)
        outside: list[FloatArray] = [np.empty(0)] * len(self._buckets)
        for i in roots:
            outside[i] = np.array(total - float(inside[i]))
        for i in reversed(range(len(self._buckets))):
            bucket = self._buckets[i]
            beyond = self._expand(outside[i], bucket.axes[:-1], bucket.axes)
            for j in bucket.messages:
                rest = self._sum(bucket, cost, inside, without_message=j) + beyond
                outside[j] = _least_over(rest, bucket.axes, self.scope(j))
        return Weighted(time_weight, memory_weight, time, memory, tuple(inside), tuple(o.reshape(-1) for o in outside))

    def around(self, factor: Factor, weighted: Weighted) -> FloatArray:
        """For each cell of a factor, the least weighted cost of all that is not in it, as a flat array."""
        step = min(self._place[v] for v in factor.scope)
        bucket = self._buckets[step]
        cost = _cost({}, weighted.time_weight, weighted.memory_weight)
        rest = self._sum(bucket, cost, weighted.inside, without_factor=factor)
        rest = rest + self._expand(weighted.outside[step], bucket.axes[:-1], bucket.axes)
        return _least_over(rest, bucket.axes, factor.scope).reshape(-1)

    def _expand(self, array: FloatArray, scope: tuple[int, ...], axes: tuple[int, ...]) -> FloatArray:
        """A table over ``scope`` as one that broadcasts over ``axes``."""
        array = array.reshape([self._sizes[v] for v in scope])
        order = [v for v in axes if v in scope]
        array = array.transpose([scope.index(v) for v in order])
        return array.reshape([self._sizes[v] if v in scope else 1 for v in axes])

    def _sum(
        self,
        bucket: _Bucket,
        cost: Callable[[Factor], FloatArray],
        inside: Sequence[FloatArray],
        *,
        without_message: int = -1,
        without_factor: Factor | None = None,
    ) -> FloatArray:
        whole = np.zeros([self._sizes[v] for v in bucket.axes])
        for factor in bucket.factors:
            if factor is not without_factor:
                whole += self._expand(cost(factor), factor.scope, bucket.axes)
        for j in bucket.messages:
            if j != without_message:
                whole += self._expand(inside[j], self.scope(j), bucket.axes)
        return whole

    def _trace(
        self,
        choices: list[IntArray],
        cost: Callable[[Factor], FloatArray],
        cheapest: _Cheapest,
    ) -> tuple[float, float]:
        """Time and memory of the strategy that the choices lead to."""
        taken: dict[int, int] = {}
        for bucket, choice in zip(reversed(self._buckets), reversed(choices), strict=True):
            taken[bucket.axes[-1]] = int(choice[tuple(taken[v] for v in bucket.axes[:-1])])
        time = memory = 0.0
        for factor in (*self._decided, *(f for bucket in self._buckets for f in bucket.factors)):
            cost(factor)
            cell = 0
            for v in factor.scope:
                cell = cell * self._sizes[v] + taken[v]
            point = cheapest[id(factor.table)][1][cell]
            time += float(factor.table.time_s[point])
            memory += float(factor.table.memory_bytes[point])
        return time, memory


def _cost(cheapest: _Cheapest, time_weight: float, memory_weight: float) -> Callable[[Factor], FloatArray]:
    """A function that gives a factor's least weighted cost per cell, worked out once per table."""

    def cost(factor: Factor) -> FloatArray:
        key = id(factor.table)
        if key not in cheapest:
            cheapest[key] = _cheapest(factor, time_weight, memory_weight)
        return cheapest[key][0]

    return cost


def _least_over(whole: FloatArray, axes: tuple[int, ...], scope: tuple[int, ...]) -> FloatArray:
    """The minimum over the axes that are not in ``scope``, with the others in its order."""
    least = whole.min(axis=tuple(axis for axis, v in enumerate(axes) if v not in scope))
    kept = [v for v in axes if v in scope]
    return least.transpose([kept.index(v) for v in scope])


def _cheapest(factor: Factor, time_weight: float, memory_weight: float) -> tuple[FloatArray, IntArray]:
    """Per cell, the least weighted cost and the point that has it (the first of equal ones)."""
    table = factor.table
    weighted = table.time_s * time_weight + table.memory_bytes * memory_weight
    full = np.flatnonzero(table.counts)
    least, point = np.full(table.cells, np.inf), np.zeros(table.cells, np.int64)
    if len(full) == 0:
        return least, point
    starts = table.offsets[:-1][full]
    least[full] = np.minimum.reduceat(weighted, starts)
    if len(full) == table.points:
        point[full] = starts
    else:
        cell = np.repeat(np.arange(table.cells), table.counts)
        hits = np.flatnonzero(weighted == least[cell])
        point[cell[hits][::-1]] = hits[::-1]  # the first hit is written last
    return least, point
