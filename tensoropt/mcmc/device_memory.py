"""A memory limit for strategies that place operators: the bytes of the fullest device, strategy by strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensoropt.space.space import SearchSpace
from tensoropt.space.work import Ints

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """Bytes on each device; of what strategies have in common they are not added up again.

    Bytes are whole ones, rounded up: sums do not depend on their order, and what fits by them fits.

    Attributes:
        limit: what no device may exceed.
    """

    def __init__(self, space: SearchSpace, limit_bytes: float) -> None:
        """Takes the space of strategies.

        Args:
            space: of strategies; edges keep both copies.
            limit_bytes: for every device; infinite for none.
        """
        self.limit = math.floor(min(limit_bytes, 2.0**61))
        self._space = space
        place = {op.name: number for number, op in enumerate(space.operators)}
        self._ends = np.array([(place[edge.tensor.op], place[edge.consumer]) for edge in space.edges], np.int64)
        self._ends = self._ends.reshape(-1, 2)
        self._known: dict[tuple[int, ...], Ints] = {}
        self._assignment: Ints = np.zeros(0, np.int64)
        self._held: Ints = np.zeros(space.mesh.size, np.int64)

    def fullest(self, assignment: Sequence[int] | Ints) -> int:
        """Bytes of the device that a strategy fills the most."""
        chosen = np.array(assignment, np.int64)
        if len(self._assignment) == 0:
            self._held = self._sum(chosen, np.ones(len(chosen), bool))
        else:
            moved = chosen != self._assignment
            self._held = self._held + self._sum(chosen, moved) - self._sum(self._assignment, moved)
        self._assignment = chosen
        return int(self._held.max(initial=0))

    def _sum(self, chosen: Ints, moved: np.ndarray) -> Ints:
        """Bytes of some operators and of the edges that they have."""
        result = np.zeros(self._space.mesh.size, np.int64)
        for op in np.flatnonzero(moved).tolist():
            result += self._bytes(op, int(chosen[op]))
        for edge in np.flatnonzero(moved[self._ends].any(axis=1)).tolist():
            result += self._bytes(edge, *chosen[self._ends[edge]].tolist())
        return result

    def _bytes(self, number: int, *chosen: int) -> Ints:
        """Returns each device's bytes for an operator's configuration, or for an edge's configurations at both ends."""
        key = (number, *chosen)
        if key not in self._known:
            if len(chosen) == 1:
                held = self._space.node_device_memory(self._space.operators[number].name, *chosen)
            else:
                held = self._space.edge_device_memory(self._space.edges[number], *chosen)
            self._known[key] = np.ceil(held).astype(np.int64)
        return self._known[key]
