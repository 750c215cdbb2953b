"""ZeRO stage 1 (Rajbhandari et al. 2020): slots in pieces."""

from __future__ import annotations

from tensoropt.baselines.sharding import sharded
from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.space.edge_costs import BOTH
from tensoropt.space.space import SearchSpace

__all__ = ["zero1"]


@register_baseline("zero1")
def zero1(space: SearchSpace) -> Frontier:
    """Stage 1, pieces of slots: micro-batches sum whole gradients, which are reduced to the pieces once a step.

    What is updated is in pieces, which are gathered once in a step and kept: a reduce_scatter and an all_gather of all
    variables, as many bytes as data parallelism sends. ZeRO's whole variables are those that were gathered; the piece
    that is stored beside them is the price of storing a variable with its slots. Without micro-batches there are no
    sums to keep, and this is stage 2.

    Raises:
        PlanError: devices do not divide the batch, or there is but one.
    """
    return sharded(space, "zero1", (BOTH,))
