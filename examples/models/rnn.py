"""Stacked LSTM for acoustic modelling (Sak et al. 2014), unrolled."""

from __future__ import annotations

from typing import Any

import tensoropt

__all__ = ["rnn"]


def rnn(
    batch_size: int = 256,
    *,
    layers: int = 6,
    hidden: int = 24 * 1024,
    steps: int = 20,
    states: int = 2000,
) -> Any:
    """Builds the model and its training step.

    Six layers of 24 × 1,024 units are exactly TensorOpt's 108 GiB: 8 · hidden² per layer. Each frame is classified
    into one of ``states`` context-dependent states; 2,000 is one of the sizes of Sak et al. All steps of a layer
    share its weights.

    A layer multiplies its whole input sequence at once; what goes from step to step is multiplied step by step.
    Gates are a dimension of their own, so that units may be split.

    Args:
        batch_size: sequences of a step.
        layers: how many.
        hidden: units of each, and features of a frame.
        steps: frames of a sequence, unrolled.
        states: classes of the softmax.

    Returns:
        The loss, a scalar.
    """
    frames = tensoropt.placeholder(tensoropt.float32, [batch_size, steps, hidden], name="frames")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size, steps], name="labels")
    x = frames
    for layer in range(layers):
        with tensoropt.variable_scope(f"layer{layer + 1}"):
            x = _lstm(x, hidden)
    logits = tensoropt.layers.dense(x, states, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


def _lstm(x: Any, hidden: int) -> Any:
    """All hidden states ``[batch, steps, hidden]`` of one layer; the first state is zero."""
    features, steps = x.shape[-1], x.shape[1]
    weights = tensoropt.get_variable("input_weights", [features, 4, hidden])
    recurrent = tensoropt.get_variable("recurrent_weights", [hidden, 4, hidden])
    bias = tensoropt.get_variable("bias", [4, hidden], initializer=tensoropt.initializers.zeros())
    given = tensoropt.unstack(tensoropt.einsum("btk,kgn->btgn", x, weights) + bias, axis=1)
    cell = state = None
    states = []
    for step in range(steps):
        gates = given[step]
        if state is not None:
            gates = gates + tensoropt.einsum("bk,kgn->bgn", state, recurrent)
        enter, forget, candidate, leave = tensoropt.unstack(gates, axis=1)
        added = tensoropt.sigmoid(enter) * tensoropt.tanh(candidate)
        cell = added if cell is None else tensoropt.sigmoid(forget) * cell + added
        state = tensoropt.sigmoid(leave) * tensoropt.tanh(cell)
        states.append(state)
    return tensoropt.stack(states, axis=1)
