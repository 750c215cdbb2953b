"""The gradient of an embedding stays sparse, and tells rows of other devices from those of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.program.lowering import lower_operator
from tensoropt.graph.ops.gather import other_row
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tests.op_harness import SampleGraph

pytestmark = pytest.mark.tf

MESH = Mesh((2,))
LOOKUP = Sample("GatherV2", (floats(6, 4), integers(4, 2, high=6), 0))


def _gradient(sample: Sample, action: str | None, rank: int) -> tuple[Any, np.ndarray, SampleGraph]:
    """The gradient of the sum of all rows for the piece of ``rank``, and the indices."""
    built = SampleGraph(sample)
    configuration = Configuration((action,))
    with built.graph.as_default():
        pieces = [
            tf.constant(value[configuration.input_layouts(built.rule, index).value.slices(value.shape, MESH, rank)])
            for index, value in enumerate(built.inputs)
        ]
        (made,) = lower_operator(built._context(MESH, configuration, rank, None), pieces)
        gradient = tf.gradients(made, pieces[0])[0]
    return gradient, built.inputs[1], built


@pytest.mark.parametrize("op_type", ["GatherV2", "Gather", "ResourceGather"])
@pytest.mark.parametrize("action", ["v", "p1", "i0", None])
def test_gradient_of_an_embedding_is_sparse(op_type: str, action: str | None) -> None:
    operands = LOOKUP.operands if op_type == "GatherV2" else LOOKUP.operands[:2]
    attrs = {"dtype": "float32"} if op_type == "ResourceGather" else {}
    gradient, _, _ = _gradient(Sample(op_type, operands, attrs), action, rank=1)
    assert isinstance(gradient, tf.IndexedSlices)


@pytest.mark.parametrize("action", ["v", "i0", None])
def test_gradient_is_whole_where_tensorflow_gives_it_whole(action: str | None) -> None:
    gradient, _, _ = _gradient(Sample("GatherV2", (floats(6), integers(4, high=6), -1)), action, rank=1)
    assert isinstance(gradient, tf.Tensor)


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_another_device_have_the_whole_tables_index_below_zero(rank: int) -> None:
    gradient, indices, built = _gradient(LOOKUP, "v", rank)
    with tf.compat.v1.Session(graph=built.graph) as session:
        rows, values = session.run([gradient.indices, gradient.values])
    flat = indices.reshape(-1)
    here = (flat >= 3 * rank) & (flat < 3 * rank + 3)
    assert 0 < here.sum() < here.size, "the sample must look up rows of both devices"
    np.testing.assert_array_equal(rows[here], flat[here] - 3 * rank)
    np.testing.assert_array_equal(rows[~here], other_row(flat[~here]))
    assert (rows[~here] < -1).all() and (other_row(rows[~here]) == flat[~here]).all()
    assert (values == 1).all()
