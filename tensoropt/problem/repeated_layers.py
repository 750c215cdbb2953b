"""Layers that are repeated with weights of their own: in deep models, several of them in a row decide as one."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from tensoropt.problem.problem import IntArray, Problem, same_memory

__all__ = ["MOST_NODES", "repeated_layers"]

MOST_NODES = 400
"""So many nodes are searched within some seconds."""

_DEPTH = 4
"""So far a node's surroundings are compared. Layers at the ends of a stack have others beside them, and stay free."""

_LEAST_RUNS = 4

_TURNS = 2
"""Layers of a run take configurations in turn, since products that are split by columns and by rows go together."""


def repeated_layers(problem: Problem, *, most_nodes: int = MOST_NODES) -> IntArray:
    """For each node the one that decides for it, ``(N,)``, so that about ``most_nodes`` are left.

    Nodes are alike if their tables and those of all that is around them are the same objects, as those of equal layers
    are. Of a thousand layers in a row the first hundred take one configuration or two in turn, then the next hundred,
    and so on: strategies that mix configurations in finer parts are left out. There are at least four runs of every
    layer, even if more nodes are left then.

    Complexity: O(edges), whatever the number of layers.

    Args:
        problem: its nodes in topological order, so that a layer's nodes are next to one another.
        most_nodes: how many.
    """
    alike = [nodes for nodes in _alike(problem) if len(nodes) > _LEAST_RUNS]
    free = problem.nodes - sum(map(len, alike))
    runs, most_runs = _LEAST_RUNS, len(alike[0]) if alike else 0
    while runs < most_runs and free + sum(min(len(nodes), _TURNS * (runs + 1)) for nodes in alike) <= most_nodes:
        runs += 1
    # Where one run ends and the next begins. It is the same place for all nodes of a stack, or they would change in
    # different layers.
    cuts = np.array([0, problem.nodes])
    for nodes in alike:
        wanted = math.ceil(len(nodes) / runs)
        segment = np.searchsorted(cuts, nodes, side="right")
        more = []
        for number, count in zip(*np.unique(segment, return_counts=True), strict=True):
            parts = round(count / wanted)
            within = nodes[segment == number]
            more += [within[count * part // parts] for part in range(1, parts)]
        cuts = np.union1d(cuts, np.array(more, np.int64))
    leaders = np.arange(problem.nodes)
    for nodes in alike:
        turn = np.arange(len(nodes)) % _TURNS
        which = np.searchsorted(cuts, nodes, side="right") * _TURNS + turn
        _, first, decided = np.unique(which, return_index=True, return_inverse=True)
        leaders[nodes] = nodes[first[decided]]
    if problem.groups is not None:
        _, first, member = np.unique(problem.groups, return_index=True, return_inverse=True)
        leaders = leaders[first[member]]
    return leaders


def _alike(problem: Problem) -> list[IntArray]:
    """Nodes of one kind each, ascending; the most numerous first."""
    numbers: dict[object, int] = {}

    def number(key: object) -> int:
        return numbers.setdefault(key, len(numbers))

    labels = np.array([number(tuple(map(same_memory, problem.node_tables(i)))) for i in range(problem.nodes)], np.int64)
    kinds = [number(tuple(map(same_memory, problem.edge_tables(e)))) for e in range(len(problem.edges))]
    # Each edge is seen from both of its ends.
    ends = np.concatenate([problem.edges, problem.edges[:, ::-1]])
    kind = np.concatenate([2 * np.array(kinds, np.int64), 2 * np.array(kinds, np.int64) + 1])
    order = np.argsort(ends[:, 0], kind="stable")
    mine, other, kind = ends[order, 0], ends[order, 1], kind[order]
    for _ in range(_DEPTH):
        # A node beside very many, such as what all layers read, is told by how many kinds there are beside it.
        pairs = np.unique(np.stack([mine, kind, labels[other]], axis=1), axis=0)
        starts = np.searchsorted(pairs[:, 0], np.arange(problem.nodes + 1))
        rows = pairs[:, 1:].tobytes()
        width = 2 * pairs.itemsize
        labels = np.array(
            [number((int(labels[i]), rows[width * starts[i] : width * starts[i + 1]])) for i in range(problem.nodes)]
        )
    members: dict[int, list[int]] = defaultdict(list)
    for node, label in enumerate(labels.tolist()):
        members[label].append(node)
    return [np.array(nodes) for nodes in sorted(members.values(), key=lambda nodes: (-len(nodes), nodes[0]))]
