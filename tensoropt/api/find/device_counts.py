"""Profiling: the fastest strategy on each of a range of device counts (TensorOpt section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensoropt.api.arguments import NUMBERS
from tensoropt.api.find.choosing import AUTO, PROFILING, fastest_that_fits, plan_that_holds
from tensoropt.api.find.planner import Planner
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import scaled, usual_counts
from tensoropt.errors import ClusterError, PlanError
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.search.options import MemoryLimit
from tensoropt.search.parallelism import ParallelismProfile, ParallelismRow
from tensoropt.stages import doing

__all__ = ["check_counts", "profile"]


def check_counts(devices: Sequence[Any]) -> tuple[int, ...]:
    """Device counts, ascending and each once.

    Raises:
        PlanError: none, or one that is no whole number above 0.
    """
    for count in devices:
        if isinstance(count, bool) or not isinstance(count, NUMBERS) or count % 1 or not 1 <= count < math.inf:
            raise PlanError(
                f"profile_strategies: devices must be whole numbers of at least 1, got {count!r} in {list(devices)}. "
                "Give for example [2, 4, 8]."
            )
    if not len(devices):
        raise PlanError(
            "profile_strategies: devices must have at least one count, got none. Leave it out for those of the cluster."
        )
    return tuple(sorted({int(count) for count in devices}))


def profile(
    planner: Planner,
    topology: Topology,
    counts: Sequence[int] | None,
    memory_bytes: float | None,
    price_per_device_hour: float | None,
    micro_batches: int | str = 1,
) -> ParallelismProfile:
    """Searches on each count.

    Args:
        planner: for the model, whose steps may be made of other micro-batches.
        topology: a cluster of the kind.
        counts: ascending; by default those of the cluster.
        memory_bytes: limit per device; by default the device's less the reserve.
        price_per_device_hour: in any unit.
        micro_batches: how many a step has; ``auto`` for as many as give the fastest plan where nothing fits without.

    Raises:
        MicroBatchError: a step cannot be split into so many.
    """
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    rows = []
    for count in usual_counts(topology) if counts is None else counts:
        doing(f"{count} device{'s' * (count > 1)}")
        part = _part(planner, topology, count)
        if isinstance(part, str):
            rows.append(ParallelismRow(count, reason=part))
        elif micro_batches == AUTO:
            rows.append(_fitting_row(planner, part, limit, price_per_device_hour))
        else:
            rows.append(_row(planner.with_steps(int(micro_batches)), part, limit, price_per_device_hour))
    return ParallelismProfile(topology.name, str(limit), planner.batch(), price_per_device_hour, tuple(rows))


def _part(planner: Planner, topology: Topology, count: int) -> Topology | str:
    """So many devices of a cluster, or why the model cannot be planned for them."""
    undivided = planner.undivided(count) or planner.misfit(count)
    if undivided is not None:
        return undivided
    try:
        return scaled(topology, count)
    except ClusterError as error:
        return str(error)


def _fitting_row(planner: Planner, part: Topology, limit: MemoryLimit, price: float | None) -> ParallelismRow:
    """The row of whole batches, or where they do not fit, of the number of micro-batches with the fastest plan."""
    whole = _row(planner, part, limit, price)
    if whole.reason is None:
        return whole

    def split(steps: Planner) -> ParallelismRow | None:
        row = _row(steps, part, limit, price)
        return row if row.reason is None else None

    return planner.fastest_split(part, limit, split, lambda row: row.time_s or 0.0) or whole


def _row(planner: Planner, part: Topology, limit: MemoryLimit, price: float | None) -> ParallelismRow:
    count = part.device_count
    bound, why = planner.least_possible(count)
    if bound > limit.limit_bytes:
        return ParallelismRow(count, reason=f"does not fit: {why}")
    fastest = fastest_that_fits(planner, part, PROFILING, limit)
    if fastest is not None:
        return _of_plan(planner, part, *fastest, price)
    least = planner.least_bytes(part)  # takes a fraction of the time of a frontier
    if least <= limit.limit_bytes:
        # Where a graph is too large for exact searches, the two may differ.
        least = float(planner.frontier(part).memory_bytes[0])
    if least > limit.limit_bytes:
        return ParallelismRow(
            count, reason=f"does not fit: the least that any strategy takes is {least:,.0f} bytes per device"
        )
    frontier = planner.frontier(part)
    best = frontier.best(limit.limit_bytes)
    return _of_plan(planner, part, *plan_that_holds(planner, part, frontier, best, PROFILING, limit), price)


def _of_plan(
    planner: Planner, topology: Topology, plan: Plan, point: FrontierPoint, price: float | None
) -> ParallelismRow:
    return ParallelismRow.of(
        topology.device_count,
        point.time_s,
        planner.network_seconds(topology, point),
        point.memory_bytes,
        plan.peak_bytes,
        batch=planner.batch(),
        price_per_device_hour=price,
        micro_batches=planner.micro_batches,
    )
