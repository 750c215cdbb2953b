"""Bytes per device, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cost import piece_bytes
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import PARTIAL, REPLICATED, Mesh

pytestmark = pytest.mark.pure

MESH = Mesh((2, 3))


def test_a_piece_is_the_share_of_a_device() -> None:
    spec = TensorSpec((12, 6), "float32")  # 288 bytes
    states = [[REPLICATED, REPLICATED], [0, 1], [0, REPLICATED], [1, 1], [0, PARTIAL], [PARTIAL, PARTIAL]]
    found = piece_bytes(spec, np.array(states, dtype=np.int8), MESH)
    assert found.tolist() == [288, 48, 144, 48, 144, 288]


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float64", 8), ("int64", 8), ("bool", 1), ("string", 0)])
def test_elements_have_the_size_of_their_dtype(dtype: str, size: int) -> None:
    states = np.array([[0, REPLICATED]], dtype=np.int8)
    assert piece_bytes(TensorSpec((12,), dtype), states, MESH).tolist() == [6 * size]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parts_of_sums_of_16_bit_floats_are_float32(dtype: str) -> None:
    states = np.array([[0, REPLICATED], [0, PARTIAL], [PARTIAL, PARTIAL]], dtype=np.int8)
    assert piece_bytes(TensorSpec((12,), dtype), states, MESH).tolist() == [12, 24, 48]
