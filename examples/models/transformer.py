"""Transformer for translation (Vaswani et al. 2017), with TensorOpt's parameter sizes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tensoropt
from examples.models.attention import attention, feed_forward, layer_norm

__all__ = ["transformer", "transformer_s"]


def transformer(
    batch_size: int = 256,
    *,
    layers: int = 6,
    width: int = 3840,
    heads: int = 16,
    feed_forward_factor: int = 4,
    length: int = 64,
    vocabulary: int = 32_000,
) -> Any:
    """Builds encoder, decoder and the training step.

    TensorOpt gives only the size, and that it follows from the hidden size (section 5.1). Layers, heads and vocabulary
    are those of "Transformer (big)" and its English-French data; source, target and softmax share one embedding,
    as there. A length of 64 has about the memory of table 1 on one device. Without dropout.

    Args:
        batch_size: pairs of sentences of a step.
        layers: of the encoder, and as many of the decoder.
        width: hidden size.
        heads: of attention; divides width.
        feed_forward_factor: hidden size of the feed-forward layers over width.
        length: tokens of a sentence.
        vocabulary: size of the shared vocabulary.

    Returns:
        The loss, a scalar.
    """
    source = tensoropt.placeholder(tensoropt.int32, [batch_size, length], name="source")
    target = tensoropt.placeholder(tensoropt.int32, [batch_size, length], name="target")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size, length], name="labels")
    small = tensoropt.initializers.random_normal(stddev=width**-0.5)
    embedding = tensoropt.get_variable("embedding", [vocabulary, width], initializer=small)
    positions = tensoropt.constant(_positions(length, width))
    hidden = feed_forward_factor * width

    def block(x: Any, change: Any, name: str) -> Any:
        return layer_norm(x + change, f"{name}_norm")

    x = tensoropt.gather(embedding, source) * width**0.5 + positions
    for layer in range(layers):
        with tensoropt.variable_scope(f"encoder{layer + 1}"):
            x = block(x, attention(x, x, heads), "attention")
            x = block(x, feed_forward(x, hidden, tensoropt.nn.relu), "feed_forward")
    memory = x
    future = tensoropt.constant(np.triu(np.full([length, length], -1e9, np.float32), k=1))
    x = tensoropt.gather(embedding, target) * width**0.5 + positions
    for layer in range(layers):
        with tensoropt.variable_scope(f"decoder{layer + 1}"):
            x = block(x, attention(x, x, heads, future), "attention")
            x = block(x, attention(x, memory, heads, name="source_attention"), "source_attention")
            x = block(x, feed_forward(x, hidden, tensoropt.nn.relu), "feed_forward")
    logits = tensoropt.einsum("bld,vd->blv", x, embedding)
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


transformer_s = functools.partial(transformer, width=2688)
"""The smaller one of TensorOpt's section 5.3, with 4.8 GiB of parameters, which Horovod can run."""


def _positions(length: int, width: int) -> np.ndarray:
    """Sines and cosines of positions (section 3.5)."""
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates[None, :]
    result = np.empty((length, width), np.float32)
    result[:, 0::2], result[:, 1::2] = np.sin(angles), np.cos(angles)
    return result
