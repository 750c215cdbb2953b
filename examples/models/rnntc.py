"""Text classification by stacked LSTM layers, with FlexFlow's sizes."""

from __future__ import annotations

from typing import Any

import tensoropt
from examples.models.lstm import lstm

__all__ = ["rnntc"]


def rnntc(
    batch_size: int = 256,
    *,
    layers: int = 4,
    hidden: int = 1024,
    embedding: int = 300,
    steps: int = 40,
    vocabulary: int = 18_816,
    classes: int = 2,
) -> Any:
    """Builds the model and its training step.

    FlexFlow (section 8.1) gives layers, units, 40 unrolled steps and 64 texts per device, and cites Kim (2014) for the
    rest: movie reviews are positive or negative, words have vectors of 300 numbers, and there are 18,765 of them, here
    padded to a multiple of 64, or the table could hardly be split. The last output is classified.

    Args:
        batch_size: texts of a step.
        layers: how many.
        hidden: units of each.
        embedding: length of a word's vector.
        steps: words of a text, unrolled.
        vocabulary: number of words.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    words = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="words")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")
    outputs: Any = tensoropt.layers.embedding(words, vocabulary, embedding, name="embedding")
    for layer in range(1, layers + 1):
        outputs, _ = lstm(outputs, hidden, name=f"layer{layer}")
    logits = tensoropt.layers.dense(outputs[-1], classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss
