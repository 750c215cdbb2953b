"""Meshes: ranks, coordinates and groups."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.errors import LayoutError
from tensoropt.layout import Mesh

pytestmark = pytest.mark.pure

meshes = st.lists(st.sampled_from([2, 2, 3, 5]), max_size=4).map(lambda shape: Mesh(tuple(shape)))


def test_one_device_is_a_mesh_without_axes() -> None:
    mesh = Mesh(())
    assert (mesh.size, mesh.axes, mesh.coordinates(0)) == (1, (), ())
    assert mesh.group_members(0, ()) == (0,)


def test_ranks_are_row_major() -> None:
    mesh = Mesh((2, 3))
    assert [mesh.coordinates(rank) for rank in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert str(mesh) == "Mesh(2x3)"


def test_group_members_follow_the_order_of_axes() -> None:
    mesh = Mesh((2, 2, 2))
    assert mesh.group_members(1, (0, 1)) == (1, 3, 5, 7)
    assert mesh.group_members(1, (1, 0)) == (1, 5, 3, 7)
    assert mesh.group_index(3, (1, 0)) == 2


@given(meshes, st.data())
def test_coordinates_and_ranks_are_inverse(mesh: Mesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.size - 1))
    assert mesh.rank(mesh.coordinates(rank)) == rank


@given(meshes, st.data())
def test_groups_partition_the_ranks(mesh: Mesh, data: st.DataObject) -> None:
    axes = tuple(data.draw(st.permutations(mesh.axes)))[: data.draw(st.integers(0, len(mesh.axes)))]
    groups = {mesh.group_members(rank, axes) for rank in range(mesh.size)}
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    assert {len(group) for group in groups} == {mesh.extent(axes)} == {math.prod(mesh.shape[a] for a in axes)}
    for rank in range(mesh.size):
        assert mesh.group_members(rank, axes)[mesh.group_index(rank, axes)] == rank


@pytest.mark.parametrize("shape", [(1,), (2, 0), (2, 1, 2), (-2,)])
def test_an_axis_of_fewer_than_two_devices_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match="every axis needs at least 2 devices"):
        Mesh(shape)


@pytest.mark.parametrize("rank", [-1, 6])
def test_a_rank_outside_is_refused(rank: int) -> None:
    with pytest.raises(LayoutError, match=rf"rank {rank} is outside 0\.\.5"):
        Mesh((2, 3)).coordinates(rank)
