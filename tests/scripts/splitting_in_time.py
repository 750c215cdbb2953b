"""Trains a model by whole batches and by micro-batches, with and without recomputation, and compares the losses.

Argument: ``graph`` or ``keras``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import tensoropt as to

_STEPS = 5


def losses_of_a_graph(**split: Any) -> list[float]:
    """Embeddings as rows, tied weights, dropout, a mask, a regularizer and clipping by the global norm."""
    to.reset_default_graph()
    to.set_random_seed(3)
    words, mask = to.placeholder(to.int32, [24, 5], name="words"), to.placeholder(to.float32, [24, 5], name="mask")
    table = to.get_variable("table", [40, 16], initializer=to.random_normal_initializer(stddev=0.3))
    middle = to.get_variable("middle", [16, 16], initializer=to.random_normal_initializer(stddev=0.3))
    found = to.nn.embedding_lookup(table, words)
    hidden = to.nn.dropout(to.tanh(to.tensordot(found, middle, 1)), rate=0.2)
    logits = to.tensordot(hidden, table, [[2], [1]])
    each = to.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=logits)
    loss = to.reduce_sum(each * mask) / to.reduce_sum(mask) + 1e-2 * to.nn.l2_loss(middle)
    optimizer = to.train.AdamOptimizer(1e-2)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = to.clip_by_global_norm(gradients, 0.5)
    train = optimizer.apply_gradients(zip(clipped, variables, strict=True))
    to.build_execution_graph(plan=to.find_strategy("mini_memory", feed="global", costs="analytic", **split))
    random, result = np.random.default_rng(0), []
    for _ in range(_STEPS):
        batch = {words: random.integers(0, 40, (24, 5)), mask: random.random((24, 5)).round().astype(np.float32)}
        result += [float(value) for value in to.run([loss, norm, train], batch)[:2]]
    return result


def losses_of_keras(**split: Any) -> list[float]:
    """Attention, normalization, dropout, a regularizer, metrics and a smaller last batch."""
    keras.utils.set_random_seed(1)
    words = keras.Input((6,))
    x = keras.layers.Dense(32, kernel_regularizer="l2")(keras.layers.Reshape((6, 1))(words))
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8)(x, x))
    x = keras.layers.Dropout(0.2, seed=5)(keras.layers.Flatten()(x))
    model = keras.Model(words, keras.layers.Dense(4)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-2, clipnorm=1.0), loss=loss, metrics=["accuracy"])
    to.keras.parallelize(model, costs="analytic", **split)
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(40, 6)).astype(np.float32), random.integers(0, 4, 40)
    history = model.fit(inputs, labels, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], *history["accuracy"], *model.evaluate(inputs, labels, batch_size=16, verbose=0)]


def main() -> None:
    """Says of each way whether the losses are those of whole batches."""
    to.init()
    losses: Callable[..., list[float]] = {"graph": losses_of_a_graph, "keras": losses_of_keras}[sys.argv[1]]
    whole = losses()
    for split in ({"micro_batches": 2}, {"micro_batches": 4, "recompute": True}):
        found = losses(**split)
        if to.world_rank() == 0:
            same = np.allclose(whole, found, rtol=2e-5, atol=0.0)
            print(f"{split}: {'equal' if same else f'different: {whole} {found}'}", flush=True)


if __name__ == "__main__":
    main()
