"""An op without a seed draws the same numbers on every device."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.program.lowering import lower_operator
from tensoropt.graph.sample import Sample
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tests.op_harness import SampleGraph

pytestmark = pytest.mark.tf


def _numbers(seeds: dict[str, int], action: str | None, rank: int) -> np.ndarray:
    """Two draws of one rank, in a process of its own as far as TensorFlow can tell."""
    built = SampleGraph(Sample("RandomUniform", ([4, 3],), {"dtype": "float32"} | seeds))
    with built.graph.as_default():
        context = built._context(Mesh((2,)), Configuration((action,)), rank, None)
        (made,) = lower_operator(context, [])
    with tf.compat.v1.Session(graph=built.graph) as session:
        return np.stack([session.run(made), session.run(made)])


@pytest.mark.parametrize("seeds", [{}, {"seed": 3, "seed2": 5}])
def test_devices_draw_pieces_of_the_same_numbers(seeds: dict[str, int]) -> None:
    whole = _numbers(seeds, None, 0)
    np.testing.assert_array_equal(whole, _numbers(seeds, None, 1))
    pieces = [_numbers(seeds, "d0", rank) for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)


def test_every_step_draws_other_numbers() -> None:
    first, second = _numbers({}, "d0", 1)
    assert (first != second).any()
