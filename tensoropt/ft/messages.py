"""What a strategy costs at least, with time and memory weighted into one number.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy
Minimization", PAMI 2006): neighbours tell each other what each configuration costs at least, and the sum of what
nobody can do without is a lower bound of all strategies. A pass takes time proportional to the tables of the graph,
where eliminations take their products; on the graphs of models the bound meets the best strategy found within a few
passes, almost always to the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.ft.cost_graph import CostGraph
from tensoropt.search.problem import FloatArray, IntArray
from tensoropt.search.tables import FrontierTable

__all__ = ["Messages", "Weighted"]

_PASSES = 6
"""Forth and back. Most weights need two or three."""

_GAIN = 1e-5
"""Relative: passes also end once they raise the bound by less than this and find no better strategy."""

_CLOSE = 1e-10
"""Relative: passes end once bound and strategy are this close."""


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """The result for one pair of weights. Arrays over (variable, configuration) are flat.

    Attributes:
        time_weight: per second.
        memory_weight: per byte.
        bound: every strategy's weighted cost is at least this.
        time_s: of the best strategy that was found.
        memory_bytes: of the same.
        labels: its configurations.
        least_with: what strategies with each configuration cost at least.
        left: per configuration, the part of the least cost that belongs to the variable, unary cost included.
        shares: per end of each edge and configuration there, the part that belongs to the edge.
        unary: weighted costs of configurations.
        messages: as they were last.
    """

    time_weight: float
    memory_weight: float
    bound: float
    time_s: float
    memory_bytes: float
    labels: IntArray
    least_with: FloatArray
    left: FloatArray
    shares: FloatArray
    unary: FloatArray
    messages: FloatArray

    def cost(self, time_s: float, memory_bytes: float) -> float:
        """The weighted cost of a strategy."""
        return time_s * self.time_weight + memory_bytes * self.memory_weight


class Messages:
    """A graph of tables over one and two variables, flat, to be run for any weights.

    Attributes:
        variables: ascending.
        sizes: per variable, its configurations.
        starts: per variable, where its part of arrays over (variable, configuration) starts; then their length.
        edges: the scopes of two variables.
        message_start: ``(edges, 2)``, where the part of each end starts in arrays over them.
    """

    def __init__(self, graph: CostGraph) -> None:
        """Lays the tables flat, equal ones once; every scope has at most two variables."""
        # Imported here because it takes Numba.
        from tensoropt.ft import kernels

        self._weigh: Callable[..., None] = kernels.weigh
        self._sweep: Callable[..., float] = kernels.sweep
        self._price: Callable[..., tuple[float, float]] = kernels.price
        self.variables = sorted(graph.sizes)
        place = {v: i for i, v in enumerate(self.variables)}
        self.sizes = np.array([graph.sizes[v] for v in self.variables], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self.edges = [scope for scope in sorted(graph.factors) if len(scope) == 2]
        self._ends = np.array([[place[v] for v in scope] for scope in self.edges], np.int64).reshape(-1, 2)
        lengths = self.sizes[self._ends]
        self.message_start = (np.cumsum(lengths.reshape(-1)) - lengths.reshape(-1)).reshape(-1, 2)
        self._message_length = int(lengths.sum())
        self._lay_tables(graph, place)
        edges_at: list[list[int]] = [[] for _ in self.variables]
        for edge, (u, v) in enumerate(self._ends.tolist()):
            edges_at[u].append(edge)
            edges_at[v].append(edge)
        self._around = np.array([edge for at in edges_at for edge in at], np.int64)
        self._around_start = np.cumsum([0, *map(len, edges_at)])
        forth = sorted(range(len(self.variables)), key=lambda i: graph.workshop.rank[self.variables[i]])
        self._orders = [np.array(order, np.int64) for order in (forth, forth[::-1])]
        self._ranks = [np.argsort(order) for order in self._orders]

    def _lay_tables(self, graph: CostGraph, place: dict[int, int]) -> None:
        scopes, strides, which = [], [], []
        distinct: list[FrontierTable] = []
        number: dict[int, int] = {}
        for scope in sorted(graph.factors):
            table = graph.factors[scope].table
            if id(table) not in number:
                number[id(table)] = len(distinct)
                distinct.append(table)
            which.append(number[id(table)])
            scopes.append([*(place[v] for v in scope), -1, -1][:2])
            strides.append([[0, 0], [1, 0], [table.shape[-1], 1]][len(scope)])
        cells = np.cumsum([0, *(t.cells for t in distinct)])
        points = np.cumsum([0, *(t.points for t in distinct)])
        self._tables = distinct
        self._cells = cells
        self._scopes = np.array(scopes, np.int64).reshape(-1, 2)
        self._strides = np.array(strides, np.int64).reshape(-1, 2)
        table_of = np.array(which, np.int64)
        self._offset_start = cells[table_of] + table_of
        self._point_start = points[table_of]
        self._offsets = np.concatenate([t.offsets for t in distinct])
        self._time = np.concatenate([t.time_s for t in distinct])
        self._memory = np.concatenate([t.memory_bytes for t in distinct])
        self._edge_table = cells[table_of[self._scopes[:, 1] >= 0]]
        single = np.flatnonzero((self._scopes[:, 1] < 0) & (self._scopes[:, 0] >= 0))
        self._unary_tables = [(int(self._scopes[f, 0]), int(cells[table_of[f]])) for f in single]

    def run(self, time_weight: float, memory_weight: float, start: FloatArray | None = None) -> Weighted | None:
        """Bounds for one pair of weights; None if no possible strategy was found.

        Args:
            time_weight: per second, >= 0.
            memory_weight: per byte, >= 0.
            start: messages to start from. Any will do; those for similar weights save passes.
        """
        tables = np.empty(int(self._cells[-1]))
        for number, table in enumerate(self._tables):
            out = tables[self._cells[number] : self._cells[number + 1]]
            self._weigh(table.offsets, table.time_s, table.memory_bytes, time_weight, memory_weight, out)
        total = int(self.starts[-1])
        unary = np.zeros(total)
        for v, at in self._unary_tables:
            size = int(self.sizes[v])
            unary[self.starts[v] : self.starts[v] + size] = tables[at : at + size]
        messages = np.zeros(self._message_length) if start is None else start.copy()
        shares, left = np.zeros(self._message_length), np.zeros(total)
        least_with = np.full(total, -np.inf)
        labels = np.zeros(len(self.sizes), np.int64)
        bound, before = -math.inf, -math.inf
        best: tuple[float, float, float, Any] = (math.inf, math.inf, math.inf, labels)
        reached = (-math.inf, math.inf)
        for number in range(2 * _PASSES):
            before = self._sweep(
                self._orders[number % 2],
                self.sizes,
                self._around_start,
                self._around,
                self._ends,
                self._edge_table,
                tables,
                self.starts,
                unary,
                self.message_start,
                messages,
                shares,
                before,
                left,
                least_with,
                self._ranks[number % 2],
                labels,
            )
            bound = max(bound, before)
            time, memory = self._price(
                self._scopes,
                self._strides,
                self._offset_start,
                self._point_start,
                self._offsets,
                self._time,
                self._memory,
                labels,
                time_weight,
                memory_weight,
            )
            value = time * time_weight + memory * memory_weight
            if value < best[0]:
                best = (value, time, memory, labels.copy())
            if number > 0 and bound >= best[0] * (1.0 - _CLOSE):
                break
            if number % 2:
                if bound - reached[0] < _GAIN * abs(bound) and best[0] >= reached[1]:
                    break
                reached = (bound, best[0])
        if not math.isfinite(best[0]):
            return None
        # What is left must be of the last pass, like the shares.
        return Weighted(time_weight, memory_weight, bound, *best[1:], least_with, left, shares, unary, messages)

    def mix(self, parts: Sequence[tuple[float, Weighted]]) -> FloatArray:
        """Messages to start from where weights are combinations of others."""
        mixed = np.zeros(self._message_length)
        for factor, weighted in parts:
            mixed += factor * np.where(np.isfinite(weighted.messages), weighted.messages, 0.0)
        return mixed
