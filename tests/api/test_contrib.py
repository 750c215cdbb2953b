"""What is there of ``tf.contrib``: its names of variables, defaults and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensoropt.contrib import (  # type: ignore[import-not-found]
    framework,
    layers,
    legacy_seq2seq,
    metrics,
    rnn,
    seq2seq,
)

import tensoropt
from tensoropt.api.mirror.lookup import UnsupportedError
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1


def _names() -> list[str]:
    return [variable.op.name for variable in v1.global_variables()]


def _run(fetches: Any) -> Any:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return session.run(fetches)


def test_a_network_has_contribs_names_and_defaults(model: Model) -> None:
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
    h = layers.conv2d(x, 6, 3, weights_regularizer=layers.l2_regularizer(0.1))
    assert h.shape == (4, 8, 8, 6)
    assert h.op.type == "Relu"
    h = layers.flatten(layers.avg_pool2d(layers.max_pool2d(h, 2), [2, 2]))
    h = layers.fully_connected(h, 5, normalizer_fn=layers.batch_norm, normalizer_params={"is_training": True})
    h = layers.dropout(h, 0.5)
    layers.linear(h, 2, scope="out", variables_collections=["mine"])
    layers.linear(h, 2, scope="out", reuse=True)
    norm = "fully_connected/BatchNorm"
    assert _names() == [
        "Conv/weights", "Conv/biases", "fully_connected/weights", f"{norm}/beta", f"{norm}/moving_mean",
        f"{norm}/moving_variance", "out/weights", "out/biases",
    ]  # fmt: skip
    assert len(v1.get_collection(v1.GraphKeys.UPDATE_OPS)) == 2
    assert [variable.op.name for variable in v1.get_collection("mine")] == ["out/weights", "out/biases"]
    weights, loss = _run([v1.global_variables()[0], tensoropt.losses.get_regularization_loss()])
    assert loss == pytest.approx(0.05 * (weights**2).sum(), rel=1e-5)


def test_numbers_of_a_dense_layer(model: Model) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    y = layers.fully_connected(x, 5)
    weights, got = _run([v1.global_variables()[0], y])
    np.testing.assert_allclose(got, np.maximum(x @ weights, 0), rtol=1e-5)


def test_layers_and_instances_are_normalized(model: Model) -> None:
    x = np.random.default_rng(0).normal(2.0, 3.0, size=(4, 5, 6, 3)).astype(np.float32)
    made = [
        layers.layer_norm(x, begin_norm_axis=-1),  # as BERT has it
        layers.layer_norm(x, activation_fn=tf.nn.relu, scope="whole"),
        layers.instance_norm(x, epsilon=0.0),
        layers.instance_norm(x.transpose(0, 3, 1, 2), epsilon=0.0, data_format="NCHW", center=False),
    ]
    assert _names() == [
        "LayerNorm/beta", "LayerNorm/gamma", "whole/beta", "whole/gamma", "InstanceNorm/beta", "InstanceNorm/gamma",
        "InstanceNorm_1/gamma",
    ]  # fmt: skip
    assert {variable.shape for variable in v1.global_variables()} == {(3,)}

    def normal(axes: tuple[int, ...]) -> Any:
        return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)

    instances = normal((1, 2))
    wanted = [normal((3,)), np.maximum(normal((1, 2, 3)), 0), instances, instances.transpose(0, 3, 1, 2)]
    for one, other in zip(_run(made), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    with pytest.raises(GraphError, match=r"must be dimensions of \(4, 5, 6, 3\). Got 4 and -1"):
        layers.layer_norm(x, begin_norm_axis=4)


def test_updates_of_batch_norm_may_come_before_its_result(model: Model) -> None:
    x = tensoropt.constant([[1.0], [3.0]])
    y = layers.batch_norm(x, decay=0.5, updates_collections=None, activation_fn=tf.nn.relu)
    assert v1.get_collection(v1.GraphKeys.UPDATE_OPS) == []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        got = session.run(y)
        mean = session.run(v1.global_variables()[1])
    np.testing.assert_allclose(got, [[0.0], [1.0]], atol=1e-3)
    np.testing.assert_allclose(mean, [1.0])


@pytest.mark.parametrize(("fused", "samples"), [(None, 3), (False, 4)])
def test_two_dimensions_are_normalized_as_contrib_fuses_them(model: Model, fused: bool | None, samples: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    fed = tensoropt.placeholder_with_default(x, [None, 3])
    y = layers.batch_norm(fed, decay=0.5, updates_collections=None, fused=fused)
    assert y.shape.as_list() == [None, 3]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        got = session.run(y)
        variance = session.run(v1.global_variables()[2])
    np.testing.assert_allclose(got, (x - x.mean(0)) / np.sqrt(x.var(0) + 0.001), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, 0.5 + 0.5 * x.var(0) * 4 / samples, rtol=1e-5)


def test_biases_are_added_to_the_channels(model: Model) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    y = layers.bias_add(x, tf.nn.relu, initializer=v1.constant_initializer(0.5))
    assert _names() == ["BiasAdd/biases"]
    np.testing.assert_allclose(_run(y), np.maximum(x + 0.5, 0))


@pytest.mark.parametrize("uniform", [True, False])
def test_xavier_has_the_variance_of_both_sides(model: Model, uniform: bool) -> None:
    w = tensoropt.get_variable("w", [3, 3, 60, 80], initializer=layers.xavier_initializer(uniform, seed=1))
    assert _run(w).std() == pytest.approx(np.sqrt(2 / (9 * 140)), rel=0.02)


def test_regularizers(model: Model) -> None:
    w = tensoropt.constant([[1.0, -2.0]])
    assert layers.l1_regularizer(0.0)(w) is None
    got = _run([layers.l1_regularizer(0.5)(w), layers.l1_l2_regularizer(1.0, 2.0)(w)])
    np.testing.assert_allclose(got, [1.5, 8.0])
    with pytest.raises(GraphError, match=r"l2_regularizer: scale must be a number of at least 0. Got -1"):
        layers.l2_regularizer(-1)


def test_embed_sequence_and_cells(model: Model) -> None:
    rows = layers.embed_sequence([[1, 2], [0, 0]], 4, 3)
    outputs, _ = rnn.static_rnn(rnn.BasicLSTMCell(5), tf.unstack(rows, axis=1), dtype=tf.float32)
    assert outputs[0].shape == (2, 5)
    assert _names() == ["EmbedSequence/embeddings", "rnn/basic_lstm_cell/kernel", "rnn/basic_lstm_cell/bias"]
    with pytest.raises(GraphError, match="needs vocab_size and embed_dim for a new table"):
        layers.embed_sequence([[1]])


@pytest.mark.parametrize(("name", "remedy"), [("slim", "tensoropt.layers"), ("data", "feed_dict")])
def test_what_is_missing_names_its_counterpart(name: str, remedy: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"tf.contrib.{name} is not supported .*{remedy}"):
        getattr(tensoropt.contrib, name)


def test_sequences(model: Model) -> None:
    random = np.random.default_rng(0)
    logits, targets = random.normal(size=(3, 4, 5)).astype(np.float32), random.integers(0, 5, (3, 4))
    weights = random.uniform(size=(3, 4)).astype(np.float32)
    scores = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    losses = -np.take_along_axis(scores, targets[:, :, None], 2)[:, :, 0] * weights
    steps = [list(np.swapaxes(each, 0, 1)) for each in (logits, targets, weights)]
    total = losses.sum(1) / weights.sum(1)
    wanted = [total, losses.sum(1), total.sum() / 3, total.sum(), losses.sum() / weights.sum(), total, losses]
    got = [
        legacy_seq2seq.sequence_loss_by_example(*steps),
        legacy_seq2seq.sequence_loss_by_example(*steps, average_across_timesteps=False),
        legacy_seq2seq.sequence_loss(*steps),
        legacy_seq2seq.sequence_loss(*steps, average_across_batch=False),
        seq2seq.sequence_loss(logits, targets, weights),
        seq2seq.sequence_loss(logits, targets, weights, average_across_batch=False),
        seq2seq.sequence_loss(logits, targets, weights, False, False),
    ]
    for mine, theirs in zip(_run(got), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    with pytest.raises(GraphError, match=r"logits, targets and weights for each step\. Got 4, 4 and 3"):
        legacy_seq2seq.sequence_loss_by_example(steps[0], steps[1], steps[2][:3])
    with pytest.raises(GraphError, match=r"needs logits \(batch, steps, classes\).* Got \(3, 4\)"):
        seq2seq.sequence_loss(weights, targets, weights)


def test_a_decoder_may_read_what_it_gave(model: Model) -> None:
    cell, x = rnn.GRUCell(2), [tensoropt.ones([3, 2]) * step for step in range(3)]
    given, _ = legacy_seq2seq.rnn_decoder(x, cell.zero_state(3, tf.float32), cell, scope="d")
    with v1.variable_scope(v1.get_variable_scope(), reuse=True):
        looped, _ = legacy_seq2seq.rnn_decoder(
            x, cell.zero_state(3, tf.float32), cell, loop_function=lambda last, step: 0 * last + step, scope="d"
        )
    assert _names()[0] == "d/gru_cell/gates/kernel"
    assert len(_names()) == 4
    given, looped = _run([given, looped])
    np.testing.assert_array_equal(given, looped)


def test_metrics_take_predictions_first(model: Model) -> None:
    predictions, labels = tensoropt.constant([1, 0, 1, 1]), tensoropt.constant([1, 1, 1, 1])
    weighted = metrics.accuracy(predictions, labels, [1.0, 1.0, 0.0, 0.0])
    _, update = metrics.streaming_recall(predictions, labels, name="recall")
    assert metrics.streaming_mean is tensoropt.metrics.mean
    with v1.Session() as session:
        session.run(v1.local_variables_initializer())
        assert session.run([metrics.accuracy(predictions, labels), weighted, update]) == [0.75, 0.5, 0.75]
    with pytest.raises(GraphError, match=r"must be alike. Got int32\(4,\) and float32\(4,\)"):
        metrics.accuracy(predictions, tensoropt.ones([4]))


def test_what_only_has_another_name_now(model: Model) -> None:
    step = framework.get_or_create_global_step()
    assert step is framework.get_global_step()
    assert "init_from_checkpoint" in dir(framework)
    assert framework.nest.flatten([1, [2]]) == [1, 2]
