"""Language model of stacked LSTM layers (Zaremba et al. 2014), with FlexFlow's sizes."""

from __future__ import annotations

from typing import Any

import tensoropt
from examples.models.lstm import lstm

__all__ = ["rnnlm"]


def rnnlm(
    batch_size: int = 256,
    *,
    layers: int = 2,
    hidden: int = 2048,
    embedding: int | None = None,
    steps: int = 40,
    vocabulary: int = 10_000,
) -> Any:
    """Builds the model and its training step.

    FlexFlow (section 8.1) gives layers, units, 40 unrolled steps, 64 sequences per device and Penn Treebank, which has
    10,000 words. PaSE's data, the Billion Word benchmark, has 793,471. Without dropout.

    Args:
        batch_size: sequences of a step.
        layers: how many.
        hidden: units of each.
        embedding: length of a word's vector; as many as units if omitted, as Zaremba et al. have it.
        steps: words of a sequence, unrolled.
        vocabulary: number of words.

    Returns:
        The loss, a scalar.
    """
    words = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="words")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="labels")
    outputs: Any = tensoropt.layers.embedding(words, vocabulary, embedding or hidden, name="embedding")
    for layer in range(1, layers + 1):
        outputs, _ = lstm(outputs, hidden, name=f"layer{layer}")
    logits = tensoropt.layers.dense(tensoropt.stack(outputs, axis=1), vocabulary, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(1.0).minimize(loss)
    return loss
