"""ToFu (Wang et al. 2019) as TensorOpt simulates it: every tensor is split over all devices, none is replicated."""

from __future__ import annotations

import time

import numpy as np

from tensoropt.baselines.baseline import alternatives_of, fixed_alternatives, single
from tensoropt.baselines.optcnn import fastest
from tensoropt.graph.operator import Operator
from tensoropt.problem.frontier import Frontier
from tensoropt.problem.problem import IntArray
from tensoropt.problem.restriction import restricted
from tensoropt.search.registry import register_baseline
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["tofu"]

# The alternative of an edge that keeps the copy before a reshard, of (both, before, after).
_BEFORE = 1


@register_baseline("tofu")
def tofu(space: SearchSpace) -> Frontier:
    """The fastest strategy in which no tensor that is there for longer than an operator runs is replicated.

    As TensorOpt says of its own simulation (section 5.1): "splitting all the tensors among all the devices and
    disabling tensor replication". Variables and outputs are split along every mesh axis, as far as their sizes
    allow. What an operator needs beyond its pieces it fetches when it runs, and again in the backward pass where the
    space has that alternative.
    """
    began = time.perf_counter()
    problem = fixed_alternatives(with_repeated_cells(space), _BEFORE)
    smaller, kept = restricted(problem, [_most_split(space, op) for op in space.operators])
    found = fastest(smaller)
    assignment = [int(indices[k]) for indices, k in zip(kept, found.assignments[0].tolist(), strict=True)]
    return single(space.problem, assignment, began, alternatives_of(space.problem, assignment, _BEFORE))


def _most_split(space: SearchSpace, op: Operator) -> IntArray:
    """The configurations that leave the fewest bytes of outputs on each device."""
    rule = space.rules[op.name]
    scores = []
    for configuration in space.choices(op.name):
        score = 0.0
        for index, spec in enumerate(op.outputs):
            value = configuration.output_layouts(rule, index).value
            score += max(1, spec.itemsize) * spec.elements / space.mesh.extent(value.used_axes)
        scores.append(score)
    return np.flatnonzero(np.array(scores) <= min(scores) * (1 + 1e-9))
