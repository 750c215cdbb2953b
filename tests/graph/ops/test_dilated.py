"""Dilated convolutions, of which TensorFlow makes several ops, are one operator that is split as convolutions are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.frontend.reader import import_operators
from tensoropt.api.mirror.model import current_model
from tensoropt.graph.sample import Sample, floats
from tests.effort import EVERY_CASE
from tests.op_harness import SampleGraph, check_graph

pytestmark = pytest.mark.tf

Make = Callable[..., Any]


class _Made(SampleGraph):
    """The operator that a function makes of two tensors."""

    def __init__(self, image: Sequence[int], filters: Sequence[int], make: Make) -> None:
        self._make = make
        super().__init__(Sample("BatchToSpaceND", (floats(*image), floats(*filters))))

    def _build(self) -> Sequence[Any]:
        image, filters = (self._operand(operand, place) for place, operand in enumerate(self.sample.operands))
        return [self._make(image, filters)]


def _valid(x: Any, w: Any) -> Any:
    return tf.nn.convolution(x, w, padding="VALID", dilations=2)


def _same(x: Any, w: Any) -> Any:
    return tf.nn.convolution(x, w, padding="SAME", dilations=(2, 3)[: w.shape.rank - 2])


def _depthwise(x: Any, w: Any) -> Any:
    return tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", dilations=[2, 2])


def _lines(x: Any, w: Any) -> Any:
    """As TensorFlow does of a filter of two dimensions less."""
    moved = tf.space_to_batch(x, [2], [[1, 2]])
    made = tf.nn.conv2d(tf.expand_dims(moved, 1), w, 1, "VALID")
    return tf.batch_to_space(tf.squeeze(made, 1), [2], [[0, 1]])


@pytest.mark.parametrize("place", ["moved", "made"])
@pytest.mark.parametrize("stops", [False, True])
def test_gradients_are_taken_by_what_lies_between(place: str, stops: bool) -> None:
    x = tensoropt.placeholder(tf.float32, [1, 4, 4, 1])
    w = tensoropt.get_variable("w", [2, 2, 1, 1])
    between = {"moved": tf.space_to_batch(x * w[0, 0], [2, 2], [[0, 0], [0, 0]])}
    between["made"] = tf.nn.conv2d(between["moved"], w, 1, "VALID")
    loss = tf.reduce_sum(tf.batch_to_space(between["made"], [2, 2], [[0, 0], [0, 0]])) + tf.reduce_sum(w * w)
    assert "BatchToSpaceND" not in {op.type for op in import_model(current_model()).graph.operators}
    tensoropt.gradients(loss, w if stops else between[place], stop_gradients=[between[place]] if stops else None)
    assert "BatchToSpaceND" in {op.type for op in import_model(current_model()).graph.operators}


@pytest.mark.parametrize(
    ("op_type", "image", "filters", "make", "split"),
    [
        ("Conv2D", (2, 5, 4, 6), (2, 2, 6, 4), _same, {*"ncf", "height", "width"}),
        ("Conv2D", (1, 8, 12, 2), (2, 2, 2, 1), _same, {*"ncf", "height", "width"}),
        ("Conv2D", (6, 5, 2), (1, 2, 2, 4), _lines, {*"ncf", "width"}),
        ("Conv3D", (2, 3, 4, 3, 2), (2, 1, 2, 2, 3), _valid, {*"ncf", "height"}),
        ("DepthwiseConv2dNative", (2, 4, 3, 6), (2, 2, 6, 2), _depthwise, {*"nc", "height", "width"}),
    ][0 if EVERY_CASE else 2 :],
)
def test_its_parts_are_what_tensorflow_makes(
    op_type: str, image: Sequence[int], filters: Sequence[int], make: Make, split: set[str]
) -> None:
    built = _Made(image, filters, make)
    assert built.op.type == op_type
    assert built.op.inputs[0].op == "Placeholder"
    assert set(built.rule.split) == split
    report = check_graph(built)
    assert report.splits and not report.failures, "\n".join(report.failures[:8])


def test_its_ops_are_imported_one_by_one_where_they_are_wanted_themselves() -> None:
    with tf.Graph().as_default() as graph:
        image, filters = tf.zeros([2, 4, 4, 3]), tf.zeros([2, 2, 3, 3])
        made = tf.nn.convolution(image, filters, padding="SAME", dilations=2)
        convolution = made.op.inputs[0].op
        types = {op.type for op in import_operators(graph, [convolution])}
        assert types == {"Const", "SpaceToBatchND", "Conv2D"}
        other = tf.batch_to_space(tf.nn.relu(convolution.outputs[0]), [2, 2], [[0, 1], [0, 1]])
        types = {op.type for op in import_operators(graph, [other.op])}
        assert types == {"Const", "SpaceToBatchND", "Conv2D", "Relu", "BatchToSpaceND"}


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_tensorflows_dilated_convolutions_are_one_operator(rank: int) -> None:
    with tf.Graph().as_default() as graph:
        made = tf.nn.convolution(tf.zeros([2, *[6] * rank, 3]), tf.zeros([*[2] * rank, 3, 4]), dilations=2)
        types = {op.type for op in import_operators(graph, [made.op])} - {"Const", "Fill"}
    assert types == {"Conv3D" if rank == 3 else "Conv2D"} | ({"ExpandDims"} if rank == 1 else set())
