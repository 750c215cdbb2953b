"""Lower bounds on all strategies of a problem: a line of time and memory for each of several pairs of weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensoropt.problem.arrays import FloatArray

__all__ = ["LowerBounds"]


@dataclass(frozen=True, slots=True, eq=False)
class LowerBounds:
    """Lower bounds of all strategies (Lagrangian ones: of time where memory has a price).

    Every strategy has ``time_weights * time_s + memory_weights * memory_bytes >= costs``, to the rounding errors of
    sums. The first pair is time alone, the second memory alone.

    Attributes:
        time_weights: per second, ``(W,)``.
        memory_weights: per byte, ``(W,)``.
        costs: ``(W,)``.
    """

    time_weights: FloatArray
    memory_weights: FloatArray
    costs: FloatArray

    def least_time_s(self, memory_bytes: FloatArray) -> FloatArray:
        """The least time that a strategy of so much memory may take; of any, where that is infinite."""
        return _least(self.time_weights, self.memory_weights, self.costs, memory_bytes)

    def least_memory_bytes(self, time_s: FloatArray) -> FloatArray:
        """The least memory that a strategy of so much time may take; of any, where that is infinite."""
        return _least(self.memory_weights, self.time_weights, self.costs, time_s)


def _least(weights: FloatArray, others: FloatArray, costs: FloatArray, given: FloatArray) -> FloatArray:
    some = weights > 0
    alone = float((costs[some] / weights[some])[others[some] == 0].max())
    finite = np.where(np.isfinite(given), given, 0.0)
    least = ((costs[some] - others[some] * finite[:, None]) / weights[some]).max(axis=1)
    result: FloatArray = np.where(np.isfinite(given), np.maximum(least, alone), alone)
    return result
