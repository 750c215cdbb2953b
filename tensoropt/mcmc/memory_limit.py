"""A memory limit for Markov chains: the bytes of every configuration, in whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.mcmc.integer_sums import Sums
from tensoropt.problem.problem import FloatArray, IntArray
from tensoropt.space.work import Ints

__all__ = ["Memory", "limited_memory", "no_memory"]

_MOST_BYTES = 2.0**60  # of a strategy, so that sums fit 64 bits


class Memory(NamedTuple):
    """The memory of each part of a strategy, and the limit of the sum.

    Attributes:
        limit: of the sum, in bytes; -1 for none.
        held: whole bytes by configuration and by pair of configurations, rounded up.
    """

    limit: int
    held: Sums


def no_memory() -> Memory:
    """No limit."""
    nothing = np.zeros(0, np.int64)
    return Memory(-1, Sums(*[nothing] * 9))


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
        return np.ceil(np.minimum(table, most)).astype(np.int64)

    for name, table in zip(names, nodes, strict=True):
        least = float(np.min(table))
        if not least <= limit_bytes:
            raise InfeasibleError(
                f"MCMC: operator '{name}' has no configuration within {limit_bytes:.0f} bytes per device; the smallest "
                f"of its {len(table)} takes {least:.0f}. Allow more memory, or use more devices."
            )
    shared: dict[int, Ints] = {}
    for table in edges:
        if id(table) not in shared:
            shared[id(table)] = whole(table)
    return Memory(
        math.floor(min(limit_bytes, 2 * _MOST_BYTES)),  # which no strategy exceeds
        Sums.of([whole(table) for table in nodes], ends, [shared[id(table)] for table in edges]),
    )
