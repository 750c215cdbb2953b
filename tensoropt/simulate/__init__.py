"""The task graphs of strategies, and their simulation in full and by changes (FlexFlow section 5)."""

from __future__ import annotations

from tensoropt.simulate.network import Network as Network
from tensoropt.simulate.simulated_step import network_of as network_of
from tensoropt.simulate.simulated_step import simulate as simulate
from tensoropt.simulate.simulator import NO_LIMIT as NO_LIMIT
from tensoropt.simulate.simulator import Simulator as Simulator
from tensoropt.simulate.timeline import Resource as Resource
from tensoropt.simulate.timeline import Task as Task
from tensoropt.simulate.timeline import Timeline as Timeline

__all__ = ["NO_LIMIT", "Network", "Resource", "Simulator", "Task", "Timeline", "network_of", "simulate"]
