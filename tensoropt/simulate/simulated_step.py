"""The simulated training step of a strategy of a search space (FlexFlow section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.problem.frontier import FrontierPoint
from tensoropt.simulate.network import Network
from tensoropt.simulate.simulator import Simulator
from tensoropt.simulate.timeline import Timeline
from tensoropt.space.breakdown import Breakdown, levels_of
from tensoropt.space.space import SearchSpace

__all__ = ["network_of", "simulate", "step_seconds"]


def network_of(space: SearchSpace, *, overlap: bool = False) -> Network:
    """The task graphs of all strategies of a space (FlexFlow section 5.1).

    Args:
        space: of strategies.
        overlap: whether links move data while devices compute, as in FlexFlow's simulator. By default collectives keep
            devices busy, as when a strategy runs; devices that all do the same then take the sum of their tasks.
    """
    breakdown = Breakdown(space, overlap=overlap)
    return Network(breakdown.tables(), breakdown, space.mesh.shape, levels_of(space.cost.topology))


def simulate(
    space: SearchSpace, assignment: Sequence[int], *, network: Network | None = None, overlap: bool = False
) -> Timeline:
    """The simulated step of a strategy.

    Args:
        space: what the strategy is of.
        assignment: a configuration index for each of its operators.
        network: of the space, if it is at hand.
        overlap: see :func:`network_of`; a given network has its own.
    """
    found = Simulator(network_of(space, overlap=overlap) if network is None else network, assignment).timeline()
    return Timeline(
        found.tasks,
        found.makespan_s,
        tuple(op.name for op in space.operators),
        tuple(map(str, space.edges)),
        tuple(level.name for level in space.cost.topology.levels),
        space.mesh.size,
    )


def step_seconds(space: SearchSpace, point: FrontierPoint, *, overlap: bool) -> float:
    """Simulated seconds of a strategy of a space, whatever found it; task graphs are made once and kept with the space.

    Tasks keep all copies; what it takes to make some again is added in full.

    Args:
        space: of the strategy.
        point: the strategy.
        overlap: see :func:`network_of`.
    """
    keeping_all_s = float(space.problem.costs(np.array(point.assignment))[0][0])
    network = space.kept(network_of, overlap=overlap)
    return Simulator(network, point.assignment).makespan_s + max(0.0, point.time_s - keeping_all_s)
