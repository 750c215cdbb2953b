"""Model parallelism: every device has some layers."""

from __future__ import annotations

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.placement import on_devices, register_placed
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace

__all__ = ["model_parallel"]


@register_placed("model_parallel")
def model_parallel(space: SearchSpace) -> dict[str, Configuration]:
    """Every device has some consecutive layers, whole, and computes them for the whole batch.

    The first devices have the first layers. Predicted times add up as if one device computed after another; how far
    they overlap, as steps of recurrent layers and branches do, a simulator tells.

    Raises:
        PlanError: there is but one device.
    """
    if space.mesh.size == 1:
        raise does_not_apply("model_parallel", "one device has all layers", "Use more devices.")
    return on_devices(space, ())
