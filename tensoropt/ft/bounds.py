"""Partial frontiers without the points that cannot end on the frontier.

The cumulative frontiers of LDP grow with every layer, though most of their points end up beaten by strategies
that are easy to find. So first some strategies are found, then a partial point is dropped as soon as nothing
that it can be completed to would stand beside them. What is dropped is strictly dominated: the frontier stays
exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tensoropt.ft.cost_graph import CostGraph, Factor
from tensoropt.ft.origin import Select
from tensoropt.ft.scalar import ScalarElimination, Weighted
from tensoropt.search.frontier import offsets_of, reduce_segments
from tensoropt.search.problem import FloatArray, IntArray
from tensoropt.search.tables import FrontierTable, Prune

__all__ = ["Bounds"]

_WEIGHTS = 24
"""Pairs of weights tried. Each costs two scalar passes; more of them come closer to the frontier's convex
hull."""

_SLACK = 1e-9
"""Relative: a bound must be beaten by more than this, which is far more than its sums' rounding errors."""


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A weighted cost at the corners of the staircase, as the test needs it.

    ``left`` and ``right`` are running maxima from the corner of least cost, ``lowest``, outwards.
    """

    number: int
    lowest: int
    left: FloatArray
    right: FloatArray


class Bounds:
    """Which partial points of a fixed order of elimination can still end on the frontier."""

    def __init__(self, elimination: ScalarElimination, weighted: list[Weighted]) -> None:
        """Takes the two bounds of one cost only first, then those of both."""
        self._elimination = elimination
        self._weighted = weighted
        self.time_s = np.empty(0)
        self.memory_bytes = np.empty(0)
        self._lines: list[_Line] = []
        self.learn(np.array([w.time_s for w in weighted]), np.array([w.memory_bytes for w in weighted]))

    @classmethod
    def of(cls, graph: CostGraph, order: list[int]) -> Bounds | None:
        """Bounds for eliminating all of ``graph``'s variables in ``order``; None if no strategy is possible.

        The weights are found as the convex hull is: the normal of two neighbouring points leads to a point
        between them, if there is one.
        """
        elimination = ScalarElimination(graph, order)
        fastest, smallest = elimination.run(1.0, 0.0), elimination.run(0.0, 1.0)
        if fastest is None or smallest is None:
            return None
        found = [fastest, smallest]
        queue = deque([(smallest, fastest)])
        while queue and len(found) < _WEIGHTS:
            low, high = queue.popleft()
            gain, price = low.time_s - high.time_s, high.memory_bytes - low.memory_bytes
            if gain <= 0.0 or price <= 0.0:
                continue
            # Both ends cost the same: gain / gain + ... scaled so that the numbers stay near 1.
            between = elimination.run(1.0 / gain, 1.0 / price)
            if between is None:
                continue
            found.append(between)
            value = between.time_s / gain + between.memory_bytes / price
            if value < (low.time_s / gain + low.memory_bytes / price) * (1.0 - _SLACK):
                queue.append((low, between))
                queue.append((between, high))
        return cls(elimination, found)

    def learn(self, time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Adds strategies that exist to those that others must stand beside."""
        time = np.concatenate([self.time_s, time_s])
        memory = np.concatenate([self.memory_bytes, memory_bytes])
        kept, _ = reduce_segments(np.array([0, len(time)]), time, memory)
        self.time_s, self.memory_bytes = time[kept], memory[kept]
        # What no known strategy beats lies below some corner of their staircase: no slower than one of them and no
        # larger than the next. Beyond both ends there is nothing, they have the least memory and time there is.
        single = len(kept) == 1
        self._set_corners(
            self.time_s if single else self.time_s[:-1], self.memory_bytes if single else self.memory_bytes[1:]
        )

    def only(self, time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Takes a frontier of strategies as the only ones that others must stand beside.

        It need not have the least memory or time there is, so what lies beyond its ends stays possible.
        """
        self.time_s, self.memory_bytes = time_s, memory_bytes
        self._set_corners(np.concatenate([[np.inf], time_s]), np.concatenate([memory_bytes, [np.inf]]))

    def _set_corners(self, time_s: FloatArray, memory_bytes: FloatArray) -> None:
        self._corner_time, self._corner_memory = time_s, memory_bytes
        self._lines = []
        for number, weighted in enumerate(self._weighted[2:], start=2):
            cost = self._corner_time * weighted.time_weight + self._corner_memory * weighted.memory_weight
            lowest = int(cost.argmin())
            self._lines.append(
                _Line(
                    number,
                    lowest,
                    np.maximum.accumulate(cost[lowest::-1]),
                    np.maximum.accumulate(cost[lowest:]),
                )
            )
        self._lines.sort(key=lambda line: line.lowest)

    def prune(self, step: int, beam: int = 0) -> Prune:
        """The test for the points that elimination number ``step`` makes.

        Args:
            step: which elimination.
            beam: if > 0, only the points stay that come closest to the convex hull, so many per pair of
                weights: for finding strategies, not for exact frontiers.
        """

        def keep(cell: IntArray, time_s: FloatArray, memory_bytes: FloatArray) -> np.ndarray:
            mask = self._possible([w.outside[step] for w in self._weighted], cell, time_s, memory_bytes)
            stays = np.flatnonzero(mask)
            if 0 < beam < len(stays):
                near = self._near_hull(step, cell[stays], time_s[stays], memory_bytes[stays], beam)
                mask[stays[~near]] = False
            return mask

        return keep

    def without_hopeless(self, graph: CostGraph) -> None:
        """Drops points of the tables that the eliminations start from; tables of single points stay as they are."""
        for scope in sorted(graph.factors):
            factor = graph.factors[scope]
            table = factor.table
            if not scope or table.points <= table.cells:
                continue
            outside = [self._elimination.around(factor, weighted) for weighted in self._weighted]
            cell = np.repeat(np.arange(table.cells), table.counts)
            points = np.flatnonzero(self._possible(outside, cell, table.time_s, table.memory_bytes))
            offsets = offsets_of(np.bincount(cell[points], minlength=table.cells))
            smaller = FrontierTable(table.shape, offsets, table.time_s[points], table.memory_bytes[points])
            graph.factors[scope] = Factor(scope, smaller, Select(factor.origin, points))

    def _possible(
        self, outside: list[FloatArray], cell: IntArray, time_s: FloatArray, memory_bytes: FloatArray
    ) -> np.ndarray:
        """A mask of the points that some completion may bring below a corner, going by all weights.

        Args:
            outside: per pair of weights, for each cell the least cost of all that is not in it.
            cell: of each point.
            time_s: of each point.
            memory_bytes: of each point.
        """
        # By least time and least memory apart, a point may end below corners cursor..last.
        total = time_s + outside[0][cell]
        last = np.searchsorted(-self._corner_time, -total * (1.0 - _SLACK), side="right") - 1
        total = memory_bytes + outside[1][cell]
        cursor = np.searchsorted(self._corner_memory, total * (1.0 - _SLACK), side="left")
        mask: np.ndarray = cursor <= last
        at = np.flatnonzero(mask)
        cell, time_s, memory_bytes, cursor, last = cell[at], time_s[at], memory_bytes[at], cursor[at], last[at]
        for line in self._lines:
            if len(at) == 0:
                break
            weights = self._weighted[line.number]
            bound = time_s * weights.time_weight + memory_bytes * weights.memory_weight
            bound = (bound + outside[line.number][cell]) * (1.0 - _SLACK)
            # The corners below the bound, from `lowest` outwards without a gap, are out of reach.
            start = line.lowest + 1 - np.searchsorted(line.left, bound, side="left")
            stop = line.lowest + np.searchsorted(line.right, bound, side="left")
            cursor = np.where((start <= cursor) & (stop > cursor), stop, cursor)
            gone = cursor > last
            if gone.any():
                mask[at[gone]] = False
                stay = ~gone
                at = at[stay]
                cell, time_s, memory_bytes = cell[stay], time_s[stay], memory_bytes[stay]
                cursor, last = cursor[stay], last[stay]
        return mask

    def _near_hull(
        self, step: int, cell: IntArray, time_s: FloatArray, memory_bytes: FloatArray, beam: int
    ) -> np.ndarray:
        """A mask of the ``beam`` points (more if equal) that promise most under each pair of weights."""
        near = np.zeros(len(cell), bool)
        for weighted in self._weighted:
            bound = time_s * weighted.time_weight + memory_bytes * weighted.memory_weight
            bound += weighted.outside[step][cell]
            near |= bound <= np.partition(bound, beam - 1)[beam - 1]
        return near
