"""GNMT's strategy for recurrent networks (Wu et al. 2016): hosts share the batch, devices of a host its layers."""

from __future__ import annotations

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.placement import on_devices, register_placed
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace
from tensoropt.space.stages import is_recurrent

__all__ = ["gnmt"]


@register_placed("gnmt")
def gnmt(space: SearchSpace) -> dict[str, Configuration]:
    """The expert strategy for recurrent networks with which FlexFlow compares (section 8.1, after Wu et al. 2016).

    Hosts share the batch; the devices of each have some consecutive layers, so that steps of one layer run beside those
    of others. The cluster's outermost level is its hosts, unless it has but one level.

    Raises:
        PlanError: the graph has no recurrent layer, or hosts have one device each.
    """
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
    return on_devices(space, hosts)
