"""Trains a small Transformer language model on the documentation that ships with Python.

    mpirun -n 4 python examples/transformer.py

It predicts the next character; the text is that of ``help()``'s topics.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import numpy as np
import training

import tensoropt

_TEST_SHARE = 0.05


def corpus() -> tuple[np.ndarray, int]:
    """The text as character ids, and how many characters there are; rare ones are one and the same."""
    text = "".join(topics[name] for name in sorted(topics))
    found, counts = np.unique(np.array(list(text)), return_counts=True)
    kept = sorted(found[np.argsort(-counts)][:95])
    index = {character: number for number, character in enumerate(kept, start=1)}
    return np.array([index.get(character, 0) for character in text], dtype=np.int32), len(kept) + 1


def layer_norm(x: Any, name: str) -> Any:
    """Normalises the last dimension."""
    width = x.shape[-1]
    with tensoropt.variable_scope(name):
        scale = tensoropt.get_variable("scale", [width], initializer=tensoropt.initializers.ones())
        offset = tensoropt.get_variable("offset", [width], initializer=tensoropt.initializers.zeros())
    mean, variance = tensoropt.nn.moments(x, axes=[-1], keep_dims=True)
    return (x - mean) * tensoropt.math.rsqrt(variance + 1e-6) * scale + offset


def attention(x: Any, heads: int, name: str) -> Any:
    """Causal self-attention."""
    batch, length, width = x.shape
    with tensoropt.variable_scope(name):
        parts = []
        for part in ("query", "key", "value"):
            projected = tensoropt.layers.dense(x, width, use_bias=False, name=part)
            split = tensoropt.reshape(projected, [batch, length, heads, width // heads])
            parts.append(tensoropt.transpose(split, [0, 2, 1, 3]))
        query, key, value = parts
        scores = tensoropt.matmul(query, key, transpose_b=True) * (width // heads) ** -0.5
        future = np.triu(np.full([length, length], -1e9, np.float32), k=1)
        weights = tensoropt.nn.softmax(scores + tensoropt.constant(future))
        mixed = tensoropt.transpose(tensoropt.matmul(weights, value), [0, 2, 1, 3])
        return tensoropt.layers.dense(tensoropt.reshape(mixed, [batch, length, width]), width, name="output")


def language_model(ids: Any, vocabulary: int, flags: Any) -> Any:
    """Logits of the next character at every position."""
    length = ids.shape[1]
    x = tensoropt.layers.embedding(ids, vocabulary, flags.width, name="characters")
    small = tensoropt.initializers.random_normal(stddev=0.02)
    x = x + tensoropt.get_variable("positions", [length, flags.width], initializer=small)
    for layer in range(flags.layers):
        with tensoropt.variable_scope(f"layer_{layer}"):
            x = x + attention(layer_norm(x, "norm_1"), flags.heads, "attention")
            wide = 4 * flags.width
            hidden = tensoropt.layers.dense(layer_norm(x, "norm_2"), wide, activation=tensoropt.nn.gelu, name="up")
            x = x + tensoropt.layers.dense(hidden, flags.width, name="down")
    return tensoropt.layers.dense(layer_norm(x, "norm"), vocabulary, name="logits")


def main() -> None:
    """Runs the example."""
    parser = training.parser(__doc__, steps=300, batch=32)
    parser.add_argument("--length", type=int, default=64, help="characters of a sample")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    flags = parser.parse_args()

    text, vocabulary = corpus()
    samples = text[: len(text) // (flags.length + 1) * (flags.length + 1)].reshape(-1, flags.length + 1)
    samples = samples[np.random.default_rng(flags.seed).permutation(len(samples))]
    held_out = max(flags.batch, int(len(samples) * _TEST_SHARE) // flags.batch * flags.batch)
    train_samples, test_samples = samples[:-held_out], samples[-held_out:]

    tensoropt.init()
    tensoropt.random.set_seed(flags.seed)
    ids = tensoropt.placeholder(tensoropt.int32, [flags.batch, flags.length], name="ids")
    targets = tensoropt.placeholder(tensoropt.int32, [flags.batch, flags.length], name="targets")
    logits = language_model(ids, vocabulary, flags)
    loss = tensoropt.softmax_cross_entropy(targets, logits)
    train_op = tensoropt.train.AdamOptimizer(flags.learning_rate).minimize(loss)
    prediction = tensoropt.argmax(logits, axis=-1)

    def test() -> dict[str, float]:
        """The share of characters that are predicted."""
        right = 0
        chosen = test_samples[: 8 * flags.batch]
        for start in range(0, len(chosen), flags.batch):
            batch = chosen[start : start + flags.batch]
            right += int(np.sum(tensoropt.run(prediction, {ids: batch[:, :-1]}) == batch[:, 1:]))
        return {"test_accuracy": right / chosen[:, 1:].size}

    training.train(flags, loss, train_op, {ids: train_samples[:, :-1], targets: train_samples[:, 1:]}, test)


if __name__ == "__main__":
    main()
