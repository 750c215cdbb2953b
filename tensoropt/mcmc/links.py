"""Who waits for whom under the strategy of a timeline, kept from one strategy to the next.

What :mod:`tensoropt.mcmc.relations` follows through operators and edges is held here as lists of slots, in which an
empty way is left out. A change rewrites the entries of ways that become empty or cease to be. Of what comes after,
slots and tasks that wait for a single other one are written as their complement, ``~slot``: simulation need not look up
what else they wait for.
"""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    AFTER,
    AFTER_ALL,
    AFTER_FIRST,
    BEFORE,
    BEFORE_ALL,
    BEFORE_FIRST,
    CLASSES,
    SOURCE,
    SOURCE_ENTRY,
    TARGET,
    TARGET_ENTRY,
)
from tensoropt.mcmc.compiled import compiled, inlined
from tensoropt.mcmc.relations import predecessors, successors

__all__ = ["link", "link_all", "tasks_after", "tasks_before"]


@inlined
def link(net: Any, work: Any, slot: int, empty: bool) -> None:
    """Notes whether a way is empty: then its ends wait for one another directly."""
    if net[net[SOURCE] + slot] >= 0:
        source, target = net[net[SOURCE] + slot], net[net[TARGET] + slot]
        work[work[AFTER] + net[net[SOURCE_ENTRY] + slot]] = target if empty else ~slot
        work[work[BEFORE] + net[net[TARGET_ENTRY] + slot]] = source if empty else slot


@compiled
def link_all(net: Any, path: Any, work: Any) -> None:
    """Makes the lists of a strategy."""
    slots = len(path)
    for entry in range(net[net[AFTER_FIRST] + slots]):
        work[work[AFTER] + entry] = net[net[AFTER_ALL] + entry]
        work[work[BEFORE] + entry] = net[net[BEFORE_ALL] + entry]
    for slot in range(slots):
        if path[slot] == 0:
            link(net, work, slot, True)


@inlined
def tasks_after(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int, task: int, at: int) -> int:
    """The tasks that wait for a task: how many are written to ``work`` from ``at`` on.

    Those known to wait for no other one are written as their complement.
    """
    if frame[CLASSES] > 1:
        return successors(net, frame, pool, path, stages, task, work, at)
    slot = task // stages
    if task - slot * stages + 1 < pool[path[slot]]:
        work[at] = ~(task + 1)
        return 1
    first, last = net[net[AFTER_FIRST] + slot], net[net[AFTER_FIRST] + slot + 1]
    for entry in range(first, last):
        after = work[work[AFTER] + entry]
        work[at + entry - first] = after * stages if after >= 0 else ~(~after * stages)
    return last - first


@inlined
def tasks_before(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int, task: int, at: int) -> int:
    """The tasks that a task waits for: how many are written to ``work`` from ``at`` on."""
    if frame[CLASSES] > 1:
        return predecessors(net, frame, pool, path, stages, task, work, at)
    slot = task // stages
    if task > slot * stages:
        work[at] = task - 1
        return 1
    first, last = net[net[BEFORE_FIRST] + slot], net[net[BEFORE_FIRST] + slot + 1]
    for entry in range(first, last):
        before = work[work[BEFORE] + entry]
        work[at + entry - first] = before * stages + pool[path[before]] - 1
    return last - first
