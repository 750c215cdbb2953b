"""Translation by LSTM layers with attention (Bahdanau et al. 2014), with FlexFlow's sizes."""

from __future__ import annotations

from typing import Any

import tensoropt
from examples.models.lstm import State, lstm

__all__ = ["nmt"]


def nmt(
    batch_size: int = 256,
    *,
    layers: int = 2,
    hidden: int = 1024,
    steps: int = 40,
    vocabulary: int = 32_000,
) -> Any:
    """Builds encoder, decoder and the training step.

    FlexFlow (section 8.1, figure 13) gives layers, units, 40 unrolled steps and 64 pairs per device; attention is on
    top of the decoder's last layer. The vocabulary is that of Wu et al. (2016), whom it follows. Source and target have
    embeddings of their own, and the decoder begins with the encoder's last state. Without dropout.

    Args:
        batch_size: pairs of sentences of a step.
        layers: of the encoder, and as many of the decoder.
        hidden: units of each, and length of a word's vector.
        steps: words of a sentence, unrolled.
        vocabulary: number of words of each language.

    Returns:
        The loss, a scalar.
    """
    source = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="source")
    target = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="target")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="labels")
    outputs: Any = tensoropt.layers.embedding(source, vocabulary, hidden, name="source_embedding")
    states: list[State] = []
    for layer in range(1, layers + 1):
        outputs, state = lstm(outputs, hidden, name=f"encoder{layer}")
        states.append(state)
    memory = tensoropt.stack(outputs, axis=1)
    outputs = tensoropt.layers.embedding(target, vocabulary, hidden, name="target_embedding")
    for layer in range(1, layers + 1):
        outputs, _ = lstm(outputs, hidden, states[layer - 1], name=f"decoder{layer}")
    x = _attended(tensoropt.stack(outputs, axis=1), memory)
    logits = tensoropt.layers.dense(x, vocabulary, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


def _attended(x: Any, memory: Any) -> Any:
    """Attention over ``memory`` (Bahdanau et al., appendix A.1.2), joined to ``x``: both ``[batch, steps, width]``."""
    batch, steps, width = x.shape
    with tensoropt.variable_scope("attention"):
        query = tensoropt.layers.dense(x, width, use_bias=False, name="query")
        key = tensoropt.layers.dense(memory, width, use_bias=False, name="key")
        weights = tensoropt.get_variable("weights", [width])
        pairs = tensoropt.reshape(query, [batch, steps, 1, width]) + tensoropt.reshape(key, [batch, 1, steps, width])
        scores = tensoropt.einsum("bqkn,n->bqk", tensoropt.tanh(pairs), weights)
        context = tensoropt.einsum("bqk,bkn->bqn", tensoropt.nn.softmax(scores), memory)
        # The joined vector times one matrix, without joining, which units could not be split through.
        given = tensoropt.layers.dense(x, width, use_bias=False, name="given")
        found = tensoropt.layers.dense(context, width, name="found")
        return tensoropt.tanh(given + found)
