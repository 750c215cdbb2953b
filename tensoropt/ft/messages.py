"""Lower bounds on the cost of all strategies, with time and memory weighted into one number.

Sequential tree-reweighted message passing (Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy
Minimization", PAMI 2006): neighbours tell each other the least cost of each configuration, and the sum of the least
costs that remain is a lower bound on all strategies. A pass takes time proportional to the tables of the graph, whereas
eliminations take time proportional to products of tables. On the graphs of models, the bound meets the best strategy
found within a few passes, almost always to the last digits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.ft.cost_graph import CostGraph
from tensoropt.ft.factors import Factor
from tensoropt.problem.frontier_tables import FrontierTable
from tensoropt.problem.problem import FloatArray, IntArray

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
        points: the point that it takes of each factor's table.
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
    points: IntArray
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
        cells: of all edges, of which each is looked at once in a pass.
    """

    def __init__(self, graph: CostGraph) -> None:
        """Lays the tables flat, equal ones once; every scope has at most two variables."""
        # Imported here because it takes Numba.
        from tensoropt.ft.message_kernels import pass_messages

        self._pass: Callable[..., tuple[float, float, float]] = pass_messages
        self.variables = sorted(graph.sizes)
        place = {v: i for i, v in enumerate(self.variables)}
        self.sizes = np.array([graph.sizes[v] for v in self.variables], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        factors = list(graph.factors())
        which = self._lay_tables(factors, place)
        self.edges = sorted({factor.scope for factor in factors if len(factor.scope) == 2})
        self._ends = np.array([[place[v] for v in scope] for scope in self.edges], np.int64).reshape(-1, 2)
        lengths = self.sizes[self._ends]
        self.cells = int(lengths.prod(axis=1).sum())
        self.message_start = (np.cumsum(lengths.reshape(-1)) - lengths.reshape(-1)).reshape(-1, 2)
        self._message_length = int(lengths.sum())
        self._lay_sums(factors, which)
        edges_at: list[list[int]] = [[] for _ in self.variables]
        for edge, (u, v) in enumerate(self._ends.tolist()):
            edges_at[u].append(edge)
            edges_at[v].append(edge)
        self._around = np.array([edge for at in edges_at for edge in at], np.int64)
        self._around_start = np.cumsum([0, *map(len, edges_at)])
        forth = sorted(range(len(self.variables)), key=lambda i: graph.state.rank[self.variables[i]])
        self._orders = np.array([forth, forth[::-1]], np.int64)
        self._ranks = np.argsort(self._orders, axis=1)

    def _lay_tables(self, factors: list[Factor], place: dict[int, int]) -> list[int]:
        """Lays distinct tables one after another; returns the number of each factor's."""
        distinct: list[FrontierTable] = []
        number: dict[int, int] = {}
        which, scopes, strides = [], [], []
        for factor in factors:
            table = factor.table
            if id(table) not in number:
                number[id(table)] = len(distinct)
                distinct.append(table)
            which.append(number[id(table)])
            scopes.append([*(place[v] for v in factor.scope), -1, -1][:2])
            strides.append([[0, 0], [1, 0], [table.shape[-1], 1]][len(factor.scope)])
        self._cells = np.cumsum([0, *(t.cells for t in distinct)])
        points = np.cumsum([0, *(t.points for t in distinct)])
        self._scopes = np.array(scopes, np.int64).reshape(-1, 2)
        self._strides = np.array(strides, np.int64).reshape(-1, 2)
        self._table_cell = self._cells[np.array(which, np.int64)]
        self._copies = np.array([factor.copies for factor in factors], np.float64)
        self._offsets = np.concatenate(
            [*(t.offsets[:-1] + at for t, at in zip(distinct, points, strict=False)), points[-1:]]
        )
        self._time = np.concatenate([t.time_s for t in distinct])
        self._memory = np.concatenate([t.memory_bytes for t in distinct])
        return which

    def _lay_sums(self, factors: list[Factor], which: list[int]) -> None:
        """Tables over the same variables are weighed together: first those of single variables, then edges'.

        Equal sums of edges are made once.
        """
        of: dict[tuple[int, ...], Counter[int]] = {}
        for factor, number in zip(factors, which, strict=True):
            of.setdefault(factor.scope, Counter())[int(self._cells[number])] += factor.copies
        parts = [of.get((v,), Counter()) for v in self.variables]
        known: dict[tuple[tuple[int, int], ...], int] = {}
        edge_sums = []
        lengths = self.sizes.tolist()
        for scope, ends in zip(self.edges, self._ends.tolist(), strict=True):
            tables = tuple(sorted(of[scope].items()))
            if tables not in known:
                known[tables] = len(parts)
                parts.append(of[scope])
                lengths.append(math.prod(self.sizes[ends].tolist()))
            edge_sums.append(known[tables])
        self._sum_start = np.cumsum([0, *lengths])
        self._part_start = np.cumsum([0, *map(len, parts)])
        self._parts = np.array([at for counted in parts for at in counted], np.int64)
        self._counts = np.array([count for counted in parts for count in counted.values()], np.float64)
        self._edge_sum = self._sum_start[np.array(edge_sums, np.int64)]

    def run(self, time_weight: float, memory_weight: float, start: FloatArray | None = None) -> Weighted | None:
        """Bounds for one pair of weights; None if no possible strategy was found.

        Args:
            time_weight: per second, >= 0.
            memory_weight: per byte, >= 0.
            start: messages to start from. Any will do; those for similar weights save passes.
        """
        total = int(self.starts[-1])
        messages = np.zeros(self._message_length) if start is None else start.copy()
        shares, left, unary = np.zeros(self._message_length), np.zeros(total), np.zeros(total)
        least_with = np.full(total, -np.inf)
        labels, points = np.zeros(len(self.sizes), np.int64), np.zeros(len(self._scopes), np.int64)
        bound, time, memory = self._pass(
            time_weight,
            memory_weight,
            *(self._offsets, self._time, self._memory),
            *(self._sum_start, self._part_start, self._parts, self._counts),
            *(self._orders, self._ranks, self.sizes, self._around_start, self._around),
            *(self._ends, self._edge_sum, self.starts, self.message_start),
            *(self._scopes, self._strides, self._table_cell, self._copies),
            *(2 * _PASSES, _CLOSE, _GAIN),
            *(messages, shares, left, least_with, unary, labels, points),
        )
        if not math.isfinite(time):
            return None
        # What is left must be of the last pass, like the shares.
        return Weighted(
            time_weight, memory_weight, bound, time, memory, labels, points, least_with, left, shares, unary, messages
        )

    def mix(self, parts: Sequence[tuple[float, Weighted]]) -> FloatArray:
        """Messages to start from where weights are combinations of others."""
        mixed = np.zeros(self._message_length)
        for factor, weighted in parts:
            mixed += factor * np.where(np.isfinite(weighted.messages), weighted.messages, 0.0)
        return mixed
