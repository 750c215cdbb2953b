"""ZeRO stage 2 (Rajbhandari et al. 2020): gradients and slots in pieces."""

from __future__ import annotations

from tensoropt.baselines.sharding import sharded
from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.space.edge_costs import BOTH, BOTH_BACK_EACH
from tensoropt.space.space import SearchSpace

__all__ = ["zero2"]


@register_baseline("zero2")
def zero2(space: SearchSpace) -> Frontier:
    """Stage 2, pieces of gradients and slots: what is updated is in pieces, what is computed with is whole.

    Gradients are reduced to the pieces (reduce_scatter) in each micro-batch and summed there; pieces are updated and
    gathered once in a step, and the gathered variables are kept until the backward pass has read them, with
    micro-batches that of the last one. Memory beside activations is that of the whole variables, as they are kept, and
    of pieces of variables, gradients and slots; ZeRO itself does without the piece of the variable, as it is a part of
    the whole one. Without micro-batches a variable that the backward pass does not read (a bias, a table) is not
    counted whole.

    Raises:
        PlanError: devices do not divide the batch, there is but one, or the search space has no alternatives, so that
            micro-batches reduce no gradients.
    """
    return sharded(space, "zero2", (BOTH_BACK_EACH, BOTH))
