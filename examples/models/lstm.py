"""Long short-term memory, unrolled: every step of a layer is a cell of its own, all with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["State", "lstm"]

State = tuple[Any, Any]
"""What goes from one step to the next: the cell and the output, ``[batch, hidden]`` each."""


def lstm(inputs: Sequence[Any], hidden: int, start: State | None = None, *, name: str) -> tuple[list[Any], State]:
    """One layer over a sequence.

    A step multiplies its own input, so a step of the next layer may run as soon as this layer's is done. Gates are a
    dimension of their own, so that units may be split.

    Args:
        inputs: per step ``[batch, features]``.
        hidden: units.
        start: the state before the first step; zero if omitted.
        name: of the variable scope; there are 4 · hidden · (features + hidden + 1) parameters.

    Returns:
        Per step the output ``[batch, hidden]``, and the state after the last one.
    """
    with tensoropt.variable_scope(name):
        weights = tensoropt.get_variable("input_weights", [inputs[0].shape[-1], 4, hidden])
        recurrent = tensoropt.get_variable("recurrent_weights", [hidden, 4, hidden])
        bias = tensoropt.get_variable("bias", [4, hidden], initializer=tensoropt.initializers.zeros())
    cell, state = (None, None) if start is None else start
    outputs = []
    for x in inputs:
        gates = tensoropt.einsum("bk,kgn->bgn", x, weights) + bias
        if state is not None:
            gates = gates + tensoropt.einsum("bk,kgn->bgn", state, recurrent)
        enter, forget, candidate, leave = tensoropt.unstack(gates, axis=1)
        added = tensoropt.sigmoid(enter) * tensoropt.tanh(candidate)
        cell = added if cell is None else tensoropt.sigmoid(forget) * cell + added
        state = tensoropt.sigmoid(leave) * tensoropt.tanh(cell)
        outputs.append(state)
    return outputs, (cell, state)
