"""The models of :mod:`benchmarks.models` written in Keras: equal losses for equal weights.

But by momentum: TensorFlow 1's leaves those rows of an embedding alone that a batch does not have, Keras's moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

from benchmarks.models import CLIP_NORM, Model

__all__ = ["KerasModel", "in_keras"]

# A model, and the names of the twin's variables in its order.
_Made = tuple[Callable[[], Any], list[str]]


@dataclass(frozen=True, slots=True)
class KerasModel:
    """A model in Keras.

    Attributes:
        make: gives it, not compiled yet.
        names: of its twin's variables, in the order of ``get_weights``.
        twin: the model that it is equal to.
    """

    make: Callable[[], Any]
    names: Sequence[str]
    twin: Model

    def compiled(
        self,
        optimizer: str,
        seed: int,
        *,
        wrapped: Callable[[Any], Any] = lambda optimizer: optimizer,
        jit_compile: Any = "auto",
    ) -> Any:
        """The model with its loss, and the weights that the twin begins with.

        Args:
            optimizer: one of :data:`benchmarks.models.OPTIMIZERS`.
            seed: of the weights.
            wrapped: what is made of Keras's optimizer.
            jit_compile: see Keras's ``compile``.
        """
        model, twin = self.make(), self.twin
        clipped = {"global_clipnorm": CLIP_NORM} if optimizer == "clipped_adam" else {}
        made = {
            "sgd": lambda: keras.optimizers.SGD(twin.learning_rate),
            "momentum": lambda: keras.optimizers.SGD(twin.momentum_rate, momentum=0.9),
            # TensorFlow 1's epsilon
            "adam": lambda: keras.optimizers.Adam(twin.adam_rate, epsilon=1e-8, **clipped),
        }[optimizer.removeprefix("clipped_")]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(wrapped(made), loss, jit_compile=jit_compile)
        values = self._initial(seed)
        model.set_weights([np.reshape(value, own.shape) for value, own in zip(values, model.weights, strict=True)])
        return model

    def batch(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """A batch of the twin's, as ``fit`` takes it."""
        arrays = self.twin.batch(rng, count)
        labels = arrays.pop("labels")
        (inputs,) = arrays.values()
        return inputs, labels

    def _initial(self, seed: int) -> Sequence[np.ndarray]:
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(seed)
            self.twin.build(tf.compat.v1, self.twin.batch_size)
            variables = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                values: Sequence[np.ndarray] = session.run([variables[name] for name in self.names])
                return values


def in_keras(twin: Model) -> KerasModel:
    """A model of :data:`benchmarks.models.MODELS` in Keras."""
    sizes = {name: size for name, size in twin.sizes.items() if name != "batch_size"}
    make, names = _KINDS[twin.kind](**sizes)
    return KerasModel(make, names, twin)


def _dense_names(*names: str) -> list[str]:
    return [f"{name}_{part}" for name in names for part in ("weights", "bias")]


def _mlp(*, features: int, hidden: int, layers: int, classes: int) -> _Made:
    """See :func:`benchmarks.models.mlp`."""

    def make() -> Any:
        dense = [kl.Dense(hidden, activation="relu") for _ in range(layers)]
        return keras.Sequential([keras.Input((features,)), *dense, kl.Dense(classes)])

    return make, _dense_names(*(f"dense{layer}" for layer in range(layers)), "logits")


def _large_softmax(*, vocabulary: int, width: int, hidden: int) -> _Made:
    """See :func:`benchmarks.models.large_softmax`."""

    def make() -> Any:
        ids = keras.Input((), dtype="int32")
        x = kl.Dense(hidden, activation="relu")(kl.Embedding(vocabulary, width)(ids))
        return keras.Model(ids, kl.Dense(vocabulary)(x))

    return make, ["table", "weights", "bias", "softmax", "softmax_bias"]


def _vgg(*, image: int, stages: Sequence[tuple[int, int]], hidden: int, classes: int) -> _Made:
    """See :func:`benchmarks.models.vgg`."""
    names = [
        f"conv{stage}_{number}"
        for stage, (convolutions, _) in enumerate(stages, start=1)
        for number in range(1, convolutions + 1)
    ]

    def make() -> Any:
        parts: list[Any] = []
        for convolutions, channels in stages:
            parts += [kl.Conv2D(channels, 3, padding="same", activation="relu") for _ in range(convolutions)]
            parts.append(kl.MaxPooling2D(padding="same"))
        dense = [kl.Dense(hidden, activation="relu") for _ in range(2)]
        return keras.Sequential([keras.Input((image, image, 3)), *parts, kl.Flatten(), *dense, kl.Dense(classes)])

    return make, _dense_names(*names, "fc6", "fc7", "logits")


def _transformer(*, layers: int, width: int, heads: int, length: int, vocabulary: int) -> _Made:
    """See :func:`benchmarks.models.transformer`."""

    class Positions(kl.Layer):
        """Adds what is learnt of each position."""

        def build(self, shape: Sequence[int | None]) -> None:
            self.table = self.add_weight(shape=(length, width), name="positions")

        def call(self, x: Any) -> Any:
            return x + self.table

    def make() -> Any:
        ids = keras.Input((length,), dtype="int32")
        x = Positions()(kl.Embedding(vocabulary, width)(ids))
        for _ in range(layers):
            normed = kl.LayerNormalization(epsilon=1e-6)(x)
            attention = kl.MultiHeadAttention(heads, width // heads, use_bias=False)
            x = x + attention(normed, normed, use_causal_mask=True)
            normed = kl.LayerNormalization(epsilon=1e-6)(x)
            x = x + kl.Dense(width)(kl.Dense(4 * width, activation="relu")(normed))
        return keras.Model(ids, kl.Dense(vocabulary)(kl.LayerNormalization(epsilon=1e-6)(x)))

    names = ["words", "positions"]
    for layer in range(layers):
        names += [f"layer{layer}_norm1_scale", f"layer{layer}_norm1_offset"]
        names += [f"layer{layer}_{part}" for part in ("query", "key", "value", "output")]
        names += [f"layer{layer}_norm2_scale", f"layer{layer}_norm2_offset"]
        names += _dense_names(f"layer{layer}_up", f"layer{layer}_down")
    return make, [*names, "norm_scale", "norm_offset", *_dense_names("logits")]


def _lstm(*, layers: int, hidden: int, steps: int, vocabulary: int) -> _Made:
    """See :func:`benchmarks.models.lstm`, which is unrolled."""

    def make() -> Any:
        ids = keras.Input((steps,), dtype="int32")
        x = kl.Embedding(vocabulary, hidden)(ids)
        for _ in range(layers):
            x = kl.LSTM(hidden, return_sequences=True, unroll=True, unit_forget_bias=False)(x)
        return keras.Model(ids, kl.Dense(vocabulary)(x))

    parts = [f"layer{layer}_{part}" for layer in range(layers) for part in ("input", "recurrent", "bias")]
    return make, ["words", *parts, *_dense_names("logits")]


_KINDS: Mapping[str, Callable[..., _Made]] = MappingProxyType(
    {"mlp": _mlp, "large_softmax": _large_softmax, "vgg": _vgg, "transformer": _transformer, "lstm": _lstm}
)
