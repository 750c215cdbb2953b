"""Measuring a table of collectives within a time budget.

Knows no MPI: what runs one collective, and how ranks agree, is passed in.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster.profile import COLLECTIVE_KINDS, CollectiveProfile, ProfileEntry
from tensoropt.cluster.topology import Level, Topology

__all__ = ["Measure", "Synchronisation", "fitted_levels", "measure_profile"]

# Runs one collective over this rank's group of factor-mesh axes, and returns when its output is there. The
# array is this rank's float32 input buffer: of shape (members, elements) for reduce_scatter and all_to_all,
# else (elements,).
Measure = Callable[[str, tuple[int, ...], NDArray[np.float32]], object]

SIZES_BYTES = tuple(2**exponent for exponent in range(10, 27, 2))
_REPETITIONS = 5
_MIN_REPETITION_S = 1e-3  # short collectives run many times between two readings of the clock
_MAX_CALLS = 50


class Synchronisation(Protocol):
    """How ranks stay together while they measure."""

    def barrier(self) -> None:
        """Return when all ranks have come here."""

    def agree(self, values: Sequence[float], error: Exception | None) -> list[float]:
        """The largest of every value over all ranks; raises on all of them if any has an error."""


def measured_groups(topology: Topology) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each distinct number of members per level, the first group of mesh axes that has it.

    Axes of one level are alike, so other groups with the same members per level need no measuring.
    """
    axes = range(len(topology.factor_mesh()))
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    for count in range(1, len(axes) + 1):
        for group in itertools.combinations(axes, count):
            groups.setdefault(topology.group_by_level(group), group)
    return groups


def measure_profile(
    topology: Topology,
    measure: Measure,
    synchronisation: Synchronisation,
    *,
    budget_s: float,
    max_output_bytes: int,
    clock: Callable[[], float] = time.perf_counter,
) -> CollectiveProfile:
    """The times of all kinds over all groups, at sizes up to where the budget of each ends.

    All groups of a partition run at once. Each time is the median over repetitions of the slowest rank's.
    Every decision rests on values that ranks have agreed on, so that they all run the same collectives.

    Args:
        topology: the levels; figures and profile are not looked at.
        measure: runs one collective on this rank.
        synchronisation: of the ranks.
        budget_s: for the whole table, shared out evenly; the smallest size is always measured.
        max_output_bytes: sizes whose output would be larger are left out.
        clock: seconds, for tests.

    Raises:
        ClusterError: from ``synchronisation.agree``, on every rank, if any rank fails.
    """
    tasks = [
        (kind, group, axes)
        for kind in COLLECTIVE_KINDS
        for group, axes in sorted(measured_groups(topology).items())
    ]
    entries = []
    start_s = clock()
    for index, (kind, group, axes) in enumerate(tasks):
        (spent_s,) = synchronisation.agree([clock() - start_s], None)
        share_s = max(budget_s - spent_s, 0.0) / (len(tasks) - index)
        members = math.prod(group)
        points: dict[int, float] = {}
        for size in SIZES_BYTES:
            elements = -(-size // (4 * members)) * members  # whole elements per member of the stacked kinds
            size_bytes = 4 * elements
            if points and size_bytes * (members if kind == "all_gather" else 1) > max_output_bytes:
                break
            # A size takes at most as much longer as it is larger: a first call and one repetition must fit.
            ratio = size_bytes / max(points) if points else 0.0
            if points and 2 * ratio * points[max(points)] > share_s:
                break
            shape = (
                (members, elements // members) if kind in ("reduce_scatter", "all_to_all") else (elements,)
            )
            median_s, cost_s = _measure_point(kind, axes, shape, measure, synchronisation, share_s, clock)
            points[size_bytes] = median_s
            share_s -= cost_s
        # Other programs on the host only ever add time, so no size takes longer than a larger one.
        seconds = np.minimum.accumulate(list(points.values())[::-1])[::-1]
        entries.append(ProfileEntry(kind, group, tuple(points), tuple(map(float, seconds))))
    return CollectiveProfile.of(entries)


def _measure_point(
    kind: str,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    measure: Measure,
    synchronisation: Synchronisation,
    share_s: float,
    clock: Callable[[], float],
) -> tuple[float, float]:
    """Seconds of one collective at one size, and seconds that this took."""
    array = np.zeros(shape, dtype=np.float32)

    def timed(calls: int) -> tuple[float, Exception | None]:
        synchronisation.barrier()
        start_s = clock()
        try:
            for _ in range(calls):
                measure(kind, axes, array)
        except Exception as error:  # whatever an engine raises; handed to the other ranks
            return 0.0, error
        return clock() - start_s, None

    # The first call sets up connections and buffers, so it only says how many more to make.
    elapsed_s, error = timed(1)
    (first_s,) = synchronisation.agree([elapsed_s], error)
    calls = min(max(math.ceil(_MIN_REPETITION_S / max(first_s, 1e-9)), 1), _MAX_CALLS)
    repetitions = min(max(int(share_s / 2 / max(first_s * calls, 1e-9)), 1), _REPETITIONS)
    times_s = []
    for _ in range(repetitions):
        elapsed_s, error = timed(calls)
        (slowest_s,) = synchronisation.agree([elapsed_s], error)
        times_s.append(slowest_s)
    return max(statistics.median(times_s) / calls, 1e-9), first_s + sum(times_s)


def fitted_levels(topology: Topology) -> tuple[Level, ...]:
    """The levels with latency and bandwidth from the profile's all_reduce, for what the profile leaves out.

    The inverse of the model of ``CollectiveModel`` at the smallest and the largest size. Groups contended
    while they were measured, so links are no longer ``shared``. Levels of one unit keep their figures.
    """
    levels = list(topology.levels)
    for index, level in enumerate(topology.levels):
        group = tuple(level.size if other == index else 1 for other in range(len(levels)))
        entry = None if topology.profile is None else topology.profile.find("all_reduce", group)
        if entry is None:
            continue
        latency_s = entry.seconds[0] / math.ceil(math.log2(level.size))
        sent_bytes = 2 * (level.size - 1) / level.size * entry.sizes_bytes[-1]
        levels[index] = Level(level.name, level.size, latency_s, sent_bytes / entry.seconds[-1])
    return tuple(levels)
