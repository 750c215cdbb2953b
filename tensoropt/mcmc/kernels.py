"""Compiled loops over a task graph that is never written down: who waits for whom follows from slots and paths.

A task is numbered ``(slot * stages + stage) * classes + class``; a timeline lists tasks in the order in which they
become ready (equal times by number), which is the order in which a device takes them (FlexFlow assumption A3).

Only what simulates needs this module, and it takes Numba: import it where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tensoropt.mcmc.blob import (
    BACK_FROM,
    BACK_TABLE,
    BACK_TO,
    BACKWARD_SLOT,
    BUFFER_BEFORE,
    CLASSES,
    EDGE_FROM,
    EDGE_TO,
    EDGES,
    FIRST,
    FORWARD_SLOT,
    HAS_BACK,
    HEAP_READY,
    HEAP_TASK,
    IN_EDGE,
    IN_FIRST,
    KINDS,
    LANE_END,
    LANE_OF,
    LANES,
    LAYOUTS,
    LINE_ENABLER,
    LINE_END,
    LINE_LANE,
    LINE_POSITION,
    LINE_READY,
    LINE_TASK,
    MASKS,
    OFFSETS,
    OP_BACKWARD,
    OP_BASE,
    OP_FORWARD,
    OUT_EDGE,
    OUT_FIRST,
    PRESENT,
    RETURNS,
    SLOT_KIND,
    SLOT_REF,
    TASKS,
    WAY_BACK_SLOT,
    WAY_FROM,
    WAY_SLOT,
    WAY_TABLE,
    WAY_TO,
    ZEROED,
)

__all__ = [
    "count_tasks",
    "find_paths",
    "lane_of",
    "missing_rows",
    "pop",
    "predecessors",
    "push",
    "route",
    "simulate",
    "successors",
]

# Forward and backward slots of operators and edges.
_WAY, _FORWARD, _BACKWARD, _WAY_BACK = 0, 1, 2, 3


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def route(net: Any, rows: Any, routes: Any, edge: int, back: bool, start: int, end: int) -> int:
    """The path of an edge between configurations of its producer and consumer; -1 if its row is not known."""
    if back:
        table = net[net[BACK_TABLE] + edge]
        if table < 0:
            return 0
        row = rows[table + net[net[LAYOUTS] + net[net[BACK_FROM] + edge] + end]]
        return -1 if row < 0 else routes[row + net[net[LAYOUTS] + net[net[BACK_TO] + edge] + start]]
    row = rows[net[net[WAY_TABLE] + edge] + net[net[LAYOUTS] + net[net[WAY_FROM] + edge] + start]]
    return -1 if row < 0 else routes[row + net[net[LAYOUTS] + net[net[WAY_TO] + edge] + end]]


@njit(cache=True, nogil=True)
def missing_rows(net: Any, rows: Any, operators: Any, choices: Any, out: Any, flags: Any) -> int:
    """Rows that changes of operators to configurations need and that are not known.

    Args:
        net: of the network.
        rows: where each row of routes begins, -1 if it is not known.
        operators: ``(K,)``.
        choices: ``(K,)``, a configuration of each.
        out: takes the places of the rows.
        flags: for each row, 0.

    Returns:
        how many.
    """
    count = 0
    for number in range(len(operators)):
        op, choice = operators[number], choices[number]
        for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
            edge = net[net[OUT_EDGE] + some]
            place = net[net[WAY_TABLE] + edge] + net[net[LAYOUTS] + net[net[WAY_FROM] + edge] + choice]
            if rows[place] < 0 and flags[place] == 0:
                flags[place] = 1
                out[count] = place
                count += 1
        for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
            edge = net[net[IN_EDGE] + some]
            if net[net[BACK_TABLE] + edge] >= 0:
                place = net[net[BACK_TABLE] + edge] + net[net[LAYOUTS] + net[net[BACK_FROM] + edge] + choice]
                if rows[place] < 0 and flags[place] == 0:
                    flags[place] = 1
                    out[count] = place
                    count += 1
    return count


@njit(cache=True, nogil=True)
def find_paths(net: Any, rows: Any, routes: Any, assignment: Any, path: Any) -> None:
    """Each slot's path under a strategy, all rows of which are known."""
    for op in range(len(assignment)):
        path[net[net[FORWARD_SLOT] + op]] = net[net[OP_FORWARD] + net[net[OP_BASE] + op] + assignment[op]]
        path[net[net[BACKWARD_SLOT] + op]] = net[net[OP_BACKWARD] + net[net[OP_BASE] + op] + assignment[op]]
    for edge in range(net[EDGES]):
        start, end = assignment[net[net[EDGE_FROM] + edge]], assignment[net[net[EDGE_TO] + edge]]
        path[net[net[WAY_SLOT] + edge]] = route(net, rows, routes, edge, False, start, end)
        path[net[net[WAY_BACK_SLOT] + edge]] = route(net, rows, routes, edge, True, start, end)


@njit(cache=True, nogil=True)
def count_tasks(frame: Any, first: Any, pool: Any, path: Any) -> int:
    """How many tasks all slots have."""
    total = 0
    for slot in range(len(path)):
        for stage in range(first[path[slot]], first[path[slot] + 1]):
            for klass in range(frame[CLASSES]):
                total += frame[frame[PRESENT] + pool[1, stage] * frame[CLASSES] + klass]
    return total


@njit(cache=True, nogil=True)
def _collect(
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    stages: int,
    slot: int,
    last: bool,
    sign: int,
    klass: int,
    out: Any,
    at: int,
    count: int,
) -> int:
    """Adds the tasks of the first or last stage of a slot that a task of another stage waits for, or they for it."""
    stage = first[path[slot] + 1] - 1 - first[path[slot]] if last else 0
    return _collect_stage(frame, first, pool, path, stages, slot, stage, sign, klass, out, at, count)


@njit(cache=True, nogil=True)
def _collect_stage(
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    stages: int,
    slot: int,
    stage: int,
    sign: int,
    klass: int,
    out: Any,
    at: int,
    count: int,
) -> int:
    other = pool[1, first[path[slot]] + stage]
    classes = frame[CLASSES]
    base = (slot * stages + stage) * classes
    if classes == 1:
        out[at + count] = base
        return count + 1
    mask = frame[frame[MASKS] + sign] | frame[frame[MASKS] + other]
    zeroed = frame[frame[ZEROED] + mask * classes + klass]
    for place in range(frame[frame[FIRST] + mask], frame[frame[FIRST] + mask + 1]):
        found = zeroed + frame[frame[OFFSETS] + place]
        if frame[frame[PRESENT] + other * frame[CLASSES] + found]:
            out[at + count] = base + found
            count += 1
    return count


@njit(cache=True, nogil=True)
def _some(first: Any, path: Any, slot: int) -> bool:
    return bool(first[path[slot] + 1] > first[path[slot]])


@njit(cache=True, nogil=True)
def predecessors(
    net: Any, frame: Any, first: Any, pool: Any, path: Any, stages: int, task: int, out: Any, at: int
) -> int:
    """The tasks that a task waits for: how many are written to ``out`` from ``at`` on."""
    classes = frame[CLASSES]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    sign = pool[1, first[path[slot]] + stage]
    if stage > 0:
        return _collect_stage(frame, first, pool, path, stages, slot, stage - 1, sign, klass, out, at, 0)
    kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
    if kind == _WAY:
        before = net[net[FORWARD_SLOT] + net[net[EDGE_FROM] + ref]]
        return _collect(frame, first, pool, path, stages, before, True, sign, klass, out, at, 0)
    if kind == _WAY_BACK:
        before = net[net[BACKWARD_SLOT] + net[net[EDGE_TO] + ref]]
        return _collect(frame, first, pool, path, stages, before, True, sign, klass, out, at, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
            edge = net[net[IN_EDGE] + some]
            before = net[net[WAY_SLOT] + edge]
            if not _some(first, path, before):
                before = net[net[FORWARD_SLOT] + net[net[EDGE_FROM] + edge]]
            count = _collect(frame, first, pool, path, stages, before, True, sign, klass, out, at, count)
        return count
    count = _collect(frame, first, pool, path, stages, net[net[FORWARD_SLOT] + ref], True, sign, klass, out, at, 0)
    for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
        edge = net[net[OUT_EDGE] + some]
        if net[net[RETURNS] + edge]:
            before = net[net[WAY_BACK_SLOT] + edge]
            if not _some(first, path, before):
                before = net[net[BACKWARD_SLOT] + net[net[EDGE_TO] + edge]]
            count = _collect(frame, first, pool, path, stages, before, True, sign, klass, out, at, count)
    return count


@njit(cache=True, nogil=True)
def successors(
    net: Any, frame: Any, first: Any, pool: Any, path: Any, stages: int, task: int, out: Any, at: int
) -> int:
    """The tasks that wait for a task, as :func:`predecessors` gives those that it waits for."""
    classes = frame[CLASSES]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    begin = first[path[slot]]
    sign = pool[1, begin + stage]
    if begin + stage + 1 < first[path[slot] + 1]:
        return _collect_stage(frame, first, pool, path, stages, slot, stage + 1, sign, klass, out, at, 0)
    kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
    if kind == _WAY:
        after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + ref]]
        return _collect(frame, first, pool, path, stages, after, False, sign, klass, out, at, 0)
    if kind == _WAY_BACK:
        after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + ref]]
        return _collect(frame, first, pool, path, stages, after, False, sign, klass, out, at, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
            edge = net[net[OUT_EDGE] + some]
            after = net[net[WAY_SLOT] + edge]
            if not _some(first, path, after):
                after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + edge]]
            count = _collect(frame, first, pool, path, stages, after, False, sign, klass, out, at, count)
        if net[net[HAS_BACK] + ref]:
            count = _collect(
                frame, first, pool, path, stages, net[net[BACKWARD_SLOT] + ref], False, sign, klass, out, at, count
            )
        return count
    for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
        edge = net[net[IN_EDGE] + some]
        if net[net[RETURNS] + edge]:
            after = net[net[WAY_BACK_SLOT] + edge]
            if not _some(first, path, after):
                after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + edge]]
            count = _collect(frame, first, pool, path, stages, after, False, sign, klass, out, at, count)
    return count


@njit(cache=True, nogil=True)
def lane_of(frame: Any, sign: int, klass: int) -> int:
    """The resource of a task, -1 for none: devices first, then the links of each level."""
    kind = frame[frame[KINDS] + sign]
    return -1 if kind < 0 else kind * frame[CLASSES] + frame[frame[LANE_OF] + kind * frame[CLASSES] + klass]


@njit(cache=True, nogil=True)
def simulate(net: Any, frame: Any, first: Any, pool: Any, path: Any, work: Any, stages: int) -> int:
    """The timeline of a strategy from nothing (FlexFlow Algorithm 1).

    Args:
        net: of the network.
        frame: of the classes.
        first: where each path's stages begin.
        pool: ticks and signatures of stages.
        path: of each slot.
        work: takes the timeline.
        stages: the most of any path.

    Returns:
        the end of the last task.
    """
    classes = frame[CLASSES]
    numbers = len(path) * stages * classes
    waiting = np.zeros(numbers, np.int32)
    ready = np.zeros(numbers, np.int64)
    enabler = np.full(numbers, -1, np.int64)
    total = 0
    position, buffer = work[LINE_POSITION], work[BUFFER_BEFORE]
    lane_end = work[LANE_END]
    for lane in range(work[LANES]):
        work[lane_end + lane] = 0
    for task in range(numbers):
        work[position + task] = -1
    readies, tasks = work[HEAP_READY], work[HEAP_TASK]
    size = 0
    for slot in range(len(path)):
        begin, end = first[path[slot]], first[path[slot] + 1]
        for stage in range(end - begin):
            sign = pool[1, begin + stage]
            for klass in range(classes):
                if frame[frame[PRESENT] + sign * classes + klass]:
                    task = (slot * stages + stage) * classes + klass
                    total += 1
                    waiting[task] = predecessors(net, frame, first, pool, path, stages, task, work, buffer)
                    if waiting[task] == 0:
                        push(work, readies, tasks, size, 0, task)
                        size += 1
    done = 0
    makespan = 0
    while size > 0:
        at, task = work[readies], work[tasks]
        pop(work, readies, tasks, size)
        size -= 1
        klass, rest = task % classes, task // classes
        place = first[path[rest // stages]] + rest % stages
        lane = lane_of(frame, pool[1, place], klass)
        end = at
        if lane >= 0:
            end = max(at, work[lane_end + lane]) + pool[0, place]
            work[lane_end + lane] = end
        work[position + task] = done
        work[work[LINE_TASK] + done] = task
        work[work[LINE_READY] + done] = at
        work[work[LINE_END] + done] = end
        work[work[LINE_LANE] + done] = lane
        work[work[LINE_ENABLER] + done] = enabler[task]
        done += 1
        makespan = max(makespan, end)
        for number in range(successors(net, frame, first, pool, path, stages, task, work, buffer)):
            after = work[buffer + number]
            ready[after] = max(ready[after], end)
            waiting[after] -= 1
            if waiting[after] == 0:
                enabler[after] = task
                push(work, readies, tasks, size, ready[after], after)
                size += 1
    work[TASKS] = total
    return makespan
