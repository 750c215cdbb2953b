"""What operators that decide, and pairs of them, add to bounds of the makespan."""

from __future__ import annotations

import numpy as np

from tensoropt.mcmc import blob
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.network import IMPOSSIBLE, Network
from tensoropt.search.problem import FloatArray
from tensoropt.search.stages import Ints

__all__ = ["Loads", "added", "loads_of"]

Loads = tuple[list[FloatArray], dict[tuple[int, int], FloatArray]]
"""Per operator that decides, with its followers, ``(K, W)`` ticks by each bound; between two ``(K, L, W)``."""

# Larger than any sum of ticks, and small enough that some of it do not overflow.
_IMPOSSIBLE = 2.0**60


def added(loads: Loads, others: Loads) -> Loads:
    """More bounds behind some."""
    own = [np.concatenate(pair, axis=-1) for pair in zip(loads[0], others[0], strict=True)]
    return own, {ends: np.concatenate([table, others[1][ends]], axis=-1) for ends, table in loads[1].items()}


def loads_of(network: Network, moves: Moves, parts: FloatArray) -> Loads:
    """Adds up what paths take.

    Args:
        network: the tasks, with all ways.
        moves: operators that decide.
        parts: ``(slots, W, kinds)``, what part of a slot's work on each kind of resource each bound counts.
    """
    arrays, field = network.arrays, network.field
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
    for op in range(network.operators):
        places = int(field(blob.OP_BASE)[op]) + by[op]
        own[leader[op]] += of(int(field(blob.FORWARD_SLOT)[op]), field(blob.OP_FORWARD)[places])
        own[leader[op]] += of(int(field(blob.BACKWARD_SLOT)[op]), field(blob.OP_BACKWARD)[places])
    pairs: dict[tuple[int, int], FloatArray] = {}
    layouts = field(blob.LAYOUTS)
    for edge, ends in enumerate(zip(field(blob.EDGE_FROM).tolist(), field(blob.EDGE_TO).tolist(), strict=True)):
        here, there = (int(leader[op]) for op in ends)
        one = here == there
        start, end = (by[ends[0]], by[ends[1]]) if one else np.meshgrid(by[ends[0]], by[ends[1]], indexing="ij")
        ahead, back = (int(field(name)[edge]) for name in (blob.WAY_SLOT, blob.WAY_BACK_SLOT))
        rows = field(blob.WAY_TABLE)[edge] + layouts[field(blob.WAY_FROM)[edge] + start]
        cost = of(ahead, arrays.routes[arrays.rows[rows] + layouts[field(blob.WAY_TO)[edge] + end]])
        if field(blob.BACK_TABLE)[edge] >= 0:
            rows = field(blob.BACK_TABLE)[edge] + layouts[field(blob.BACK_FROM)[edge] + end]
            cost = cost + of(back, arrays.routes[arrays.rows[rows] + layouts[field(blob.BACK_TO)[edge] + start]])
        if one:
            own[here] += cost
        elif (there, here) in pairs:
            pairs[there, here] = pairs[there, here] + cost.swapaxes(0, 1)
        else:
            pairs[here, there] = pairs[here, there] + cost if (here, there) in pairs else cost
    return own, pairs
