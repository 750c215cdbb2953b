"""In which order a graph's variables are eliminated at once: that of fewest points, or that of least tables."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from tensoropt.ft.cost_graph import CostGraph
from tensoropt.problem.elimination import eliminations

__all__ = ["Order", "fewest_points_order", "least_table_order"]

Scope = tuple[int, ...]


class _Expected(NamedTuple):
    """The expected size of a table.

    Attributes:
        cells: joint configurations of its variables.
        content: a number that tables share which are sure to be equal.
        length: points of a cell, on average.
    """

    cells: int
    content: int
    length: float


class _Step(NamedTuple):
    """The expected effect of eliminating a variable.

    Attributes:
        content: a number that steps share which make equal tables of equal ones.
        near: the neighbours.
        joint: joint configurations of all of them.
        length: points of a cell of the result, on average.
        candidates: points that are looked at.
    """

    content: int
    near: tuple[int, ...]
    joint: int
    length: float
    candidates: float


class _Eliminations:
    """A graph whose eliminations are only counted.

    Cells of a sum of frontiers have about as many points as those of both together (as many as that, for convex ones),
    and products are made once for all layers whose tables are equal.
    """

    def __init__(self, graph: CostGraph) -> None:
        self._sizes = graph.sizes
        self._numbers: dict[tuple[object, ...], int] = {}
        self._tables: dict[Scope, _Expected] = {}
        self._of: dict[int, set[Scope]] = {v: set() for v in graph.sizes}
        for factor in graph.factors():
            if factor.scope:
                table = factor.table
                length = 1.0 + factor.copies * max(0.0, table.mean_points - 1.0)
                self._put(factor.scope, self._number("table", id(table), factor.copies), length)
        self.steps = {v: self._look(v) for v in sorted(graph.sizes)}
        self._equals: dict[int, int] = {}
        for step in self.steps.values():
            self._equals[step.content] = self._equals.get(step.content, 0) + 1

    def points(self, variable: int) -> float:
        """Points that its elimination will make, shared among all eliminations that do the same."""
        step = self.steps[variable]
        return _number_of(step.joint // self._sizes[variable]) * step.length / self._equals[step.content]

    def eliminate(self, variable: int) -> Scope:
        """Returns the neighbours, whose steps are others now."""
        step = self.steps.pop(variable)
        for scope in sorted(self._of[variable]):
            del self._tables[scope]
            for v in scope:
                self._of[v].discard(scope)
        if step.near:
            self._put(step.near, self._number("made", step.content), step.length)
        for v in step.near:
            # A variable that went still counts among those that it was equal to: they share what was made for it.
            before, now = self.steps[v].content, self._look(v)
            self.steps[v] = now
            self._equals[before] -= 1
            self._equals[now.content] = self._equals.get(now.content, 0) + 1
        return step.near

    def _put(self, scope: Scope, content: int, length: float) -> None:
        known = self._tables.get(scope)
        if known is not None:
            content, length = self._number("sum", known.content, content), known.length + length - 1.0
        self._tables[scope] = _Expected(math.prod([self._sizes[v] for v in scope]), content, length)
        for v in scope:
            self._of[v].add(scope)

    def _look(self, variable: int) -> _Step:
        sizes, tables = self._sizes, self._tables
        scopes = [scope for _, scope in sorted([(tables[scope].cells, scope) for scope in self._of[variable]])]
        axes = sorted({variable}.union(*scopes))
        place = {v: axis for axis, v in enumerate(axes)}
        parts = [(tables[scope].content, *[place[v] for v in scope]) for scope in scopes]
        lengths = [tables[scope].length for scope in scopes]
        near = tuple([v for v in axes if v != variable])
        joint = math.prod([sizes[v] for v in axes])
        content = self._number("product", place[variable], sizes[variable], *parts)
        return _Step(content, near, joint, 1.0 + sum(lengths) - len(lengths), _number_of(joint) * math.prod(lengths))

    def _number(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _number_of(joint: int) -> float:
    """Joint configurations, of which a node beside hundreds has more than floats go to."""
    return float(joint) if joint < 1 << 1000 else math.inf


class Order(NamedTuple):
    """An order of elimination.

    Attributes:
        variables: all of them.
        largest: the largest number of joint configurations that any step looks at.
        candidates: about how many points all steps look at, those that are equal once.
    """

    variables: list[int]
    largest: int
    candidates: float


def fewest_points_order(graph: CostGraph) -> Order:
    """An order of elimination, each time the variable whose elimination makes the fewest points.

    Equal layers share what is made for one of them, so what lies within a layer goes before layers meet, where
    frontiers have added up.
    """
    rank = graph.state.rank
    left = _Eliminations(graph)

    def key(v: int) -> tuple[float, int, int, int, int]:
        step = left.steps[v]
        return (left.points(v), step.joint, len(step.near), rank[v], v)

    heap = [key(v) for v in sorted(graph.sizes)]
    heapq.heapify(heap)
    order: list[int] = []
    largest, candidates = 0, {}
    while heap:
        entry = heapq.heappop(heap)
        v = entry[4]
        if v not in left.steps:
            continue
        now = key(v)
        if now != entry:
            heapq.heappush(heap, now)
            continue
        step = left.steps[v]
        largest = max(largest, step.joint)
        candidates[step.content] = step.candidates
        order.append(v)
        for w in left.eliminate(v):
            heapq.heappush(heap, key(w))
    return Order(order, largest, sum(candidates.values()))


def least_table_order(graph: CostGraph) -> tuple[list[int], int]:
    """An order of elimination, each time the variable with the fewest joint configurations.

    Returns:
        the order of all variables, and the largest number of joint configurations that any step looks at.
    """
    rank, sizes = graph.state.rank, graph.sizes

    def key(v: int, near: set[int]) -> tuple[int, int, int, int]:
        # Neighbours with one configuration left cost nothing now, but a table of them all would be in the way later.
        result = math.prod(sizes[w] for w in near)
        return (result * sizes[v], result, len(near), rank[v])

    found = list(eliminations({v: graph.neighbours(v) for v in sizes}, key))
    largest = max((math.prod(sizes[w] for w in (v, *near)) for v, near in found), default=0)
    return [v for v, _ in found], largest
