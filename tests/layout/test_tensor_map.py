"""The paper's notation for configurations."""

from __future__ import annotations

import pytest

from tensoropt.layout import Layout, Mesh, coarsen, tensor_map

pytestmark = pytest.mark.pure


def test_neighbouring_axes_that_do_the_same_are_one_axis() -> None:
    assert coarsen(Mesh((2, 2, 2)), ["m", "m", "n"]) == ((4, 2), ((0, 1), (2,)))
    assert coarsen(Mesh((2, 3, 2)), [None, None, None]) == ((12,), ((0, 1, 2),))
    assert coarsen(Mesh((2, 3, 2)), ["m", None, "m"]) == ((2, 3, 2), ((0,), (1,), (2,)))
    assert coarsen(Mesh(()), []) == ((), ())


def test_a_tensor_map_names_coarse_axes() -> None:
    _, groups = coarsen(Mesh((2, 2, 2)), ["m", "m", "n"])
    assert tensor_map(Layout(((0, 1), (), (2,))), groups) == (0, -1, 1)


def test_a_dimension_split_by_two_coarse_axes_names_both() -> None:
    _, groups = coarsen(Mesh((2, 3, 2)), ["m", None, "m"])
    assert tensor_map(Layout(((0, 2),)), groups) == ((0, 2),)
