"""ZeRO stage 1 (Rajbhandari et al. 2020), which cannot be expressed here."""

from __future__ import annotations

from typing import NoReturn

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.search.registry import register_baseline
from tensoropt.space.space import SearchSpace

__all__ = ["zero1"]


@register_baseline("zero1")
def zero1(space: SearchSpace) -> NoReturn:
    """Stage 1, pieces of the optimizer's slots only.

    Raises:
        PlanError: always. A variable, its gradient and its slots are stored in one layout here (TensorOpt section 3),
            so one cannot be in pieces while the others are whole.
    """
    raise does_not_apply(
        "zero1",
        "it stores optimizer slots in pieces beside whole variables and gradients, and a variable is stored here in "
        "one layout with its gradient and slots",
        "Use 'zero2', which stores less and moves as much, or 'data_parallel'.",
    )
