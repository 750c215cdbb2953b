"""Models that benchmarks train, written once against ``tf.compat.v1``'s names so that TensorFlow runs them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["CLIP_NORM", "MODELS", "OPTIMIZERS", "SHORT", "Built", "Model"]


@dataclass(frozen=True, slots=True)
class Built:
    """A model in some graph."""

    loss: Any
    feeds: dict[str, Any]  # placeholders by name


@dataclass(frozen=True, slots=True)
class Model:
    """How to build a model and make batches for it.

    Attributes:
        build: takes the module to build with (``tensoropt`` or ``tf.compat.v1``) and the batch size.
        batch: takes a random generator and the batch size; gives arrays by placeholder name.
        batch_size: of all devices together.
        learning_rate: of plain gradient descent; Momentum's and Adam's are ``momentum_rate`` and ``adam_rate``.
        kind: the name of the function that made it.
        sizes: that function's arguments.
    """

    build: Callable[[Any, int], Built]
    batch: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    batch_size: int
    learning_rate: float
    momentum_rate: float = 0.01
    adam_rate: float = 0.001
    kind: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def train(self, tf: Any, name: str, loss: Any, average: Callable[[Any], Any] = lambda gradient: gradient) -> Any:
        """An operation that trains by a loss.

        Args:
            tf: ``tensoropt`` or ``tf.compat.v1``.
            name: one of :data:`OPTIMIZERS`.
            loss: a scalar.
            average: what is done to each gradient first.
        """
        optimizer = OPTIMIZERS[name](tf.train, self)
        pairs = [(average(gradient), variable) for gradient, variable in optimizer.compute_gradients(loss)]
        if name in _CLIPPED:
            clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], CLIP_NORM)
            pairs = [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs, strict=True)]
        return optimizer.apply_gradients(pairs)


# Optimizers before whose steps all gradients together are scaled down to this norm.
_CLIPPED, CLIP_NORM = ("clipped_adam",), 1.0
OPTIMIZERS: Mapping[str, Callable[[Any, Model], Any]] = MappingProxyType(
    {
        "sgd": lambda train, model: train.GradientDescentOptimizer(model.learning_rate),
        "momentum": lambda train, model: train.MomentumOptimizer(model.momentum_rate, 0.9),
        "adam": lambda train, model: train.AdamOptimizer(model.adam_rate),
        "clipped_adam": lambda train, model: train.AdamOptimizer(model.adam_rate),
    }
)


def _variable(tf: Any, name: str, shape: Sequence[int], deviation: float = 0.0, fill: float = 0.0) -> Any:
    """A variable of normally distributed numbers, or with one number everywhere where ``deviation`` is 0."""
    initializers = tf.initializers
    made = initializers.random_normal(stddev=deviation) if deviation else initializers.constant(fill)
    return tf.get_variable(name, list(shape), initializer=made, use_resource=True)


def _dense(tf: Any, x: Any, width: int, name: str) -> Any:
    """``x @ weights + bias`` for a matrix ``x``, with He's initial weights."""
    features = int(x.shape[-1])
    weights = _variable(tf, f"{name}_weights", [features, width], (2 / features) ** 0.5)
    return tf.matmul(x, weights) + _variable(tf, f"{name}_bias", [width])


def _mean_loss(tf: Any, labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def mlp(*, features: int, hidden: int, layers: int, classes: int, batch_size: int) -> Model:
    """Dense layers on random features."""

    def build(tf: Any, batch: int) -> Built:
        inputs = tf.placeholder(tf.float32, [batch, features], name="inputs")
        labels = tf.placeholder(tf.int32, [batch], name="labels")
        x = inputs
        for layer in range(layers):
            x = tf.nn.relu(_dense(tf, x, hidden, f"dense{layer}"))
        return Built(_mean_loss(tf, labels, _dense(tf, x, classes, "logits")), {"inputs": inputs, "labels": labels})

    def batch(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        inputs = rng.standard_normal((count, features)).astype(np.float32)
        return {"inputs": inputs, "labels": rng.integers(0, classes, count).astype(np.int32)}

    return Model(build, batch, batch_size, 0.05)


def large_softmax(*, vocabulary: int, width: int, hidden: int, batch_size: int) -> Model:
    """An embedding of many words, one dense layer, a softmax over as many words."""

    def build(tf: Any, batch: int) -> Built:
        ids = tf.placeholder(tf.int32, [batch], name="ids")
        labels = tf.placeholder(tf.int32, [batch], name="labels")
        table = _variable(tf, "table", [vocabulary, width], 0.02)
        weights = _variable(tf, "weights", [width, hidden], 0.02)
        bias = _variable(tf, "bias", [hidden])
        softmax = _variable(tf, "softmax", [hidden, vocabulary], 0.02)
        softmax_bias = _variable(tf, "softmax_bias", [vocabulary])
        x = tf.nn.relu(tf.matmul(tf.gather(table, ids), weights) + bias)
        return Built(_mean_loss(tf, labels, tf.matmul(x, softmax) + softmax_bias), {"ids": ids, "labels": labels})

    def batch(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        return {
            "ids": rng.integers(0, vocabulary, count).astype(np.int32),
            "labels": rng.integers(0, vocabulary, count).astype(np.int32),
        }

    return Model(build, batch, batch_size, 0.1)


def vgg(*, image: int, stages: Sequence[tuple[int, int]], hidden: int, classes: int, batch_size: int) -> Model:
    """Simonyan and Zisserman's network (2014): ``stages`` are (convolutions, channels), each ended by a pooling."""

    def build(tf: Any, batch: int) -> Built:
        images = tf.placeholder(tf.float32, [batch, image, image, 3], name="images")
        labels = tf.placeholder(tf.int32, [batch], name="labels")
        x = images
        for stage, (convolutions, channels) in enumerate(stages, start=1):
            for number in range(1, convolutions + 1):
                name, before = f"conv{stage}_{number}", int(x.shape[-1])
                weights = _variable(tf, f"{name}_weights", [3, 3, before, channels], (2 / (9 * before)) ** 0.5)
                bias = _variable(tf, f"{name}_bias", [channels])
                x = tf.nn.relu(tf.nn.conv2d(x, weights, strides=[1, 1, 1, 1], padding="SAME") + bias)
            x = tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
        x = tf.reshape(x, [batch, int(np.prod(x.shape[1:]))])
        for layer in ("fc6", "fc7"):
            x = tf.nn.relu(_dense(tf, x, hidden, layer))
        return Built(_mean_loss(tf, labels, _dense(tf, x, classes, "logits")), {"images": images, "labels": labels})

    def batch(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        images = rng.standard_normal((count, image, image, 3)).astype(np.float32)
        return {"images": images, "labels": rng.integers(0, classes, count).astype(np.int32)}

    return Model(build, batch, batch_size, 0.01)


def transformer(*, layers: int, width: int, heads: int, length: int, vocabulary: int, batch_size: int) -> Model:
    """A language model of causal attention (Vaswani et al. 2017), normalised before each part."""

    def norm(tf: Any, x: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        scale = _variable(tf, f"{name}_scale", [width], fill=1.0)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6) * scale + _variable(tf, f"{name}_offset", [width])

    def attention(tf: Any, x: Any, batch: int, name: str) -> Any:
        """``x`` has a row for each word of all samples."""
        parts = []
        for part in ("query", "key", "value"):
            words = tf.matmul(x, _variable(tf, f"{name}_{part}", [width, width], width**-0.5))
            parts.append(tf.transpose(tf.reshape(words, [batch, length, heads, width // heads]), [0, 2, 1, 3]))
        query, key, value = parts
        scores = tf.matmul(query, key, transpose_b=True) * (width // heads) ** -0.5
        future = tf.constant(np.triu(np.full([length, length], -1e9, np.float32), k=1))
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores + future), value), [0, 2, 1, 3])
        output = _variable(tf, f"{name}_output", [width, width], width**-0.5)
        return tf.matmul(tf.reshape(mixed, [batch * length, width]), output)

    def build(tf: Any, batch: int) -> Built:
        ids = tf.placeholder(tf.int32, [batch, length], name="ids")
        labels = tf.placeholder(tf.int32, [batch, length], name="labels")
        words = tf.gather(_variable(tf, "words", [vocabulary, width], 0.02), ids)
        x = tf.reshape(words + _variable(tf, "positions", [length, width], 0.02), [batch * length, width])
        for layer in range(layers):
            x = x + attention(tf, norm(tf, x, f"layer{layer}_norm1"), batch, f"layer{layer}")
            up = tf.nn.relu(_dense(tf, norm(tf, x, f"layer{layer}_norm2"), 4 * width, f"layer{layer}_up"))
            x = x + _dense(tf, up, width, f"layer{layer}_down")
        logits = tf.reshape(_dense(tf, norm(tf, x, "norm"), vocabulary, "logits"), [batch, length, vocabulary])
        return Built(_mean_loss(tf, labels, logits), {"ids": ids, "labels": labels})

    return Model(build, _sequences(length, vocabulary), batch_size, 0.1)


def lstm(*, layers: int, hidden: int, steps: int, vocabulary: int, batch_size: int) -> Model:
    """A language model of unrolled LSTM layers (Zaremba et al. 2014)."""

    def layer_of(tf: Any, words: list[Any], name: str) -> list[Any]:
        weights = _variable(tf, f"{name}_input", [hidden, 4 * hidden], hidden**-0.5)
        recurrent = _variable(tf, f"{name}_recurrent", [hidden, 4 * hidden], hidden**-0.5)
        bias = _variable(tf, f"{name}_bias", [4 * hidden])
        state = cell = None
        outputs = []
        for x in words:
            gates = tf.matmul(x, weights) + bias
            if state is not None:
                gates = gates + tf.matmul(state, recurrent)
            enter, forget, candidate, leave = tf.split(gates, 4, axis=1)
            added = tf.sigmoid(enter) * tf.tanh(candidate)
            cell = added if cell is None else tf.sigmoid(forget) * cell + added
            state = tf.sigmoid(leave) * tf.tanh(cell)
            outputs.append(state)
        return outputs

    def build(tf: Any, batch: int) -> Built:
        ids = tf.placeholder(tf.int32, [batch, steps], name="ids")
        labels = tf.placeholder(tf.int32, [batch, steps], name="labels")
        outputs = tf.unstack(tf.gather(_variable(tf, "words", [vocabulary, hidden], 0.02), ids), axis=1)
        for layer in range(layers):
            outputs = layer_of(tf, outputs, f"layer{layer}")
        together = tf.reshape(tf.stack(outputs, axis=1), [batch * steps, hidden])
        logits = tf.reshape(_dense(tf, together, vocabulary, "logits"), [batch, steps, vocabulary])
        return Built(_mean_loss(tf, labels, logits), {"ids": ids, "labels": labels})

    return Model(build, _sequences(steps, vocabulary), batch_size, 0.5)


def _sequences(length: int, vocabulary: int) -> Callable[[np.random.Generator, int], dict[str, np.ndarray]]:
    def batch(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
        words = rng.integers(0, vocabulary, (count, length + 1)).astype(np.int32)
        return {"ids": words[:, :-1], "labels": words[:, 1:]}

    return batch


def _sized(make: Callable[..., Model], **sizes: Any) -> Model:
    return replace(make(**sizes), kind=make.__name__, sizes=MappingProxyType(sizes))


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "large_softmax": _sized(large_softmax, vocabulary=20_000, width=256, hidden=512, batch_size=64),
        "vgg": _sized(
            vgg,
            image=32,
            stages=((2, 32), (2, 64), (3, 128), (3, 256), (3, 256)),
            hidden=512,
            classes=64,
            batch_size=32,
        ),
        "transformer": _sized(transformer, layers=2, width=256, heads=4, length=32, vocabulary=2048, batch_size=16),
        "lstm": _sized(lstm, layers=2, hidden=256, steps=8, vocabulary=4096, batch_size=64),
    }
)
"""What a step of takes a small machine a tenth of a second or two."""

SHORT: Mapping[str, Model] = MappingProxyType(
    {
        "mlp": _sized(mlp, features=32, hidden=64, layers=2, classes=8, batch_size=16),
        "cnn": _sized(vgg, image=8, stages=((1, 8), (1, 16)), hidden=32, classes=8, batch_size=16),
        "transformer": _sized(transformer, layers=4, width=32, heads=4, length=8, vocabulary=64, batch_size=8),
        "lstm": _sized(lstm, layers=2, hidden=32, steps=4, vocabulary=64, batch_size=16),
        "large_softmax": _sized(large_softmax, vocabulary=1024, width=16, hidden=32, batch_size=16),
    }
)
"""The same kinds of models, in sizes that are built and trained in about a second."""
