"""A group of ranks that takes part in one collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.errors import CollectiveError

__all__ = ["Group", "partition"]


def partition(mesh_shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split the ranks of a mesh into the groups that differ only along ``axes``.

    Ranks are row-major on the mesh. A member's place in its group is row-major in the order of ``axes``.

    >>> partition((2, 3), (1,))
    ((0, 1, 2), (3, 4, 5))
    >>> partition((2, 2), (1, 0))
    ((0, 2, 1, 3),)

    Args:
        mesh_shape: Sizes of the mesh axes.
        axes: Distinct axis numbers, in any order.

    Returns:
        The groups, in the order of the coordinates that their members share.
    """
    kept = [axis for axis in range(len(mesh_shape)) if axis not in axes]
    ranks = np.arange(math.prod(mesh_shape)).reshape(tuple(mesh_shape)).transpose([*kept, *axes])
    rows = ranks.reshape(-1, math.prod(mesh_shape[axis] for axis in axes))
    return tuple(tuple(int(rank) for rank in row) for row in rows)


@dataclass(frozen=True, slots=True)
class Group:
    """One rank's group along an ordered tuple of mesh axes.

    Invariants:
        ``members[index]`` is the rank that this value was made for; ``number`` counts the groups of the
        partition, so that (number, index) says the same as the rank.
    """

    axes: tuple[int, ...]
    members: tuple[int, ...]
    index: int
    number: int

    @classmethod
    def of(cls, mesh_shape: Sequence[int], axes: Sequence[int], rank: int) -> Group:
        """Return the group of ``rank`` along ``axes``.

        Raises:
            CollectiveError: An axis is repeated or is not an axis of the mesh.
        """
        axes = tuple(int(axis) for axis in axes)
        if len(set(axes)) != len(axes) or any(not 0 <= axis < len(mesh_shape) for axis in axes):
            raise CollectiveError(
                f"A collective's axes must be distinct axes of the mesh {tuple(mesh_shape)}, that is 0 to "
                f"{len(mesh_shape) - 1}, each at most once. Got axes={axes}. Name each mesh axis by its "
                "number."
            )
        for number, members in enumerate(partition(mesh_shape, axes)):
            if rank in members:
                return cls(axes, members, members.index(rank), number)
        raise CollectiveError(
            f"Rank {rank} is not on the mesh {tuple(mesh_shape)}, which holds ranks 0 to "
            f"{math.prod(mesh_shape) - 1}. Start as many processes as the mesh has ranks."
        )

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)
