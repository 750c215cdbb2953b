"""Strategies that put layers on devices: model parallelism, and GNMT's of it inside of hosts (Wu et al. 2016)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.baselines.following import Actions, follow, placed
from tensoropt.baselines.layers import is_recurrent, stages
from tensoropt.graph.operator import Operator
from tensoropt.plan.configuration import Configuration, at
from tensoropt.search.result import Frontier
from tensoropt.search.space import SearchSpace

__all__ = ["PLACED", "gnmt", "gnmt_configurations", "model_parallel", "model_parallel_configurations"]

_INPUTS = ("Placeholder", "PlaceholderWithDefault")


def model_parallel(space: SearchSpace) -> Frontier:
    """Every device has some consecutive layers, whole, and computes them for the whole batch.

    The first devices have the first layers. Predicted times add up as if one device computed after another; how far
    they overlap, as steps of recurrent layers and branches do, a simulator tells.

    Raises:
        PlanError: there is but one device, or the space places nothing.
    """
    return _placed(space, "model_parallel", model_parallel_configurations)


def gnmt(space: SearchSpace) -> Frontier:
    """The expert strategy for recurrent networks with which FlexFlow compares (section 8.1, after Wu et al. 2016).

    Hosts share the batch; the devices of each have some consecutive layers, so that steps of one layer run beside those
    of others. The cluster's outermost level is its hosts, unless it has but one level.

    Raises:
        PlanError: the graph has no recurrent layer, hosts have one device each, or the space places nothing.
    """
    return _placed(space, "gnmt", gnmt_configurations)


def model_parallel_configurations(space: SearchSpace) -> dict[str, Configuration]:
    """:func:`model_parallel` by operator, whether the space has these configurations or not."""
    if space.mesh.size == 1:
        raise does_not_apply("model_parallel", "one device has all layers", "Use more devices.")
    return _on_devices(space, ())


def gnmt_configurations(space: SearchSpace) -> dict[str, Configuration]:
    """:func:`gnmt` by operator, whether the space has these configurations or not."""
    if not is_recurrent(space):
        raise does_not_apply(
            "gnmt",
            "it is for recurrent networks, and no weights of the graph are used step after step",
            "Use 'one_weird_trick' for convolutions, 'megatron' or 'mesh_tensorflow_hybrid' for Transformers.",
        )
    topology = space.cost.topology
    hosts = tuple(axis for axis in space.mesh.axes if topology.axis_level(axis) == 0 and len(topology.levels) > 1)
    if hosts == space.mesh.axes:
        raise does_not_apply(
            "gnmt", f"hosts of {topology.name} have one device each, which has all layers", "Use 'data_parallel'."
        )
    return _on_devices(space, hosts)


PLACED: Mapping[str, Callable[[SearchSpace], dict[str, Configuration]]] = MappingProxyType(
    {"model_parallel": model_parallel_configurations, "gnmt": gnmt_configurations}
)
"""Baselines whose configurations a search space has only with placements, or if it is made of nothing else."""


def _placed(
    space: SearchSpace, name: str, configurations: Callable[[SearchSpace], dict[str, Configuration]]
) -> Frontier:
    began = time.perf_counter()
    chosen = configurations(space)
    if not space.coarsening.placed_blocks:
        raise does_not_apply(
            name,
            "it places operators on parts of the devices, and this search space has only what runs on all of them",
            "Make it with SearchSpace(placements=True).",
        )
    return single(space.problem, space.assignment(chosen), began)


def _on_devices(space: SearchSpace, shared: tuple[int, ...]) -> dict[str, Configuration]:
    """Layers on the devices along the other mesh axes; the batch is split over ``shared`` ones."""
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
