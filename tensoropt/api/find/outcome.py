"""The outcome of a search in one line: the plan's speed beside data parallelism and one device."""

from __future__ import annotations

from typing import Any

from tensoropt.api.find.choosing import DATA_PARALLEL
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import MINI_PARALLELISM
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.search.finding import Found
from tensoropt.viz.canvas import bytes_unit, seconds_unit

__all__ = ["describe_outcome"]

_MINI_MEMORY = "mini_memory"
_HOST = "host"  # the level of it
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
    part = scaled(topology, devices) if plan.option == MINI_PARALLELISM else topology
    where = _where(part)
    if devices == 1:
        return f"{plan.option} on {where}: {_seconds(plan.time_s)} a step, {memory}"
    common = None if planner.is_pinned else _data_parallelism(planner, part)  # which holds all variables whole
    limit_bytes = float(str(plan.notes["memory_limit_bytes"]))
    alone_s = planner.alone_seconds(topology, limit_bytes)
    if alone_s is not None and alone_s <= plan.time_s * (1 + _ALIKE) and plan.option != _MINI_MEMORY:
        since = ""
        if common is not None:
            step_s = float(common.frontier.time_s[0])
            since = f", since data parallelism takes {_seconds(step_s)} a step, {_network(common)} to communicate"
        return (
            f"no gain from {'the second host' if where == '2 hosts' else where}{since}: {plan.option} is predicted to "
            f"take {_seconds(plan.time_s)} a step, one device {_seconds(alone_s)}; {memory}. Fewer ranks or a larger "
            "batch may serve better"
        )
    alone = "one device does not hold it" if alone_s is None else _beside(alone_s, plan, "one device")
    pipeline: Any = plan.notes.get("pipeline")
    if pipeline is not None:
        alone += f" by a pipeline of {pipeline['stages']} stages and {pipeline['micro_batches']} micro-batches"
        alone += f" in {plan.notes['rounds']} rounds" if "rounds" in plan.notes else ""
    beside = None
    if common is not None and plan.option != DATA_PARALLEL:
        fits = common.frontier.memory_bytes[0] <= limit_bytes
        step_s = float(common.frontier.time_s[0])
        beside = _beside(step_s, plan, "data parallelism") if fits else "data parallelism does not fit"
    said = f"{plan.option} on {where}: {_seconds(plan.time_s)} a step"
    said += f" of {plan.micro_batches} micro-batches" if plan.micro_batches > 1 and pipeline is None else ""
    said += f", {len(plan.again)} operators made again" if plan.again else ""
    return ", ".join(filter(None, (said, alone, beside, memory)))


def _where(topology: Topology) -> str:
    """The devices in words; hosts have names of their own where there are several."""
    devices = topology.device_count
    hosts = next((level.size for level in topology.levels if level.name == _HOST), 1)
    on_hosts = f"{hosts} hosts" if hosts > 1 else ""
    if devices == hosts > 1:
        return on_hosts
    return f"{devices} device{'s' * (devices > 1)}{' of ' * bool(on_hosts)}{on_hosts}"


def _data_parallelism(planner: Planner, topology: Topology) -> Found | None:
    """The strategy of data parallelism; None if it does not apply to the model."""
    try:
        return planner.find(topology, DATA_PARALLEL)
    except PlanError:
        return None


def _network(found: Found) -> str:
    """Seconds of a step in which devices communicate."""
    point = found.frontier.point(0)
    return _seconds(float(found.space.network_seconds(point.assignment, point.alternatives)[0]))


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
