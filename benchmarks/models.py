"""Models that benchmarks train, written once against ``tf.compat.v1``'s names so that TensorFlow runs them too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MODELS", "Built", "Model"]


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
        learning_rate: of plain gradient descent.
    """

    build: Callable[[Any, int], Built]
    batch: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    batch_size: int
    learning_rate: float


_VOCABULARY, _WIDTH, _HIDDEN = 20_000, 256, 512


def _large_softmax(tf: Any, batch: int) -> Built:
    """An embedding of 20,000 words, one dense layer, a softmax over 20,000 words."""
    ids = tf.placeholder(tf.int32, [batch], name="ids")
    labels = tf.placeholder(tf.int32, [batch], name="labels")
    init = tf.initializers.random_normal(stddev=0.02)
    table = tf.get_variable("table", [_VOCABULARY, _WIDTH], initializer=init, use_resource=True)
    weights = tf.get_variable("weights", [_WIDTH, _HIDDEN], initializer=init, use_resource=True)
    bias = tf.get_variable("bias", [_HIDDEN], initializer=tf.initializers.zeros(), use_resource=True)
    softmax = tf.get_variable("softmax", [_HIDDEN, _VOCABULARY], initializer=init, use_resource=True)
    zeros = tf.initializers.zeros()
    softmax_bias = tf.get_variable("softmax_bias", [_VOCABULARY], initializer=zeros, use_resource=True)
    hidden = tf.nn.relu(tf.matmul(tf.gather(table, ids), weights) + bias)
    logits = tf.matmul(hidden, softmax) + softmax_bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return Built(tf.reduce_mean(losses), {"ids": ids, "labels": labels})


def _words(rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    return {
        "ids": rng.integers(0, _VOCABULARY, batch).astype(np.int32),
        "labels": rng.integers(0, _VOCABULARY, batch).astype(np.int32),
    }


MODELS = {"large_softmax": Model(_large_softmax, _words, 64, 0.1)}
