"""Partial frontiers without the points that cannot end on the frontier.

Cumulative frontiers grow with every layer, though most of their points end up beaten by strategies that are easy to
find. So first some strategies are found, then a partial point is dropped as soon as nothing that it can be completed
to would stand beside them. What is dropped is strictly dominated: the frontier stays exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tensoropt.ft.cost_graph import CostGraph
from tensoropt.ft.factors import Factor, Taken
from tensoropt.ft.messages import Messages, Weighted
from tensoropt.ft.origin import Sum
from tensoropt.problem.frontier_tables import Box, FrontierTable, Prune
from tensoropt.problem.pareto import reduce_segments
from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["Bounds"]

WEIGHTS = 24
"""Pairs of weights tried. More of them come closer to the frontier's convex hull."""

_SHARE_FROM = 1 << 20
"""Cells of a pass of messages from which threads share the pairs of weights: some milliseconds each."""

_SLACK = 1e-9
"""Relative: a bound must be beaten by more than this, which is far more than its sums' rounding errors."""

_ROUNDING = 1e-3
"""Of a step, which costs of strategies are multiples of: far more than rounding errors of bounds, if it matters."""

_PROVEN = 1e-12
"""Relative: a strategy whose cost is this close to the bound has the least cost there is."""


class Bounds:
    """Which partial points of a graph's eliminations can still end on the frontier."""

    def __init__(
        self, messages: Messages, weighted: list[Weighted], epsilon: float, steps: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Takes the bounds of time alone and of memory alone first, then those of both."""
        from tensoropt.ft import kernels

        self._test = kernels.possible_points
        self._weighted = weighted
        self._relax = 1.0 / (1.0 + epsilon)
        self._steps = steps[0] * (1.0 - _ROUNDING), steps[1] * (1.0 - _ROUNDING)
        self._time_weights = np.array([w.time_weight for w in weighted])
        self._memory_weights = np.array([w.memory_weight for w in weighted])
        starts = messages.starts.tolist()
        parts = {v: slice(starts[i], starts[i + 1]) for i, v in enumerate(messages.variables)}
        left, least_with, unary, shares = (
            np.array(of_all)
            for of_all in zip(*((w.left, w.least_with, w.unary, w.shares) for w in weighted), strict=True)
        )
        self._left = {v: left[:, part] for v, part in parts.items()}
        self._least_with = {v: least_with[:, part] for v, part in parts.items()}
        self._unary = {v: unary[:, part] for v, part in parts.items()}
        self._shares: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        for (u, v), (first, second) in zip(messages.edges, messages.message_start.tolist(), strict=True):
            one, two = self._left[u].shape[1], self._left[v].shape[1]
            self._shares[u, v] = shares[:, first : first + one], shares[:, second : second + two]
        least = np.minimum.reduceat(left, starts[:-1], axis=1)
        self._least = dict(zip(messages.variables, least.T, strict=True))
        self._chosen: dict[int, IntArray] | None = None
        self._total = least.sum(axis=1)
        self.time_s = np.empty(0)
        self.memory_bytes = np.empty(0)
        self.learn(np.array([w.time_s for w in weighted]), np.array([w.memory_bytes for w in weighted]))

    @classmethod
    def of(
        cls,
        graph: CostGraph,
        epsilon: float = 0.0,
        weights: int = WEIGHTS,
        steps: tuple[float, float] = (0.0, 0.0),
    ) -> Bounds | None:
        """Bounds for ``graph``, whose tables have at most two variables; None if no strategy was found.

        The weights are found as the convex hull is: the normal of two neighbouring points leads to a point between
        them, if there is one.

        Args:
            graph: stays as it is.
            epsilon: points may go whose completions are as fast as known strategies up to this factor.
            weights: how many pairs are tried at most. More of them come closer to the frontier's convex hull.
            steps: of which all times, and all memories, are multiples; 0.0 for none. Then what stands beside a known
                strategy is at least a step faster, or smaller, than it.
        """
        messages = Messages(graph)
        pool = graph.state.pool if messages.cells >= _SHARE_FROM else None
        each: Callable[..., Iterable[Weighted | None]] = map if pool is None else pool.map
        fastest, smallest = each(lambda pair: messages.run(*pair), [(1.0, 0.0), (0.0, 1.0)])
        if fastest is None or smallest is None:
            return None
        found = [fastest, smallest]
        level = [(smallest, fastest)]
        while level and len(found) < weights:
            # A level at a time, so that the weights do not depend on the number of threads.
            level = [
                ends
                for ends in level
                if ends[0].time_s > ends[1].time_s and ends[0].memory_bytes < ends[1].memory_bytes
            ]
            level = level[: weights - len(found)]
            made = list(each(lambda ends: _between(messages, *ends), level))
            below = []
            for (low, high), between in zip(level, made, strict=True):
                if between is None:
                    continue
                found.append(between)
                value = between.cost(between.time_s, between.memory_bytes)
                if value < between.cost(low.time_s, low.memory_bytes) * (1.0 - _SLACK):
                    below += [(low, between), (between, high)]
            level = below
        return cls(messages, found, epsilon, steps)

    def learn(self, time_s: FloatArray, memory_bytes: FloatArray, *, only: bool = False) -> None:
        """Adds strategies that exist to those that others must stand beside; or takes them as the ``only`` ones."""
        if only:
            self.time_s, self.memory_bytes = np.empty(0), np.empty(0)
        time = np.concatenate([self.time_s, time_s])
        memory = np.concatenate([self.memory_bytes, memory_bytes])
        kept, _ = reduce_segments(np.array([0, len(time)]), time, memory)
        self.time_s, self.memory_bytes = time[kept], memory[kept]
        # What no known strategy beats or equals lies below some corner of their staircase: faster than one of them and
        # smaller than the next. Beyond the ends there is nothing if they have the least memory and time there is.
        time = np.concatenate([[np.inf], self.time_s])
        memory = np.concatenate([self.memory_bytes, [np.inf]])
        first, last = 0, len(time)
        if len(self.time_s):
            first += self._weighted[1].bound >= self.memory_bytes[0] * (1.0 - _PROVEN)
            last -= self._weighted[0].bound >= self.time_s[-1] * (1.0 - _PROVEN)
        if first >= last:  # one strategy is the best in both costs; only its equals stay
            time, memory, first, last = self.time_s, self.memory_bytes, 0, 1
        # A step faster, or faster by epsilon; not both, since a time over 1 + epsilon is no multiple of a step.
        nearest = np.minimum(time[first:last] * self._relax, time[first:last] - self._steps[0])
        self._corner_time = nearest * (1.0 + _SLACK)
        self._corner_memory = memory[first:last] * (1.0 + _SLACK) - self._steps[1]
        self._set_walls()

    def _set_walls(self) -> None:
        self._walls = np.zeros((len(self._weighted), len(self._corner_time)))
        self._lowest = np.zeros(len(self._weighted), np.int64)
        for w in range(2, len(self._weighted)):
            cost = self._corner_time * self._time_weights[w] + self._corner_memory * self._memory_weights[w]
            lowest = int(cost.argmin())
            self._lowest[w] = lowest
            self._walls[w, : lowest + 1] = np.maximum.accumulate(cost[lowest::-1])[::-1]
            self._walls[w, lowest:] = np.maximum.accumulate(cost[lowest:])

    @property
    def gap(self) -> bool:
        """True if the frontier may still lack a strategy that no known strategy comes close to."""
        return bool(self._possible(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), [], self._total).any())

    def alive(self) -> dict[int, IntArray]:
        """Per variable, the configurations that some strategy on the frontier may have."""
        zero = np.zeros(len(self._weighted))
        result = {}
        for v, least_with in self._least_with.items():
            least = self._of(v, least_with)
            size = least.shape[1]
            empty = np.zeros(size)
            result[v] = np.flatnonzero(self._possible(np.arange(size), empty, empty, [(1, size, least)], zero))
        return result

    @property
    def lines(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights of time, of memory, and the weighted cost that every strategy has at least, one per pair."""
        return self._time_weights, self._memory_weights, np.array([w.bound for w in self._weighted])

    @property
    def strategies(self) -> int:
        """How many strategies the bounds come with, one per pair of weights."""
        return len(self._weighted)

    def near(self, count: int, strategies: slice = slice(None)) -> dict[int, IntArray]:
        """Per variable, so many configurations that promise most under each pair of weights, and strategies' own."""
        result = {}
        for i, (v, least_with) in enumerate(sorted(self._least_with.items())):
            least = self._of(v, least_with)
            first = least.argmin(axis=1)[:, None] if count == 1 else least.argsort(axis=1, kind="stable")[:, :count]
            known = [w.labels[i] for w in self._weighted[strategies]]
            result[v] = np.unique(np.concatenate([first.reshape(-1), known]))
        return result

    def hull(self, graph: CostGraph) -> Factor:
        """The best strategies that message passing found, one per pair of weights, without those that others beat.

        Args:
            graph: what the bounds are for.
        """
        time = np.array([w.time_s for w in self._weighted])
        memory = np.array([w.memory_bytes for w in self._weighted])
        kept, offsets = reduce_segments(np.array([0, len(time)]), time, memory)
        chosen = np.array([self._weighted[w].points for w in kept]).T
        origins = tuple(factor.origin for factor in graph.factors())
        return Factor((), FrontierTable((), offsets, time[kept], memory[kept]), Sum(origins, tuple(chosen)))

    def relaxed(self, epsilon: float) -> Bounds:
        """The same bounds for points that may be slower than those on the frontier."""
        other = object.__new__(Bounds)
        other.__dict__.update(self.__dict__)
        other._corner_time = self._corner_time * (1.0 + epsilon)
        other._set_walls()
        return other

    def restricted(self, chosen: dict[int, IntArray]) -> Bounds:
        """The same bounds where only some configurations are left."""
        other = object.__new__(Bounds)
        other.__dict__.update(self.__dict__)
        # Most are never asked for.
        other._chosen = {v: rows if self._chosen is None else self._chosen[v][rows] for v, rows in chosen.items()}
        return other

    def _of(self, variable: int, costs: FloatArray) -> FloatArray:
        """Costs ``(weights, configurations)`` of the configurations that are left."""
        return costs if self._chosen is None else costs[:, self._chosen[variable]]

    def taken(self, scope: tuple[int, ...]) -> Taken:
        """Returns the contribution of one table of the graph to the least costs."""
        none = np.zeros(len(self._weighted))
        if len(scope) == 2:
            return Taken({v: self._of(v, part) for v, part in zip(scope, self._shares[scope], strict=True)}, none)
        return Taken({v: self._of(v, self._unary[v]) for v in scope}, none)

    def without(self, taken: Taken, gone: Sequence[int]) -> Taken:
        """The same after some variables were decided."""
        shares = {v: a for v, a in taken.shares.items() if v not in gone}
        return Taken(shares, taken.decided + np.sum([self._least[v] for v in gone], axis=0))

    def tests(self, taken: Taken, scope: tuple[int, ...]) -> tuple[Prune, Box]:
        """The tests for the points of a table: exhaustive, and quick."""
        base = self._total - taken.decided
        parts: list[tuple[int, int, FloatArray]] = []
        for v in reversed(scope):
            left = self._of(v, self._left[v])
            with np.errstate(invalid="ignore"):
                rest = np.where(np.isinf(left), np.inf, left - taken.shares[v])
            base = base - self._least[v]
            stride = parts[-1][0] * parts[-1][1] if parts else 1
            parts.append((stride, rest.shape[1], rest))

        def keep(cell: IntArray, time_s: FloatArray, memory_bytes: FloatArray) -> np.ndarray:
            return self._possible(cell, time_s, memory_bytes, parts, base)

        box = []
        for which in (0, 1):
            total = base[which : which + 1]
            for _, _, rest in reversed(parts):
                total = (total[:, None] + rest[which]).reshape(-1)
            box.append(total)
        return keep, (box[0], box[1], self._corner_time, self._corner_memory)

    def _possible(
        self,
        cell: IntArray,
        time_s: FloatArray,
        memory_bytes: FloatArray,
        parts: list[tuple[int, int, FloatArray]],
        base: FloatArray,
    ) -> np.ndarray:
        starts = np.cumsum([0, *(size for _, size, _ in parts)])
        table = np.array([(stride, size, starts[i]) for i, (stride, size, _) in enumerate(parts)], np.int64)
        outside = np.concatenate([np.zeros((len(self._weighted), 0)), *(rest for _, _, rest in parts)], axis=1)
        mask: np.ndarray = self._test(
            cell,
            time_s,
            memory_bytes,
            table.reshape(-1, 3),
            outside,
            self._time_weights,
            self._memory_weights,
            self._corner_time,
            self._corner_memory,
            base,
            self._walls,
            self._lowest,
        )
        return mask


def _between(messages: Messages, low: Weighted, high: Weighted) -> Weighted | None:
    """The result for the weights under which both cost the same."""
    pair = 1.0 / (low.time_s - high.time_s), 1.0 / (high.memory_bytes - low.memory_bytes)
    return messages.run(*pair, messages.mix(_mixture(low, high, *pair)))


def _mixture(low: Weighted, high: Weighted, time_weight: float, memory_weight: float) -> list[tuple[float, Weighted]]:
    """Factors by which the weights of two results add up to the given ones (or nearly, where they are alike)."""
    matrix = np.array([[low.time_weight, high.time_weight], [low.memory_weight, high.memory_weight]])
    determinant = matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]
    if determinant == 0.0:
        return []
    one = (time_weight * matrix[1, 1] - memory_weight * matrix[0, 1]) / determinant
    two = (matrix[0, 0] * memory_weight - matrix[1, 0] * time_weight) / determinant
    return [(one, low), (two, high)] if one >= 0.0 and two >= 0.0 else []
