"""What the contract test cannot compare with TensorFlow: errors, and shapes that have no gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tests.lockstep import Lockstep
from tests.op_harness import SampleGraph

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("label", [-1, 6, 99])
def test_a_label_that_is_no_class_fails_on_every_device(label: int) -> None:
    sample = SampleGraph(Sample("SparseSoftmaxCrossEntropyWithLogits", (floats(2, 6), integers(2, high=6))))
    mesh, configuration = Mesh((2,)), Configuration(("c",))
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)

    def build(engine: Any) -> Any:
        with sample.graph.as_default():
            context = OpLowering(sample.op, sample.rule, sample.input_specs, configuration, mesh, engine)
            piece = logits[:, context.offset("c") :][:, :3]
            return lower_operator(context, [tf.constant(piece), tf.constant([label, 2])])[0]

    losses = Lockstep(mesh).run(build)
    with tf.compat.v1.Session(graph=sample.graph) as session:
        for loss in losses:
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices\[0\] = {label} is not in"):
                session.run(loss)


@pytest.mark.parametrize("kind", ["SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"])
def test_gradients_of_some_losses_come_as_rows(kind: str) -> None:
    labels = integers(4, high=6) if kind.startswith("Sparse") else floats(4, 6, low=0.0)
    sample = SampleGraph(Sample(kind, (floats(4, 6), labels)))
    mesh, configuration = Mesh((2,)), Configuration(("c",))
    logits = np.arange(24, dtype=np.float32).reshape(4, 6) / 9
    given = np.array([1, 0, 5, 2]) if kind.startswith("Sparse") else np.full((4, 6), 1 / 6, np.float32)

    def build(engine: Any) -> Any:
        with sample.graph.as_default():
            context = OpLowering(sample.op, sample.rule, sample.input_specs, configuration, mesh, engine)
            here = slice(context.offset("c"), context.offset("c") + 3)
            piece = tf.constant(logits[:, here])
            others = tf.constant(given if kind.startswith("Sparse") else given[:, here])
            loss = lower_operator(context, [piece, others])[0]
            return tf.gradients(tf.gather(loss, [2, 0]), piece)[0]

    found = Lockstep(mesh).run(build)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = softmax - (np.eye(6)[given] if kind.startswith("Sparse") else given)
    wanted[[1, 3]] = 0.0
    with tf.compat.v1.Session(graph=sample.graph) as session:
        np.testing.assert_allclose(np.concatenate(session.run(found), 1), wanted, atol=1e-6)


def test_labels_that_are_broadcast_are_not_split() -> None:
    inputs = [TensorSpec((4, 6), "float32"), TensorSpec((1, 6), "float32")]
    outputs = (TensorSpec((4,), "float32"), TensorSpec((4, 6), "float32"))
    assert rule_of(Operator("loss", "SoftmaxCrossEntropyWithLogits", (), outputs), inputs).split == ()
