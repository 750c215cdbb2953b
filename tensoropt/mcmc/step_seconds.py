"""What a step of a strategy takes by the simulator, whatever found it."""

from __future__ import annotations

import numpy as np

from tensoropt.mcmc.search import network_of
from tensoropt.mcmc.simulator import Simulator
from tensoropt.search.result import FrontierPoint
from tensoropt.search.space import SearchSpace

__all__ = ["step_seconds"]


def step_seconds(space: SearchSpace, point: FrontierPoint, *, overlap: bool) -> float:
    """Simulated seconds of a strategy of a space, whose tasks are made once and kept with it.

    Tasks keep all copies; what it takes to make some again is added in full.

    Args:
        space: of the strategy.
        point: the strategy.
        overlap: see :func:`tensoropt.mcmc.network_of`.
    """
    keeping_all_s = float(space.problem.costs(np.array(point.assignment))[0][0])
    network = space.kept(network_of, overlap=overlap)
    return Simulator(network, point.assignment).makespan_s + max(0.0, point.time_s - keeping_all_s)
