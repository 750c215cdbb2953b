"""Reads TensorFlow's trace of a run: the times of kernels, and the memory that they allocated and freed.

The trace has every allocation with its time and its requested bytes. The bytes that the allocator adds are not in it
(TensorFlow's allocator for CPUs hands out up to twice the request).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Held", "held_by", "kernel_seconds"]

_NANOSECOND_S = 1e-9


@dataclass(frozen=True, slots=True)
class Held:
    """The memory that a group of kernels held.

    Attributes:
        peak_bytes: the most at once.
        kept_bytes: at the time that was asked about.
    """

    peak_bytes: int
    kept_bytes: int


def kernel_seconds(step_stats: Any) -> dict[str, float]:
    """Seconds in the kernel of each node of a traced run (``RunMetadata.step_stats``)."""
    seconds: dict[str, float] = {}
    for node in _nodes(step_stats):
        # By the time of day, which may be set back meanwhile: less than nothing would end the search with an error.
        took = max(node.op_end_rel_nanos - node.op_start_rel_nanos, 0) * _NANOSECOND_S
        seconds[node.node_name] = seconds.get(node.node_name, 0.0) + took
    return seconds


def held_by(
    step_stats: Any, group: Callable[[str], Hashable | None], until: Callable[[str], bool]
) -> dict[Hashable, Held]:
    """Returns the memory that groups of kernels held in a traced run (``RunMetadata.step_stats``).

    Args:
        step_stats: of the run.
        group: the group of a kernel by its name; None for kernels that do not count.
        until: tells by name which kernels end the time for ``kept_bytes``, which is taken when the first of them
            starts.
    """
    start = min((node.all_start_micros for node in _nodes(step_stats) if until(node.node_name)), default=None)
    events: list[tuple[int, int, int, Hashable]] = []
    for number, node in enumerate(sorted(_nodes(step_stats), key=_started)):
        which = group(node.node_name)
        if which is None:
            continue
        for memory in node.memory:
            events += [(record.alloc_micros, number, record.alloc_bytes, which) for record in memory.allocation_records]
    # What one kernel asks for and gives back is in order.
    events.sort(key=lambda event: event[:2])
    live: dict[Hashable, int] = {}
    peak: dict[Hashable, int] = {}
    kept: dict[Hashable, int] = {}
    for micros, _, size, which in events:
        live[which] = live.get(which, 0) + size
        peak[which] = max(peak.get(which, 0), live[which])
        if start is None or micros < start:
            kept[which] = live[which]
    return {which: Held(peak[which], max(0, kept.get(which, 0))) for which in peak}


def _nodes(step_stats: Any) -> Iterator[Any]:
    for device in step_stats.dev_stats:
        yield from device.node_stats


def _started(node: Any) -> tuple[int, int]:
    return node.all_start_micros, node.op_start_rel_nanos
