"""ZeRO stage 3 (Rajbhandari et al. 2020): variables in pieces too, gathered again in the backward pass."""

from __future__ import annotations

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.sharding import sharded
from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.space.edge_costs import BEFORE, BEFORE_BACK_EACH, BOTH, BOTH_BACK_EACH
from tensoropt.space.space import SearchSpace

__all__ = ["zero3"]


@register_baseline("zero3")
def zero3(space: SearchSpace) -> Frontier:
    """Stage 3, pieces of variables too: they are gathered when they are read, and again in the backward pass.

    So it is in each micro-batch, which also reduces gradients to the pieces and sums them there. What several operators
    read (the weights of a recurrent layer) is gathered once, for all of them, and kept.

    Raises:
        PlanError: devices do not divide the batch, there is but one, or the search space has no tensor reuse, so that
            nothing is gathered again.
    """
    if not space.reuse:
        raise does_not_apply(
            "zero3",
            "variables are gathered again in the backward pass, and this search space keeps what was gathered",
            "Make it with SearchSpace(reuse=True).",
        )
    return sharded(space, "zero3", (BEFORE_BACK_EACH, BEFORE, BOTH_BACK_EACH, BOTH))
