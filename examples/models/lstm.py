"""Long short-term memory, unrolled: every step of a layer is a cell of its own, all with the same weights."""

from __future__ import annotations

from typing import Any

import tensoropt

__all__ = ["State", "lstm"]

State = tuple[Any, Any]
"""What goes from one step to the next: the cell and the output, ``[batch, hidden]`` each."""


def lstm(inputs: Any, hidden: int, start: State | None = None, *, name: str) -> tuple[list[Any], State]:
    """One layer over a sequence.

    Where inputs come step by step, a step multiplies its own, so that it may run as soon as the layer before it has
    made it. Inputs that are there from the beginning are multiplied at once. Gates are a dimension of their own, so
    that units may be split.

    Args:
        inputs: ``[batch, steps, features]``, or a list with ``[batch, features]`` for each step.
        hidden: units.
        start: the state before the first step; zero if omitted.
        name: of the variable scope; there are 4 · hidden · (features + hidden + 1) parameters.

    Returns:
        Per step the output ``[batch, hidden]``, and the state after the last one.
    """
    features = (inputs[0] if isinstance(inputs, list) else inputs).shape[-1]
    with tensoropt.variable_scope(name):
        weights = tensoropt.get_variable("input_weights", [features, 4, hidden])
        recurrent = tensoropt.get_variable("recurrent_weights", [hidden, 4, hidden])
        bias = tensoropt.get_variable("bias", [4, hidden], initializer=tensoropt.initializers.zeros())
    if isinstance(inputs, list):
        given = [tensoropt.einsum("bk,kgn->bgn", x, weights) for x in inputs]
    else:
        given = tensoropt.unstack(tensoropt.einsum("btk,kgn->btgn", inputs, weights), axis=1)
    cell, state = (None, None) if start is None else start
    outputs = []
    for gates in given:
        if state is not None:
            gates = gates + tensoropt.einsum("bk,kgn->bgn", state, recurrent)
        enter, forget, candidate, leave = tensoropt.unstack(gates + bias, axis=1)
        added = tensoropt.sigmoid(enter) * tensoropt.tanh(candidate)
        cell = added if cell is None else tensoropt.sigmoid(forget) * cell + added
        state = tensoropt.sigmoid(leave) * tensoropt.tanh(cell)
        outputs.append(state)
    return outputs, (cell, state)
