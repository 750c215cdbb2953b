from __future__ import annotations

import pytest

from tensoropt.errors import OpError
from tensoropt.graph.movement import dimensions, movement, passed
from tensoropt.graph.spec import TensorSpec

pytestmark = pytest.mark.pure

MATRIX = TensorSpec((12, 6), "float32")


def test_dimensions_that_stay_whole_have_no_axis() -> None:
    assert passed(3, whole={1}) == (("d0",), (), ("d2",))


def test_axes_in_all_tensors_may_be_split() -> None:
    assert movement([MATRIX], [MATRIX], [passed(2)], [passed(2)]).split == ("d0", "d1")


def test_axis_of_one_element_is_not_split() -> None:
    spec = TensorSpec((1, 6), "float32")
    assert movement([spec], [spec], [passed(2)], [passed(2)]).split == ("d1",)


def test_minor_part_of_a_dimension_is_not_split() -> None:
    flat = TensorSpec((72,), "float32")
    assert movement([MATRIX], [flat], [passed(2)], [(("d0", "d1"),)]).split == ("d0",)


def test_axis_that_an_output_lacks_is_not_split_unless_it_is_reduced() -> None:
    row = TensorSpec((6,), "float32")
    result = [dimensions(["d1"])]
    assert movement([MATRIX], [row], [passed(2)], result).split == ("d1",)
    assert movement([MATRIX], [row], [passed(2)], result, reduced=["d0"]).split == ("d0", "d1")


def test_axis_twice_in_a_tensor_is_not_split() -> None:
    square = TensorSpec((6, 6), "float32")
    row = TensorSpec((6,), "float32")
    assert movement([row], [square], [dimensions(["a"])], [dimensions(["a", "a"])]).split == ()


def test_axis_of_two_sizes_is_refused() -> None:
    other = TensorSpec((12, 7), "float32")
    with pytest.raises(OpError, match=r"axis 'd1' has size 6, but is a dimension of float32\[12, 7\] too"):
        movement([MATRIX], [other], [passed(2)], [passed(2)])


def test_axis_without_a_size_is_refused() -> None:
    flat = TensorSpec((72,), "float32")
    with pytest.raises(OpError, match=r"axes \['a', 'b'\] are parts of products only"):
        movement([flat], [flat], [(("a", "b"),)], [(("a", "b"),)])
