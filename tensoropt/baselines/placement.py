"""Helpers that baselines share which place layers on devices."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration, at
from tensoropt.plan.places import is_everywhere
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, register
from tensoropt.space.propagation import Actions, follow, placed
from tensoropt.space.space import SearchSpace
from tensoropt.space.stages import stages

__all__ = ["on_devices", "register_placed"]

_Placed = TypeVar("_Placed", bound=Callable[[SearchSpace], dict[str, Configuration]])


def register_placed(name: str) -> Callable[[_Placed], _Placed]:
    """Declares what gives configurations by operator, whether a space has them or not, as the baseline ``name``.

    With all that place operators a space would be too large to price, so each strategy has one of its own.
    """

    def add(configurations: _Placed) -> _Placed:
        @functools.wraps(configurations)
        def run(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
            began = time.perf_counter()
            chosen = configurations(space)
            return Found.of_one_strategy(space, chosen, time.perf_counter() - began)

        register(Finder(name, "baseline", "trade_off", run, places=True, simulates=True))
        return configurations

    return add


def on_devices(space: SearchSpace, shared: tuple[int, ...]) -> dict[str, Configuration]:
    """Layers on the devices along the other mesh axes; the batch is split over ``shared`` ones.

    The configurations are given by operator, whether the space has them or not.
    """
    mesh = space.mesh
    inner = tuple(axis for axis in mesh.axes if axis not in shared)
    stage_of = stages(space, inner)
    # Coordinates of a device along the inner axes, the last one fastest.
    coordinates = {
        stage: [at(mesh.coordinates(rank)[axis]) for axis in inner]
        for stage, rank in enumerate(mesh.devices_at([(axis, 0) for axis in shared]))
    }

    def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
        if traits(op).is_sink or is_everywhere(space.graph, op):  # every device wants to know the loss
            return [placed(followed, inner, None)]
        if traits(op).is_input and "d0" in space.rules[op.name].split:
            followed = placed(followed, shared, "d0")
        for axis, action in zip(inner, coordinates[stage_of[op.name]], strict=True):
            followed = placed(followed, [axis], action)
        return [followed]

    return follow(space, decide, beyond=True).configurations
