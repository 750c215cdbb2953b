"""Which variables to eliminate one by one: those beside the marked linear graph of section 3.2."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from tensoropt.ft.cost_graph import CostGraph

__all__ = ["LinearGraph", "eliminate_simple", "first_operator", "topological_rank"]


def topological_rank(count: int, edges: list[tuple[int, int]]) -> tuple[int, ...]:
    """Each variable's place in topological order, ties by index.

    Groups may tie a graph into cycles; what is left then follows in the order of indices.
    """
    after: list[set[int]] = [set() for _ in range(count)]
    before = [0] * count
    for u, v in edges:
        if u != v and v not in after[u]:
            after[u].add(v)
            before[v] += 1
    ready = [v for v in range(count) if before[v] == 0]
    heapq.heapify(ready)
    rank = [-1] * count
    place = 0
    while ready:
        u = heapq.heappop(ready)
        rank[u] = place
        place += 1
        for v in sorted(after[u]):
            before[v] -= 1
            if before[v] == 0:
                heapq.heappush(ready, v)
    for v in range(count):
        if rank[v] < 0:
            rank[v] = place
            place += 1
    return tuple(rank)


def first_operator(graph: CostGraph) -> int:
    """Returns the start of the linear graph: the variable with the longest way downstream, of equal ones the first.

    The paper marks the operator that receives the initial input. Here a model's variables are nodes as well,
    and sources too; the longest way starts at the input of the first layer or at one of its variables.
    """
    rank = graph.state.rank
    longest: dict[int, int] = {}
    for v in sorted(graph.sizes, key=lambda v: -rank[v]):
        longest[v] = max((longest[w] + 1 for w in graph.neighbours(v) if rank[w] > rank[v]), default=0)
    return min(graph.sizes, key=lambda v: (-longest[v], rank[v]))


class LinearGraph:
    """The marked variables, from the first operator on (Algorithm 2, line 5)."""

    def __init__(self, graph: CostGraph) -> None:
        self.graph = graph
        self.marked = [first_operator(graph)]
        self.extend()

    def extend(self) -> None:
        """While the last marked variable has one downstream neighbour only, marks that one."""
        rank = self.graph.state.rank
        while True:
            last = self.marked[-1]
            downstream = [v for v in self.graph.neighbours(last) if rank[v] > rank[last]]
            if len(downstream) != 1:
                return
            self.marked.append(downstream[0])


def eliminate_simple(graph: CostGraph, marked: Callable[[], list[int]], longest: float) -> None:
    """Eliminates unmarked variables of at most two neighbours, until there are none.

    Leaves (such as a model's variables) go first, since their tables are smallest, then the others in
    topological order, so that what lies beside the linear graph goes and lets it grow, and what is on it
    stays.

    Args:
        graph: is changed.
        marked: gives the variables to leave alone; called before each elimination.
        longest: variables whose elimination would make more candidates than this are left, too: around a node
            that all layers share, what lies beside the linear graph grows as long as the graph.
    """
    rank = graph.state.rank

    def key(v: int) -> tuple[bool, int, int] | None:
        degree = len(graph.neighbours(v))
        return None if degree > 2 else (degree == 2, rank[v], v)

    heap = [k for v in sorted(graph.sizes) if (k := key(v)) is not None]
    heapq.heapify(heap)
    while heap:
        kept = marked()
        entry = heapq.heappop(heap)
        v = entry[2]
        if v not in graph.sizes or v in kept or graph.work(v) > longest:
            continue
        now = key(v)
        if now != entry:
            if now is not None:
                heapq.heappush(heap, now)
            continue
        for w in graph.eliminate(v, "node").scope:
            if (k := key(w)) is not None:
                heapq.heappush(heap, k)
