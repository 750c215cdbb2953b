"""A heap of tasks by their ready time, for compiled loops."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.compiled import inlined

__all__ = ["pop", "push"]


@inlined
def push(heap: Any, readies: int, tasks: int, size: int, ready: int, task: int) -> None:
    """Adds to a heap of ``size`` entries, ordered by ready time, then by number.

    Args:
        heap: an array that holds it, ready times from place ``readies`` on and tasks from ``tasks`` on.
        readies: see above.
        tasks: see above.
        size: of the heap so far.
        ready: of the new entry.
        task: of the new entry.
    """
    place = size
    while place > 0:
        up = (place - 1) >> 1
        if heap[readies + up] < ready or (heap[readies + up] == ready and heap[tasks + up] < task):
            break
        heap[readies + place], heap[tasks + place] = heap[readies + up], heap[tasks + up]
        place = up
    heap[readies + place], heap[tasks + place] = ready, task


@inlined
def pop(heap: Any, readies: int, tasks: int, size: int) -> None:
    """Removes the first of ``size`` entries; see :func:`push`."""
    size -= 1
    ready, task = heap[readies + size], heap[tasks + size]
    place = 0
    while True:
        down = 2 * place + 1
        if down >= size:
            break
        other = down + 1
        if other < size and (
            heap[readies + other] < heap[readies + down]
            or (heap[readies + other] == heap[readies + down] and heap[tasks + other] < heap[tasks + down])
        ):
            down = other
        if ready < heap[readies + down] or (ready == heap[readies + down] and task < heap[tasks + down]):
            break
        heap[readies + place], heap[tasks + place] = heap[readies + down], heap[tasks + down]
        place = down
    heap[readies + place], heap[tasks + place] = ready, task
