"""The factor mesh: all devices, numbered row-major over the prime factors of their count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError

__all__ = ["Mesh"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """A logical arrangement of ``size`` devices, outermost axis first (TensorOpt section 2.1).

    Every mesh that an operator uses is a coarsening of the one factor mesh, so axes of this mesh are enough to
    say how any operator is split.

    Invariants:
        Every axis has at least two devices; the mesh of a single device has no axes.

    Example:
        >>> mesh = Mesh((2, 3))
        >>> mesh.coordinates(4)
        (1, 1)
        >>> mesh.group_members(4, (0,))
        (1, 4)
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(extent < 2 for extent in self.shape):
            raise LayoutError(
                f"Mesh{self.shape}: every axis needs at least 2 devices. Leave out axes of extent 1; "
                "the mesh of one device is Mesh(())."
            )

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @property
    def axes(self) -> tuple[int, ...]:
        """All axis indices, in order."""
        return tuple(range(len(self.shape)))

    def extent(self, axes: Sequence[int]) -> int:
        """Number of devices in one group of ``axes``."""
        return math.prod(self.shape[axis] for axis in axes)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The coordinates of ``rank``, one per axis."""
        if not 0 <= rank < self.size:
            raise LayoutError(f"{self}: rank {rank} is outside 0..{self.size - 1}.")
        result = []
        for extent in reversed(self.shape):
            rank, coordinate = divmod(rank, extent)
            result.append(coordinate)
        return tuple(reversed(result))

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank at ``coordinates``."""
        result = 0
        for extent, coordinate in zip(self.shape, coordinates, strict=True):
            result = result * extent + coordinate
        return result

    def group_index(self, rank: int, axes: Sequence[int]) -> int:
        """The position of ``rank`` in its group of ``axes``: row-major in the order that ``axes`` are given."""
        return self._index_along(axes, self.coordinates(rank), 0)

    def group_indices(self, axes: Sequence[int]) -> NDArray[np.int64]:
        """``(size,)``, the :meth:`group_index` of every rank."""
        coordinates = np.indices(self.shape).reshape(len(self.shape), self.size)
        return self._index_along(axes, coordinates, np.zeros(self.size, np.int64))

    def _index_along(self, axes: Sequence[int], coordinates: Any, result: Any) -> Any:
        """The index along axes of a rank, or of many, from coordinates by axis; begins with ``result``, all zeros."""
        for axis in axes:
            result = result * self.shape[axis] + coordinates[axis]
        return result

    def group_members(self, rank: int, axes: Sequence[int]) -> tuple[int, ...]:
        """The ranks of the group of ``rank`` along ``axes``, in the order of their group index."""
        coordinates = list(self.coordinates(rank))
        members = []
        for position in itertools.product(*(range(self.shape[axis]) for axis in axes)):
            for axis, coordinate in zip(axes, position, strict=True):
                coordinates[axis] = coordinate
            members.append(self.rank(coordinates))
        return tuple(members)

    def devices_at(self, at: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """The ranks with given coordinates along some axes, ascending.

        Example:
            >>> Mesh((2, 3)).devices_at([(1, 2)])
            (2, 5)
        """
        fixed = dict(at)
        ranges = [[fixed[axis]] if axis in fixed else range(extent) for axis, extent in enumerate(self.shape)]
        return tuple(self.rank(coordinates) for coordinates in itertools.product(*ranges))

    def __str__(self) -> str:
        return f"Mesh({'x'.join(map(str, self.shape))})"
