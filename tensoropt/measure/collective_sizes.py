"""Measuring a table of collectives within a time budget.

Knows no MPI: what runs one collective, and how ranks agree, is passed in.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tensoropt.cluster.collective_profile import COLLECTIVE_KINDS, CollectiveProfile, ProfileEntry
from tensoropt.cluster.topology import Topology

__all__ = ["METHOD", "Measure", "Synchronisation", "measure_profile", "measured_groups"]

METHOD = "with work in between, every other large buffer made before it, less the clocks, coarse sizes first"
"""The method by which times are measured (see ``collective_seconds.py``); times of other methods are not comparable."""

# Runs a kind of collective over this rank's group of factor-mesh axes, with input buffers of so many bytes (whole
# float32 elements for each member), so many times in a row; gives the seconds of one on this rank.
Measure = Callable[[str, tuple[int, ...], int, int], float]

# TensorOpt section 3.2 measures at 2^i; below the first of these latency is all there is. First comes a coarse grid of
# sizes, upwards, then finer ones, downwards: on a slow link the budget must not end among sizes that only tell its
# latency, or what it lets pass in a burst. Larger ones would be priced by those, and a search would choose the kinds
# that seem to send for nothing.
_COARSE_BYTES = tuple(2**exponent for exponent in range(8, 27, 6))
_FINER_BYTES = tuple(2**exponent for exponent in (*range(26, 7, -3), *range(26, 7, -1)))
_REPETITIONS = 7
_MIN_REPETITION_S = 1e-3  # short collectives run several times in a repetition
_MAX_CALLS = 64
_LEAST_RUN = 2  # engines measure so many collectives at least
_SLOW_BYTES_PER_S = 1e7  # the slowest network that anybody trains over


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
    """The times of all kinds over all groups, at sizes up to where the budget of each ends, and then between those.

    All groups of a partition run at once. Each time is the median over repetitions of the slowest rank's, as a
    step meets what is typical rather than the least. No repetition follows the one before: the table is gone through
    again and again, so that what disturbs the host for a moment does not decide an entry. Every decision rests on
    values that ranks have agreed on, so that they all run the same collectives.

    Args:
        topology: the levels; figures and profile are not looked at.
        measure: runs collectives on this rank.
        synchronisation: of the ranks.
        budget_s: for the whole table, about; the smallest size is always measured.
        max_output_bytes: sizes whose output would be larger are left out.
        clock: seconds, for tests.

    Raises:
        ClusterError: from ``synchronisation.agree``, on every rank, if any rank fails.
    """
    tasks = [
        _Task(kind, group, axes)
        for kind in COLLECTIVE_KINDS
        for group, axes in sorted(measured_groups(topology).items())
    ]
    stopwatch = _Stopwatch(measure, synchronisation, clock)
    share_s = budget_s / max(1, len(tasks))
    for size in _COARSE_BYTES:
        for task in tasks:
            if task.has_room_for(size, share_s - 2 * stopwatch.overhead_s, max_output_bytes):
                task.add(stopwatch.first_point(task, size, share_s))
    grows = True
    while grows:  # what was refused may have room once a size below it is known
        grows = False
        for size in _FINER_BYTES:
            for index, task in enumerate(tasks):
                # Half of what is left is for repetitions.
                allowed_s = (budget_s - stopwatch.spent_s) / 2 / (len(tasks) - index)
                if task.has_room_for(size, allowed_s - 2 * stopwatch.overhead_s, max_output_bytes):
                    task.add(stopwatch.first_point(task, size, allowed_s))
                    grows = True
    points = sorted(
        ((point.size_bytes, index, task, point) for index, task in enumerate(tasks) for point in task.points),
        key=lambda item: item[:2],
    )
    for _ in range(_REPETITIONS - 1):
        for _, _, task, point in points:
            if stopwatch.spent_s + point.wall_s <= budget_s:
                stopwatch.repeat(task, point)
    return CollectiveProfile.of([task.entry() for task in tasks])


@dataclass(slots=True)
class _Point:
    """One size of a task, and what it took so far."""

    size_bytes: int
    calls: int
    times_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0  # of a repetition, with all that is not the collectives themselves


@dataclass(slots=True)
class _Task:
    """One entry of the profile in the making."""

    kind: str
    group: tuple[int, ...]
    axes: tuple[int, ...]
    points: list[_Point] = field(default_factory=list)

    def size_bytes(self, size: int) -> int:
        """``size`` rounded up to whole elements for every member of the stacked kinds."""
        members = math.prod(self.group)
        return -(-size // (4 * members)) * members * 4

    def add(self, point: _Point) -> None:
        """Takes a new point to its place."""
        bisect.insort(self.points, point, key=lambda one: one.size_bytes)

    def has_room_for(self, size: int, allowed_s: float, max_output_bytes: int) -> bool:
        """Tells whether memory and time suffice to measure ``size``; the smallest size is always measured.

        A repetition is taken to be of ``_LEAST_RUN`` collectives. The estimate for one of them scales the time of the
        next smaller size by the ratio of sizes, or takes a slow link's time if that is less: most of a small
        collective's time is latency, or a disturbance.
        """
        size_bytes = self.size_bytes(size)
        if not self.points:
            return True
        last = [point for point in self.points if point.size_bytes <= size_bytes][-1]
        if last.size_bytes == size_bytes:
            return False  # rounded up alike
        output_bytes = size_bytes * (math.prod(self.group) if self.kind == "all_gather" else 1)
        took_s = last.times_s[-1]
        longer_s = min((size_bytes / last.size_bytes - 1) * took_s, output_bytes / _SLOW_BYTES_PER_S)
        expected_s = _LEAST_RUN * (took_s + longer_s)
        return output_bytes <= max_output_bytes and 2 * expected_s <= allowed_s

    def entry(self) -> ProfileEntry:
        """The medians, but for disturbances: no size takes longer than a larger one."""
        seconds = _ascending([max(statistics.median(point.times_s), 1e-9) for point in self.points])
        return ProfileEntry(self.kind, self.group, tuple(point.size_bytes for point in self.points), seconds)


def _ascending(seconds: Sequence[float]) -> tuple[float, ...]:
    """The ascending numbers that differ least from some (isotonic regression by absolute differences).

    Neighbours that descend are pooled, and have their median.
    """
    pools: list[list[float]] = []
    for second in seconds:
        pools.append([second])
        while len(pools) > 1 and statistics.median(pools[-1]) < statistics.median(pools[-2]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return tuple(statistics.median(pool) for pool in pools for _ in pool)


class _Stopwatch:
    """Runs collectives on all ranks at once and agrees on how long they took."""

    def __init__(self, measure: Measure, synchronisation: Synchronisation, clock: Callable[[], float]) -> None:
        self._measure = measure
        self._synchronisation = synchronisation
        self._clock = clock
        self._start_s = clock()
        self.spent_s = 0.0
        self.overhead_s = math.inf  # what a repetition takes at least, whatever it measures

    def first_point(self, task: _Task, size: int, allowed_s: float) -> _Point:
        """A new point with one repetition, after a call that sets up connections and buffers."""
        point = _Point(task.size_bytes(size), 1)
        first_s = self._seconds(task, point)
        if task.points and point.wall_s > allowed_s:  # much longer than a smaller size had let expect
            point.times_s.append(first_s)
            return point
        point.calls = max(min(_calls(first_s), int(allowed_s / max(point.wall_s, 1e-9))), 1)
        self.repeat(task, point)
        return point

    def repeat(self, task: _Task, point: _Point) -> None:
        """One more repetition of a point."""
        point.times_s.append(self._seconds(task, point))

    def _seconds(self, task: _Task, point: _Point) -> float:
        error = None
        took_s = 0.0
        self._synchronisation.barrier()
        before_s = self._clock()
        try:
            took_s = self._measure(task.kind, task.axes, point.size_bytes, point.calls)
        except Exception as raised:  # whatever an engine raises; the other ranks must hear of it
            error = raised
        now_s = self._clock()
        slowest_s, point.wall_s, self.spent_s = self._synchronisation.agree(
            [took_s, now_s - before_s, now_s - self._start_s], error
        )
        self.overhead_s = min(self.overhead_s, point.wall_s)
        return slowest_s


def _calls(seconds: float) -> int:
    """Returns the number of calls in a repetition that the clock can measure."""
    return min(max(math.ceil(_MIN_REPETITION_S / max(seconds, 1e-9)), 1), _MAX_CALLS)
