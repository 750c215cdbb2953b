"""A baseline in one file. Laid into `tensoropt/baselines` as `no_split.py`, it is there, also in ``compare()``.

It is a function of a `SearchSpace`, which knows the graph, the mesh of devices, and what configurations cost.
"""

from __future__ import annotations

import time

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.plan.configuration import Configuration
from tensoropt.problem import Frontier
from tensoropt.search import register_baseline
from tensoropt.space.space import SearchSpace


@register_baseline("no_split")
def no_split(space: SearchSpace) -> Frontier:
    """Every device computes everything, of inputs that it gathers.

    Raises:
        PlanError: there is but one device.
    """
    began = time.perf_counter()
    if space.mesh.size == 1:
        raise does_not_apply("no_split", "one device has nothing to split", "Use more devices.")
    whole = Configuration((None,) * len(space.mesh.axes))
    # Inputs are fed in pieces: they have one configuration only.
    chosen = {
        op.name: whole if whole in space.choices(op.name) else space.choices(op.name)[0] for op in space.operators
    }
    return single(space.problem, space.assignment(chosen), began)
