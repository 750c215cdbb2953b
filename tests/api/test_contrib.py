"""What is there of ``tf.contrib``: its names of variables, defaults and numbers."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.lookup import UnsupportedError, lookup
from tensoropt.api.mirror.model import Model, current_model
from tensoropt.contrib import (
    framework,
    layers,
    legacy_seq2seq,
    metrics,
    rnn,
    seq2seq,
    slim,
)
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


def test_embed_sequence_and_cells(model: Model) -> None:
    rows = layers.embed_sequence([[1, 2], [0, 0]], 4, 3)
    outputs, _ = rnn.static_rnn(rnn.BasicLSTMCell(5), tf.unstack(rows, axis=1), dtype=tf.float32)
    assert outputs[0].shape == (2, 5)
    assert _names() == ["EmbedSequence/embeddings", "rnn/basic_lstm_cell/kernel", "rnn/basic_lstm_cell/bias"]
    with pytest.raises(GraphError, match="needs vocab_size and embed_dim for a new table"):
        layers.embed_sequence([[1]])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("tpu", "tensoropt.layers"), ("learn.Estimator", "MonitoredTrainingSession"), ("slim.queues", "feed_dict")],
)
def test_what_is_missing_names_its_counterpart(name: str, remedy: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"tf.contrib.{name} is not supported .*{remedy}"):
        functools.reduce(getattr, name.split("."), tensoropt.contrib)


@pytest.mark.parametrize("path", ["contrib.slim", "contrib.layers", "contrib.slim.nets"])
def test_a_package_that_is_not_installed_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensoropt.contrib.tf_slim_copy.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=rf"tensoropt.{path}.nothing: .* is not installed.* pip install tf_slim"):
        lookup(path, "nothing")


def test_slim_has_scopes_of_arguments_collections_and_networks(model: Model) -> None:
    @slim.add_arg_scope
    def block(x: Any, width: int = 1) -> Any:
        return slim.repeat(x, 2, layers.conv2d, width, 3, scope="conv")

    x = tensoropt.placeholder(tensoropt.float32, [2, 32, 32, 3])
    training = tensoropt.placeholder_with_default(True, [])
    with (
        slim.arg_scope([slim.conv2d, slim.fully_connected], activation_fn=None, normalizer_fn=slim.batch_norm),
        framework.arg_scope([layers.batch_norm], is_training=training, decay=0.5),
        framework.arg_scope([block], width=4),
    ):
        h = block(x)
    assert h.op.type != "Relu"
    assert h.shape == (2, 32, 32, 4)
    assert [each.op.name for each in slim.get_model_variables()][:4] == [
        "conv/conv_1/weights", "conv/conv_1/BatchNorm/beta", "conv/conv_1/BatchNorm/moving_mean",
        "conv/conv_1/BatchNorm/moving_variance",
    ]  # fmt: skip
    with slim.arg_scope(slim.nets.resnet_v1.resnet_arg_scope()):
        net, ends = slim.nets.resnet_v1.resnet_v1_50(x, 7, is_training=False)
    assert net.shape == (2, 1, 1, 7)
    assert "resnet_v1_50/block4" in ends
    assert sys.modules["tensoropt.contrib.slim"] is slim
    assert "tf_slim" not in sys.modules  # a script's own copy would be another


def test_slim_reads_values_into_variables(model: Model) -> None:
    w = slim.model_variable("w", [2], regularizer=slim.l2_regularizer(1.0))
    assign, fed = slim.assign_from_values({"w": np.array([1.0, 2.0], np.float32)})
    with v1.Session() as session:
        session.run(assign, fed)
        got = session.run([w, slim.losses.get_total_loss()])
    np.testing.assert_allclose(got[0], [1.0, 2.0])
    assert got[1] == 2.5


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", tensoropt.train.AdagradOptimizer, None])
def test_optimize_loss_is_a_step_with_summaries(model: Model, optimizer: Any) -> None:
    w = tensoropt.get_variable("w", [2], initializer=v1.ones_initializer())
    step = tensoropt.train.get_or_create_global_step()
    layers.summarize_activation(w * 1.0)
    train = layers.optimize_loss(
        tensoropt.reduce_sum(w * [3.0, 4.0]),
        step,
        0.5,
        optimizer or (lambda rate: tensoropt.train.MomentumOptimizer(rate, 0.9)),
        clip_gradients=1.0,
        learning_rate_decay_fn=lambda rate, at: tensoropt.train.exponential_decay(rate, at, 1, 0.5),
        gradient_multipliers={"w:0": 2.0},
        summaries=["loss", "learning_rate", "global_gradient_norm", "gradients"],
    )
    assert len(current_model().gradient_calls) == 1
    names = [each.name for each in v1.get_collection(v1.GraphKeys.SUMMARIES)]
    assert any("learning_rate" in name for name in names) and any("clipped_gradient_norm" in name for name in names)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train)
        got, at = session.run([w, step])
    assert at == 1
    if optimizer in ("SGD", None):
        np.testing.assert_allclose(got, [0.7, 0.6], rtol=1e-6)


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


def test_what_only_has_another_name_now(model: Model) -> None:
    step = framework.get_or_create_global_step()
    assert step is framework.get_global_step()
    assert "init_from_checkpoint" in dir(framework)
    assert framework.nest.flatten([1, [2]]) == [1, 2]
    windows = tensoropt.contrib.data.group_by_window(lambda x: x % 2, lambda key, window: window.batch(2), 2)
    dataset = tensoropt.contrib.data.Dataset.range(4).apply(windows)
    with v1.Session() as session:
        assert session.run(v1.data.make_one_shot_iterator(dataset).get_next()).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["layers", "Sequential", "backend"])
def test_keras_in_a_graph_says_what_to_do(name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"tensoropt.keras.{name}: .*In a graph use tensoropt.layers"):
        getattr(tensoropt.keras, name)
    assert not hasattr(tensoropt.keras, "nothing")


@pytest.mark.parametrize(
    ("module", "name", "path"),
    [
        ("layers.python.layers", "xavier_initializer", "layers"),
        ("layers.python.layers.initializers", "xavier_initializer", "layers"),
        ("framework.python.ops", "add_arg_scope", "framework"),
        ("seq2seq.python.ops.attention_wrapper", "AttentionWrapper", "seq2seq"),
        ("slim.python.slim.nets.vgg", "learning", "slim"),
    ],
)
def test_names_are_found_by_the_places_of_files(module: str, name: str, path: str) -> None:
    deep = importlib.import_module(f"tensoropt.contrib.{module}")
    assert getattr(deep, name) is getattr(getattr(tensoropt.contrib, path), name)
    assert importlib.import_module(f"tensoropt.contrib.{module}") is deep
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tensoropt.contrib.nothing.python.ops")
