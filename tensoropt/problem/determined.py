"""Nodes whose configuration another node's leaves no choice of, such as an update's by its variable's."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tensoropt.problem.problem import IntArray, Problem

__all__ = ["determined"]


def determined(problem: Problem) -> tuple[IntArray, tuple[IntArray | None, ...]]:
    """The node that decides for each node, and the node's configuration by that one's.

    A node follows a neighbour if their edge has at most one possible configuration of it for each of the neighbour's.
    What follows adds its costs to the one that decides (`Contraction`), and no strategy is lost.

    Complexity: O(nodes + edges), and once the size of each table.

    Args:
        problem: without groups.

    Returns:
        ``(N,)``; and per node ``(K,)`` by the configurations of the one that decides, or None for its own.
    """
    tables = map(problem.node_tables, range(problem.nodes))
    possible = [np.isfinite((time_s + memory_bytes).min(axis=1)) for time_s, memory_bytes in tables]
    around: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for e, (u, v) in enumerate(problem.edges.tolist()):
        around[u].append((v, e, False))
        around[v].append((u, e, True))
    found: dict[object, IntArray | None] = {}

    def by(i: int, j: int, e: int, turned: bool) -> IntArray | None:
        """The configuration of a node by that of its neighbour, if there is never more than one."""
        key = (
            id(problem.edge_time_s[e]),
            id(problem.edge_memory_bytes[e]),
            turned,
            possible[i].tobytes(),
            possible[j].tobytes(),
        )
        if key not in found:
            time_s, memory_bytes = problem.edge_tables(e)
            pairs = np.isfinite(time_s + memory_bytes).any(axis=2)
            pairs = (pairs.T if turned else pairs) & possible[i][:, None] & possible[j]
            found[key] = pairs.argmax(axis=1) if (pairs.sum(axis=1) <= 1).all() else None
        return found[key]

    leaders = np.arange(problem.nodes)
    index: list[IntArray | None] = [None] * problem.nodes
    free = np.ones(problem.nodes, bool)
    chained: dict[tuple[int, int], tuple[object, IntArray]] = {}
    for root in range(problem.nodes):
        if not free[root]:
            continue
        free[root] = False
        pending = [root]
        for i in pending:
            for j, e, turned in around[i]:
                step = by(i, j, e, turned) if free[j] else None
                if step is None:
                    continue
                before = index[i]
                if before is not None:  # one object for equal ways, so that tables by it are shared
                    way = (id(step), id(before))
                    step = chained.setdefault(way, ((step, before), step[before]))[1]
                leaders[j], index[j], free[j] = root, step, False
                pending.append(j)
    return leaders, tuple(index)
