"""What strategies that put layers on devices have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.baselines.following import Actions, follow, placed
from tensoropt.baselines.layers import stages
from tensoropt.graph.operator import Operator
from tensoropt.plan.configuration import Configuration, at
from tensoropt.search.result import Frontier
from tensoropt.search.space import SearchSpace

__all__ = ["on_devices", "placed_strategy"]

_INPUTS = ("Placeholder", "PlaceholderWithDefault")


def placed_strategy(
    space: SearchSpace, name: str, configurations: Callable[[SearchSpace], dict[str, Configuration]]
) -> Frontier:
    """The strategy of a baseline that places operators.

    Raises:
        PlanError: what ``configurations`` says, or the space places nothing.
    """
    began = time.perf_counter()
    chosen = configurations(space)
    if not space.coarsening.placed_blocks:
        raise does_not_apply(
            name,
            "it places operators on parts of the devices, and this search space has only what runs on all of them",
            "Make it with SearchSpace(placements=True).",
        )
    return single(space.problem, space.assignment(chosen), began)


def on_devices(space: SearchSpace, shared: tuple[int, ...]) -> dict[str, Configuration]:
    """Layers on the devices along the other mesh axes; the batch is split over ``shared`` ones.

    The configurations are given by operator, whether the space has them or not.
    """
    mesh = space.mesh
    inner = tuple(axis for axis in mesh.axes if axis not in shared)
    stage_of = stages(space, mesh.extent(inner))
    # Coordinates of a device along the inner axes, the last one fastest.
    coordinates = {
        stage: [at(mesh.coordinates(rank)[axis]) for axis in inner]
        for stage, rank in enumerate(mesh.devices_at([(axis, 0) for axis in shared]))
    }

    def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
        if op.type == "Sink":  # every device wants to know the loss
            return [placed(followed, inner, None)]
        if op.type in _INPUTS and "d0" in space.rules[op.name].split:
            followed = placed(followed, shared, "d0")
        for axis, action in zip(inner, coordinates[stage_of[op.name]], strict=True):
            followed = placed(followed, [axis], action)
        return [followed]

    return follow(space, decide, beyond=True).configurations
