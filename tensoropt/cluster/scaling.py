"""Clusters of the same kind with fewer or more devices: which counts there are, and the topology of one."""

from __future__ import annotations

import dataclasses

from tensoropt.cluster.topology import Topology
from tensoropt.errors import ClusterError

__all__ = ["device_counts", "scaled", "usual_counts"]


def device_counts(topology: Topology) -> tuple[int, ...]:
    """Returns how many of a topology's devices can be used as a regular hierarchy, ascending.

    These are any number of devices of one innermost unit, and whole units of each level around it.

    Example:
        >>> from tensoropt.cluster import presets
        >>> device_counts(presets.v100(hosts=3))
        (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)
    """
    counts = {1}
    for index, level in enumerate(topology.levels):
        counts |= {units * topology.devices_below(index) for units in range(1, level.size + 1)}
    return tuple(sorted(counts))


def usual_counts(topology: Topology) -> tuple[int, ...]:
    """The device counts that are powers of two, and all devices.

    Example:
        >>> from tensoropt.cluster import presets
        >>> usual_counts(presets.v100(hosts=3))
        (1, 2, 4, 8, 16, 24)
    """
    counts = device_counts(topology)
    return tuple(count for count in counts if count & (count - 1) == 0 or count == counts[-1])


def scaled(topology: Topology, count: int) -> Topology:
    """A cluster of the same kind with ``count`` devices: the first ones, or more units of the outermost level.

    Measured collectives over groups that there still are, are kept.

    Example:
        >>> from tensoropt.cluster import presets
        >>> scaled(presets.v100(hosts=2), 32).level_sizes
        (4, 8)

    Raises:
        ClusterError: if ``count`` leaves a unit partly filled beside full ones.
    """
    if count <= topology.device_count:
        return topology.with_device_count(count)
    below = topology.devices_below(0)
    outermost = topology.levels[0]
    if count % below:
        fewer = count // below * below
        raise ClusterError(
            f"Topology {topology.name!r}: {count} devices must be whole units of its outermost level, {below} devices "
            f"per {outermost.name}, but {count} % {below} != 0. Use {fewer} or {fewer + below}."
        )
    levels = (dataclasses.replace(outermost, size=count // below), *topology.levels[1:])
    return dataclasses.replace(topology, levels=levels)
