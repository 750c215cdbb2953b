"""Layouts: their text, their pieces, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt.errors import LayoutError
from tensoropt.layout import Layout, Mesh, common_prefix

pytestmark = pytest.mark.pure

MESH = Mesh((2, 2, 3))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout of a tensor with up to 3 dimensions on ``MESH``."""
    rank = draw(st.integers(0, 3))
    states = [draw(st.integers(-2, rank - 1)) for _ in MESH.axes]
    order = draw(st.permutations(MESH.axes))
    dims = tuple(tuple(axis for axis in order if states[axis] == dim) for dim in range(rank))
    return Layout(dims, tuple(axis for axis in MESH.axes if states[axis] == -2))


@given(layouts())
def test_parse_reads_what_str_writes(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(layouts())
def test_pieces_of_all_ranks_cover_the_tensor_equally_often(layout: Layout) -> None:
    shape = (12,) * layout.rank
    layout.check(shape, MESH)
    count = np.zeros(shape, dtype=int)
    for rank in range(MESH.size):
        piece = layout.slices(shape, MESH, rank)
        assert count[piece].shape == layout.local_shape(shape, MESH)
        count[piece] += 1
    copies = MESH.size // int(np.prod(layout.shard_counts(MESH)))
    assert np.all(count == copies)


def test_the_first_axis_of_a_dimension_is_the_major_one() -> None:
    mesh = Mesh((2, 2))
    assert [Layout(((0, 1),)).offsets((8,), mesh, rank) for rank in range(4)] == [(0,), (2,), (4,), (6,)]
    assert [Layout(((1, 0),)).offsets((8,), mesh, rank) for rank in range(4)] == [(0,), (4,), (2,), (6,)]


def test_states_can_be_asked_for() -> None:
    layout = Layout(((2,), ()), partial=(0,))
    assert (layout.rank, layout.used_axes, layout.is_replicated) == (2, (0, 2), False)
    assert Layout.replicated(2).is_replicated
    assert not Layout(((),), partial=(0,)).is_replicated
    assert layout.with_dim(1, (1,)) == Layout(((2,), (1,)), partial=(0,))
    assert layout.without_partial((0, 1)) == Layout(((2,), ()))
    assert str(layout) == "{2}{} partial{0}"
    assert str(Layout(())) == ""


def test_common_prefix_ends_at_the_first_difference() -> None:
    assert common_prefix((0, 1, 2), (0, 2, 1)) == (0,)
    assert common_prefix((0, 1), (0, 1, 2)) == (0, 1)
    assert common_prefix((1, 0), (0, 1)) == ()


@pytest.mark.parametrize("layout", [(((0, 0),), ()), (((0,), (0,)), ()), (((1,),), (1,)), (((),), (1, 1))])
def test_an_axis_used_twice_is_refused(layout: tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]) -> None:
    with pytest.raises(LayoutError, match="may be used once only"):
        Layout(*layout)


def test_partial_axes_out_of_order_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"partial axes are given ascending, got \(1, 0\)"):
        Layout(((),), partial=(1, 0))


@pytest.mark.parametrize("text", ["{0}{1", "0,1", "{0} partial{}", "{a}", "{0}partial{1}", "{0} partial{1} "])
def test_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match=r"expected one '\{axes\}' per dimension"):
        Layout.parse(text)


@pytest.mark.parametrize("text", ["{,0}", "{0,}", "{,}", "{0} partial{,}", "{00}"])
def test_only_text_that_str_writes_is_read(text: str) -> None:
    with pytest.raises(LayoutError, match=r"expected one '\{axes\}' per dimension"):
        Layout.parse(text)


def test_check_refuses_another_number_of_dimensions() -> None:
    with pytest.raises(LayoutError, match=r"x: layout \{0\}\{\} is for 2 dimensions, the shape is \(4,\)"):
        Layout(((0,), ())).check((4,), MESH, "x")


def test_check_refuses_axes_that_the_mesh_has_not() -> None:
    with pytest.raises(LayoutError, match=r"names mesh axes \[3\] that Mesh\(2x2x3\) has not"):
        Layout(((3,),)).check((12,), MESH)


def test_check_names_the_dimension_that_does_not_divide() -> None:
    with pytest.raises(LayoutError, match=r"dimension 1 \(size 10\) .* \(0, 2\) of Mesh\(2x2x3\): 10 % 6 != 0"):
        Layout(((), (0, 2))).check((12, 10), MESH)
