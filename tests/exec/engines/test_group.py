"""Groups of ranks on the factor mesh."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.process_group import Group, partition

pytestmark = pytest.mark.pure

MESHES = [(), (1,), (3,), (2, 2), (2, 3), (3, 2), (2, 2, 2), (2, 1, 3)]


def choices(mesh_shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    numbers = range(len(mesh_shape))
    return [axes for count in range(len(mesh_shape) + 1) for axes in itertools.permutations(numbers, count)]


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_partition_holds_each_rank_once(mesh_shape: tuple[int, ...]) -> None:
    for axes in choices(mesh_shape):
        groups = partition(mesh_shape, axes)
        assert sorted(rank for group in groups for rank in group) == list(range(math.prod(mesh_shape)))


@pytest.mark.parametrize("mesh_shape", [mesh for mesh in MESHES if mesh])
def test_index_is_row_major_in_the_given_order_of_axes(mesh_shape: tuple[int, ...]) -> None:
    for axes in choices(mesh_shape):
        for rank in range(math.prod(mesh_shape)):
            group = Group.of(mesh_shape, axes, rank)
            coordinates = np.unravel_index(rank, mesh_shape)
            index = 0
            for axis in axes:
                index = index * mesh_shape[axis] + int(coordinates[axis])
            assert (group.index, group.members[group.index]) == (index, rank)
            assert partition(mesh_shape, axes)[group.number] == group.members


def test_members_of_reversed_axes_are_transposed() -> None:
    assert Group.of((2, 3), (0, 1), 4).members == (0, 1, 2, 3, 4, 5)
    assert Group.of((2, 3), (1, 0), 4).members == (0, 3, 1, 4, 2, 5)


@pytest.mark.parametrize("axes", [(0, 0), (2,), (-1,)])
def test_repeated_or_unknown_axis_is_an_error(axes: tuple[int, ...]) -> None:
    with pytest.raises(CollectiveError, match=r"distinct axes of the mesh \(2, 2\), that is 0 to 1.*Got axes="):
        Group.of((2, 2), axes, 0)


def test_rank_beyond_the_mesh_is_an_error() -> None:
    with pytest.raises(CollectiveError, match=r"Rank 4 is not on the mesh \(2, 2\)"):
        Group.of((2, 2), (0,), 4)
