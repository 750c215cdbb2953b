"""The properties of a host that one of its processes can see: cores, memory, processor."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

__all__ = ["affinity", "available_memory_bytes", "cores_per_rank", "cpu_model"]


def affinity() -> tuple[int, ...]:
    """The processor numbers that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cores_per_rank(affinities: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Each rank's cores, given those that each rank of one host may use; ranks share a core evenly.

    Example:
        >>> cores_per_rank([(0, 1), (0, 1), (2,)])
        (1.0, 1.0, 1.0)
    """
    users = Counter(core for cores in affinities for core in cores)
    return tuple(sum(1 / users[core] for core in cores) for cores in affinities)


def cpu_model(proc: Path = Path("/proc")) -> str:
    """The processor's name."""
    try:
        for line in (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def available_memory_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that new allocations on this host can use: what the kernel calls available, within cgroup limits."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        for line in (proc / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: all there is
    return max(min([available, *_cgroup_rooms(proc, cgroups)]), 1)


def _cgroup_rooms(proc: Path, cgroups: Path) -> list[int]:
    """Bytes left in the memory cgroup of this process and in each of its parents, where they have limits."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, limit_name, usage_name, idle_name = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):  # version 1
            root, limit_name, usage_name = (
                cgroups / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
            idle_name = "total_inactive_file"
        else:
            continue
        # Inside a container the path may be the host's, and only the root of the mount is visible.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:depth])
            limit, usage = _read_integer(folder / limit_name), _read_integer(folder / usage_name)
            if limit is not None and usage is not None:
                # File pages that nobody uses count as usage, but go when memory is needed.
                rooms.append(limit - usage + min(_read_statistic(folder / "memory.stat", idle_name), usage))
    return rooms


def _read_integer(path: Path) -> int | None:
    """The integer in a file; None if there is no file, or it says ``max``."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
