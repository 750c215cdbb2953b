"""A memory limit for Markov chains: the bytes of every configuration, in whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.mcmc.blob import EDGE_FROM, EDGE_TO, IN_EDGE, IN_FIRST, OUT_EDGE, OUT_FIRST
from tensoropt.mcmc.compiled import compiled
from tensoropt.search.problem import FloatArray, IntArray
from tensoropt.search.stages import Ints

__all__ = ["Memory", "limited_memory", "memory_of", "more_memory", "no_memory"]

_MOST_BYTES = 2.0**60  # of a strategy, so that sums fit 64 bits


class Memory(NamedTuple):
    """Bytes by configuration and by pair of configurations, whole ones rounded up, for compiled loops.

    Attributes:
        limit: of the sum; -1 for none.
        node: all operators' tables.
        node_base: where each operator's begins.
        edge: all edges' tables, row by row.
        edge_base: where each edge's begins.
        width: columns of each edge's.
        edge_from: producers.
        edge_to: consumers.
    """

    limit: int
    node: Ints
    node_base: Ints
    edge: Ints
    edge_base: Ints
    width: Ints
    edge_from: Ints
    edge_to: Ints


def no_memory() -> Memory:
    """No limit."""
    nothing = np.zeros(0, np.int64)
    return Memory(-1, *[nothing] * 7)


def limited_memory(
    names: Sequence[str],
    nodes: Sequence[FloatArray],
    ends: IntArray,
    edges: Sequence[FloatArray],
    limit_bytes: float,
) -> Memory:
    """A limit with the tables of a problem.

    Args:
        names: of operators.
        nodes: for each operator ``(K,)`` bytes.
        ends: ``(E, 2)``, producer and consumer of each edge.
        edges: for each edge ``(K, L)`` bytes; tables that are the same array are held once.
        limit_bytes: that a strategy's sum must not exceed; infinite for none.

    Raises:
        InfeasibleError: an operator has no configuration that alone fits.
    """
    most = _MOST_BYTES / (len(nodes) + len(edges) + 1)

    def whole(table: FloatArray) -> Ints:
        return np.ceil(np.minimum(table, most)).astype(np.int64).reshape(-1)

    for name, table in zip(names, nodes, strict=True):
        least = float(np.min(table))
        if not least <= limit_bytes:
            raise InfeasibleError(
                f"MCMC: operator '{name}' has no configuration within {limit_bytes:.0f} bytes per device; the smallest "
                f"of its {len(table)} takes {least:.0f}. Allow more memory, or use more devices."
            )
    flat = [whole(table) for table in nodes]
    held: dict[int, tuple[int, Ints]] = {}
    total = 0
    base = []
    for table in edges:
        if id(table) not in held:
            held[id(table)] = total, whole(table)
            total += table.size
        base.append(held[id(table)][0])
    return Memory(
        math.floor(min(limit_bytes, 2 * _MOST_BYTES)),  # which no strategy exceeds
        np.concatenate(flat),
        np.cumsum([0, *map(len, flat)])[:-1].astype(np.int64),
        np.concatenate([part for _, part in held.values()] or [np.zeros(0, np.int64)]),
        np.array(base, np.int64),
        np.array([table.shape[1] for table in edges], np.int64),
        ends[:, 0].astype(np.int64),
        ends[:, 1].astype(np.int64),
    )


@compiled
def memory_of(memory: Any, assignment: Any) -> int:
    """Bytes of a strategy."""
    total = 0
    for op in range(len(assignment)):
        total += memory.node[memory.node_base[op] + assignment[op]]
    for edge in range(len(memory.edge_from)):
        total += _edge_bytes(memory, edge, assignment[memory.edge_from[edge]], assignment[memory.edge_to[edge]])
    return total


@compiled
def _edge_bytes(memory: Any, edge: int, start: int, end: int) -> int:
    return int(memory.edge[memory.edge_base[edge] + start * memory.width[edge] + end])


@compiled
def more_memory(net: Any, memory: Any, assignment: Any, op: int, choice: int) -> int:
    """By how many bytes another configuration of one operator makes a strategy larger."""
    now = assignment[op]
    more = memory.node[memory.node_base[op] + choice] - memory.node[memory.node_base[op] + now]
    for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
        edge = net[net[IN_EDGE] + some]
        other = assignment[net[net[EDGE_FROM] + edge]]
        more += _edge_bytes(memory, edge, other, choice) - _edge_bytes(memory, edge, other, now)
    for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
        edge = net[net[OUT_EDGE] + some]
        other = assignment[net[net[EDGE_TO] + edge]]
        more += _edge_bytes(memory, edge, choice, other) - _edge_bytes(memory, edge, now, other)
    return int(more)
