"""A heap of tasks by their ready time, for compiled loops."""

from __future__ import annotations

from tensoropt.simulate.compiled import inlined
from tensoropt.simulate.simulation_state import Records

__all__ = ["pop", "push"]


@inlined
def push(heap: Records, size: int, ready: int, task: int) -> None:
    """Adds to a heap of ``size`` entries (``QUEUED``), ordered by ready time, equal ones by number of the task."""
    place = size
    while place > 0:
        up = (place - 1) >> 1
        if heap[up].ready < ready or (heap[up].ready == ready and heap[up].task < task):
            break
        heap[place].ready, heap[place].task = heap[up].ready, heap[up].task
        place = up
    heap[place].ready, heap[place].task = ready, task


@inlined
def pop(heap: Records, size: int) -> None:
    """Removes the first of ``size`` entries; see :func:`push`."""
    size -= 1
    ready, task = heap[size].ready, heap[size].task
    place = 0
    while True:
        down = 2 * place + 1
        if down >= size:
            break
        other = down + 1
        if other < size and (
            heap[other].ready < heap[down].ready
            or (heap[other].ready == heap[down].ready and heap[other].task < heap[down].task)
        ):
            down = other
        if ready < heap[down].ready or (ready == heap[down].ready and task < heap[down].task):
            break
        heap[place].ready, heap[place].task = heap[down].ready, heap[down].task
        place = down
    heap[place].ready, heap[place].task = ready, task
