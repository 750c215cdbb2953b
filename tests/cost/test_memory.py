"""Bytes per device, worked out by hand."""

from __future__ import annotations

import pytest

from tensoropt.cost import activation_bytes, copy_bytes, variable_bytes
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Layout, Mesh

pytestmark = pytest.mark.pure

MESH = Mesh((2, 3))
SPEC = TensorSpec((12, 6), "float32")  # 288 bytes
WHOLE, SPLIT = Layout(((), ())), Layout(((0,), (1,)))


def test_a_variable_counts_its_gradient_and_slots_where_it_is_trained() -> None:
    assert variable_bytes(SPEC, WHOLE, MESH, slots=2, trained=True) == 4 * 288
    assert variable_bytes(SPEC, SPLIT, MESH, slots=0, trained=True) == 2 * 48
    assert variable_bytes(SPEC, SPLIT, MESH, slots=2, trained=False) == 48


def test_an_activation_counts_where_it_is_kept() -> None:
    assert activation_bytes(SPEC, SPLIT, MESH, kept=True) == 48
    assert activation_bytes(SPEC, Layout(((0,), ()), (1,)), MESH, kept=True) == 144
    assert activation_bytes(SPEC, WHOLE, MESH, kept=False) == 0


def test_a_copy_counts_where_a_reshard_makes_one_that_is_kept() -> None:
    assert copy_bytes(SPEC, WHOLE, SPLIT, MESH, kept=True) == 48
    assert copy_bytes(SPEC, SPLIT, WHOLE, MESH, kept=True) == 288
    assert copy_bytes(SPEC, SPLIT, SPLIT, MESH, kept=True) == 0
    assert copy_bytes(SPEC, WHOLE, SPLIT, MESH, kept=False) == 0


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float64", 8), ("int64", 8), ("bool", 1)])
def test_elements_have_the_size_of_their_dtype(dtype: str, size: int) -> None:
    assert activation_bytes(TensorSpec((12,), dtype), Layout(((0,),)), MESH, kept=True) == 6 * size
