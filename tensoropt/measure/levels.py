"""The levels of a topology: from where ranks are, and from what collectives take."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from tensoropt.cluster import Level, Topology

__all__ = ["fitted_levels", "level_sizes"]

_log = logging.getLogger("tensoropt")


def level_sizes(hosts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the levels for ranks on ``hosts``, one name per rank.

    Hosts make a level of their own if each has a contiguous run of equally many ranks. Otherwise, after a
    warning, all ranks are one flat level, as if every one were a host.
    """
    names = list(dict.fromkeys(hosts))
    per_host = len(hosts) // len(names)
    regular = list(hosts) == [name for name in names for _ in range(per_host)]
    if not regular:
        counts = ", ".join(f"{name}: {hosts.count(name)}" for name in names)
        _log.warning(
            "Ranks are not contiguous on hosts, or not equally many on each (%s): planning with one flat level, which "
            "does not tell links inside hosts from links between them. Start equally many ranks per host, host by "
            "host (mpirun --map-by slot).",
            counts,
        )
        return (("rank", len(hosts)),)
    if len(names) == 1:
        return (("device", per_host),)
    return (("host", len(names)),) if per_host == 1 else (("host", len(names)), ("device", per_host))


def fitted_levels(topology: Topology) -> tuple[Level, ...]:
    """The levels with latency and bandwidth from the profile's all_reduce, for what the profile leaves out.

    The inverse of the model of ``CollectiveModel``: latency is all that the smallest size takes, and the bandwidth is
    that of what the largest takes longer. Groups contended
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
        longer_s = entry.seconds[-1] - entry.seconds[0]
        levels[index] = Level(level.name, level.size, latency_s, sent_bytes / (longer_s or entry.seconds[-1]))
    return tuple(levels)
