"""BERT-large (Devlin et al. 2018), masked language model: every layer reads the attention mask."""

from __future__ import annotations

from typing import Any

import tensoropt
from examples.models.attention import attention, feed_forward, layer_norm

__all__ = ["bert_large"]


def bert_large(
    batch_size: int = 256,
    *,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    length: int = 128,
    predictions: int = 20,
    vocabulary: int = 30_528,
) -> Any:
    """Builds the model and its training step.

    The vocabulary of 30,522 is padded to a multiple of 32, as is usual, or it could hardly be split. The softmax over
    it shares the embedding. Without dropout, and without the prediction of the next sentence.

    Args:
        batch_size: sequences of a step.
        layers: how many.
        width: hidden size.
        heads: of attention; divides width.
        length: tokens of a sequence.
        predictions: masked tokens of a sequence.
        vocabulary: number of tokens.

    Returns:
        The loss, a scalar.
    """
    tokens = tensoropt.placeholder(tensoropt.int32, [batch_size, length], name="tokens")
    segments = tensoropt.placeholder(tensoropt.int32, [batch_size, length], name="segments")
    present = tensoropt.placeholder(tensoropt.float32, [batch_size, length], name="present")
    masked = tensoropt.placeholder(tensoropt.int32, [batch_size, predictions], name="masked")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size, predictions], name="labels")
    small = tensoropt.initializers.truncated_normal(stddev=0.02)
    gelu = tensoropt.nn.gelu
    embedding = tensoropt.get_variable("embedding", [vocabulary, width], initializer=small)
    segment = tensoropt.get_variable("segment_embedding", [2, width], initializer=small)
    position = tensoropt.get_variable("position_embedding", [length, width], initializer=small)
    # 0 for a token and -10,000 for padding, added to the scores of every layer.
    mask = tensoropt.reshape((present - 1.0) * 10_000.0, [batch_size, 1, 1, length])

    x = tensoropt.gather(embedding, tokens) + tensoropt.gather(segment, segments) + position
    x = layer_norm(x, "embedding_norm")
    for layer in range(layers):
        with tensoropt.variable_scope(f"layer{layer + 1}"):
            x = layer_norm(x + attention(x, x, heads, mask, bias=True), "attention_norm")
            x = layer_norm(x + feed_forward(x, 4 * width, gelu), "feed_forward_norm")
    x = tensoropt.gather(x, masked, batch_dims=1)
    x = layer_norm(tensoropt.layers.dense(x, width, activation=gelu, name="transform"), "transform_norm")
    zeros = tensoropt.initializers.zeros()
    bias = tensoropt.get_variable("vocabulary_bias", [vocabulary], initializer=zeros)
    logits = tensoropt.einsum("bpd,vd->bpv", x, embedding) + bias
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss
