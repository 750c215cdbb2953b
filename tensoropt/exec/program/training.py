"""What an executor needs to know of a training step: plain data, and a way to make TensorFlow's optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensoropt.graph.spec import TensorId

__all__ = ["Training"]


@dataclass(frozen=True, slots=True)
class Training:
    """One training step.

    Attributes:
        op: the operation that the user runs for it.
        loss: the operator that holds the whole loss on every device (a ``Sink``).
        variables: names of the trained variables.
        make_optimizer: gives a ``tf.compat.v1.train.Optimizer`` for hyperparameters that the graph computes.
        parameters: those hyperparameters, by argument; each a ``Sink``.
        optimizer: steps with equal numbers share one optimizer and its slots.
        global_step: variable that the step adds 1 to.
        after: operations that run with the step.
    """

    op: str
    loss: str
    variables: tuple[str, ...]
    make_optimizer: Callable[[Mapping[str, Any]], Any]
    parameters: Mapping[str, TensorId]
    optimizer: int = 0
    global_step: str | None = None
    after: tuple[str, ...] = ()
