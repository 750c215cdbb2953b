"""What operators that decide, and pairs of them, add to bounds of the makespan."""

from __future__ import annotations

import numpy as np

from tensoropt.mcmc.moves import Moves
from tensoropt.problem.problem import FloatArray
from tensoropt.simulate.network import IMPOSSIBLE, Network
from tensoropt.space.work import Ints

__all__ = ["BoundTables", "bound_tables", "joined"]

BoundTables = tuple[list[FloatArray], dict[tuple[int, int], FloatArray]]
"""Per operator that decides, with its followers, ``(K, W)`` ticks by each bound; between two ``(K, L, W)``."""

# Larger than any sum of ticks, and small enough that some of it do not overflow.
_IMPOSSIBLE = 2.0**60


def joined(tables: BoundTables, others: BoundTables) -> BoundTables:
    """More bounds behind some."""
    own = [np.concatenate(pair, axis=-1) for pair in zip(tables[0], others[0], strict=True)]
    return own, {ends: np.concatenate([table, others[1][ends]], axis=-1) for ends, table in tables[1].items()}


def bound_tables(network: Network, moves: Moves, parts: FloatArray) -> BoundTables:
    """Adds up what paths take.

    Args:
        network: the tasks, with all ways.
        moves: operators that decide.
        parts: ``(slots, W, kinds)``, what part of a slot's work on each kind of resource each bound counts.
    """
    graph = network.graph
    spent: dict[int, FloatArray] = {}

    def of(slot: int, paths: Ints) -> FloatArray:
        different, inverse = np.unique(paths, return_inverse=True)
        for path in different.tolist():
            if path not in spent and path != IMPOSSIBLE:
                spent[path] = network.load(path).astype(np.float64)
        each = [
            np.full(parts.shape[1], _IMPOSSIBLE) if path == IMPOSSIBLE else parts[slot] @ spent[path]
            for path in different.tolist()
        ]
        return np.array(each)[inverse.reshape(paths.shape)]

    members = moves.members[: moves.singles]
    leader = np.zeros(network.operators, np.int64)
    by: list[Ints] = [np.zeros(0, np.int64)] * network.operators
    for number, some in enumerate(members):
        leader[some] = number
        tables = [np.zeros(network.operators, np.int64) for _ in range(int(moves.choices[number]))]
        for choice, table in enumerate(tables):
            moves.place(table, number, choice)
        for op in some.tolist():
            by[op] = np.array([table[op] for table in tables])
    own = [np.zeros((int(moves.choices[number]), parts.shape[1])) for number in range(moves.singles)]
    for number, op in enumerate(graph.operators):
        places = op["choice_first"] + by[number]
        own[leader[number]] += of(int(op["forward_slot"]), graph.forward[places])
        own[leader[number]] += of(int(op["backward_slot"]), graph.backward[places])
    pairs: dict[tuple[int, int], FloatArray] = {}
    layouts = graph.layouts
    for edge in graph.edges:
        ends = int(edge["producer"]), int(edge["consumer"])
        here, there = (int(leader[op]) for op in ends)
        one = here == there
        start, end = (by[ends[0]], by[ends[1]]) if one else np.meshgrid(by[ends[0]], by[ends[1]], indexing="ij")
        rows = edge["way_table"] + layouts[edge["way_from"] + start]
        cost = of(int(edge["way_slot"]), graph.routes[graph.rows[rows] + layouts[edge["way_to"] + end]])
        if edge["back_table"] >= 0:
            rows = edge["back_table"] + layouts[edge["back_from"] + end]
            cost = cost + of(int(edge["back_slot"]), graph.routes[graph.rows[rows] + layouts[edge["back_to"] + start]])
        if one:
            own[here] += cost
        elif (there, here) in pairs:
            pairs[there, here] = pairs[there, here] + cost.swapaxes(0, 1)
        else:
            pairs[here, there] = pairs[here, there] + cost if (here, there) in pairs else cost
    return own, pairs
