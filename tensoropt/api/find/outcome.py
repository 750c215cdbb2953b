"""The outcome of a search in one line: the plan's speed beside data parallelism and one device."""

from __future__ import annotations

from tensoropt.api.find.choosing import DATA_PARALLEL
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import MINI_PARALLELISM
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.viz.canvas import bytes_unit, seconds_unit

__all__ = ["describe_outcome"]

_MINI_MEMORY = "mini_memory"
# Predictions that differ by less are the same to people.
_ALIKE = 0.005


def describe_outcome(planner: Planner, topology: Topology, plan: Plan) -> str:
    """The line, all of it predicted.

    Args:
        planner: that found the plan.
        topology: the devices that could have been used.
        plan: for them, or for some of them.

    Example: ``mini_time on 4 devices: 38 ms a step, 1.2 times as fast as one device, 1.6 times as fast as data
    parallelism, 0.9 GiB a device``. One device comes first: who beats data parallelism need not gain.
    """
    devices, memory = plan.mesh.size, f"{_bytes(plan.memory_bytes)} a device"
    subject = f"{plan.option} on {devices} device{'s' * (devices > 1)}"
    if devices == 1:
        return f"{subject}: {_seconds(plan.time_s)} a step, {memory}"
    alone_s = planner.alone_seconds(topology, float(str(plan.notes["memory_limit_bytes"])))
    if alone_s is not None and alone_s <= plan.time_s * (1 + _ALIKE) and plan.option != _MINI_MEMORY:
        return (
            f"no gain from {devices} devices: {plan.option} is predicted to take {_seconds(plan.time_s)} a step, one "
            f"device {_seconds(alone_s)}; {memory}. Fewer ranks or a larger batch may serve better"
        )
    alone = "one device does not hold it" if alone_s is None else _beside(alone_s, plan, "one device")
    beside = None
    if not planner.is_pinned and plan.option != DATA_PARALLEL:  # which holds all variables whole
        try:
            part = scaled(topology, devices) if plan.option == MINI_PARALLELISM else topology
            common_s = float(planner.find(part, DATA_PARALLEL).frontier.time_s[0])
        except PlanError:
            pass  # data parallelism does not apply to the model
        else:
            beside = _beside(common_s, plan, "data parallelism")
    return ", ".join(filter(None, (f"{subject}: {_seconds(plan.time_s)} a step", alone, beside, memory)))


def _beside(other_s: float, plan: Plan, other: str) -> str:
    """Returns how fast the plan is, beside another way."""
    ratio = other_s / plan.time_s
    return f"as fast as {other}" if abs(ratio - 1) <= _ALIKE else f"{ratio:.3g} times as fast as {other}"


def _seconds(seconds: float) -> str:
    return _in_unit(seconds, seconds_unit([seconds]))


def _bytes(size: float) -> str:
    return _in_unit(size, bytes_unit([size]))


def _in_unit(value: float, unit: tuple[float, str]) -> str:
    return f"{value / unit[0]:.3g} {unit[1]}"
