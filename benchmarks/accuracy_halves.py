"""How well measured steps agree with themselves: no prediction can be asked to agree better with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

__all__ = ["TURN_STEPS", "agreement_of_halves", "best_possible"]

TURN_STEPS = 3
"""Strategies take turns, with so many steps each: a machine whose speed drifts is fair to all."""


def agreement_of_halves(strategies: list[dict[str, Any]]) -> float | None:
    """Spearman's rank correlation of the median steps of every other turn with those of the turns between.

    Args:
        strategies: reports of them, with ``steps_s``.

    Returns:
        None if there are fewer than three strategies, or two turns of one.
    """
    halves: list[list[float]] = []
    for entry in strategies:
        steps_s = np.asarray(entry.get("steps_s", ()))
        turns = np.arange(len(steps_s)) // TURN_STEPS
        if len(steps_s) == 0 or turns[-1] < 1:
            return None
        halves.append([float(np.median(steps_s[turns % 2 == half])) for half in (0, 1)])
    return float(spearmanr(*np.transpose(halves))[0]) if len(halves) > 2 else None


def best_possible(agreement: float) -> float:
    """The correlation with all that was measured that the truth itself would have (Spearman and Brown).

    The two halves are as far from the truth as from one another; the whole is nearer.
    """
    return float(np.sqrt(2 * agreement / (1 + agreement))) if agreement > 0 else 0.0
