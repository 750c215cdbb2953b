"""Compiled loops over a task graph that is never written down: who waits for whom follows from slots and paths.

A task is numbered ``(slot * stages + stage) * classes + class``; a timeline lists tasks in the order in which they
become ready (equal times by number), which is the order in which a device takes them (FlexFlow assumption A3).

Only what simulates needs this module, and it takes Numba: import it where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

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
def push(heap_ready: Any, heap_task: Any, size: int, ready: int, task: int) -> None:
    """Adds to a heap of ``size`` entries, ordered by ready time, then by number."""
    place = size
    while place > 0:
        up = (place - 1) >> 1
        if heap_ready[up] < ready or (heap_ready[up] == ready and heap_task[up] < task):
            break
        heap_ready[place], heap_task[place] = heap_ready[up], heap_task[up]
        place = up
    heap_ready[place], heap_task[place] = ready, task


@njit(cache=True, nogil=True)
def pop(heap_ready: Any, heap_task: Any, size: int) -> None:
    """Removes the first of ``size`` entries."""
    size -= 1
    ready, task = heap_ready[size], heap_task[size]
    place = 0
    while True:
        down = 2 * place + 1
        if down >= size:
            break
        other = down + 1
        if other < size and (
            heap_ready[other] < heap_ready[down]
            or (heap_ready[other] == heap_ready[down] and heap_task[other] < heap_task[down])
        ):
            down = other
        if ready < heap_ready[down] or (ready == heap_ready[down] and task < heap_task[down]):
            break
        heap_ready[place], heap_task[place] = heap_ready[down], heap_task[down]
        place = down
    heap_ready[place], heap_task[place] = ready, task


@njit(cache=True, nogil=True)
def route(net: Any, edge: int, back: bool, start: int, end: int) -> int:
    """The path of an edge between configurations of its producer and consumer; -1 if its row is not known."""
    if back:
        table = net.back_table[edge]
        if table < 0:
            return 0
        row = net.row_at[table + net.layouts[net.back_from[edge] + end]]
        return -1 if row < 0 else net.routes[row + net.layouts[net.back_to[edge] + start]]
    row = net.row_at[net.way_table[edge] + net.layouts[net.way_from[edge] + start]]
    return -1 if row < 0 else net.routes[row + net.layouts[net.way_to[edge] + end]]


@njit(cache=True, nogil=True)
def missing_rows(net: Any, operators: Any, choices: Any, out: Any, flags: Any) -> int:
    """Rows that changes of operators to configurations need and that are not known.

    Args:
        net: arrays of the network.
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
        for some in range(net.out_first[op], net.out_first[op + 1]):
            edge = net.out_edge[some]
            place = net.way_table[edge] + net.layouts[net.way_from[edge] + choice]
            if net.row_at[place] < 0 and flags[place] == 0:
                flags[place] = 1
                out[count] = place
                count += 1
        for some in range(net.in_first[op], net.in_first[op + 1]):
            edge = net.in_edge[some]
            if net.back_table[edge] >= 0:
                place = net.back_table[edge] + net.layouts[net.back_from[edge] + choice]
                if net.row_at[place] < 0 and flags[place] == 0:
                    flags[place] = 1
                    out[count] = place
                    count += 1
    return count


@njit(cache=True, nogil=True)
def find_paths(net: Any, assignment: Any, path: Any) -> None:
    """Each slot's path under a strategy, all rows of which are known."""
    for op in range(len(assignment)):
        path[net.forward_slot[op]] = net.op_forward[net.op_base[op] + assignment[op]]
        path[net.backward_slot[op]] = net.op_backward[net.op_base[op] + assignment[op]]
    for edge in range(len(net.edge_from)):
        start, end = assignment[net.edge_from[edge]], assignment[net.edge_to[edge]]
        path[net.way_slot[edge]] = route(net, edge, False, start, end)
        path[net.way_back_slot[edge]] = route(net, edge, True, start, end)


@njit(cache=True, nogil=True)
def count_tasks(net: Any, frame: Any, path: Any) -> int:
    """How many tasks all slots have."""
    total = 0
    for slot in range(len(path)):
        for stage in range(net.path_first[path[slot]], net.path_first[path[slot] + 1]):
            total += frame.present[net.stage_sign[stage]].sum()
    return total


@njit(cache=True, nogil=True)
def _collect(
    net: Any, frame: Any, path: Any, stages: int, slot: int, last: bool, sign: int, klass: int, out: Any, count: int
) -> int:
    """Adds the tasks of the first or last stage of a slot that a task of another stage waits for, or they for it."""
    first, end = net.path_first[path[slot]], net.path_first[path[slot] + 1]
    stage = end - 1 - first if last else 0
    return _collect_stage(net, frame, path, stages, slot, stage, sign, klass, out, count)


@njit(cache=True, nogil=True)
def _collect_stage(
    net: Any, frame: Any, path: Any, stages: int, slot: int, stage: int, sign: int, klass: int, out: Any, count: int
) -> int:
    other = net.stage_sign[net.path_first[path[slot]] + stage]
    classes = frame.present.shape[1]
    base = (slot * stages + stage) * classes
    if classes == 1:
        out[count] = base
        return count + 1
    mask = frame.masks[sign] | frame.masks[other]
    zeroed = frame.zeroed[mask, klass]
    for place in range(frame.first[mask], frame.first[mask + 1]):
        found = zeroed + frame.offsets[place]
        if frame.present[other, found]:
            out[count] = base + found
            count += 1
    return count


@njit(cache=True, nogil=True)
def _some(net: Any, path: Any, slot: int) -> bool:
    return bool(net.path_first[path[slot] + 1] > net.path_first[path[slot]])


@njit(cache=True, nogil=True)
def predecessors(net: Any, frame: Any, path: Any, stages: int, task: int, out: Any) -> int:
    """The tasks that a task waits for: how many are written to ``out``."""
    classes = frame.present.shape[1]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    sign = net.stage_sign[net.path_first[path[slot]] + stage]
    if stage > 0:
        return _collect_stage(net, frame, path, stages, slot, stage - 1, sign, klass, out, 0)
    kind, ref = net.slot_kind[slot], net.slot_ref[slot]
    if kind == _WAY:
        before = net.forward_slot[net.edge_from[ref]]
        return _collect(net, frame, path, stages, before, True, sign, klass, out, 0)
    if kind == _WAY_BACK:
        before = net.backward_slot[net.edge_to[ref]]
        return _collect(net, frame, path, stages, before, True, sign, klass, out, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net.in_first[ref], net.in_first[ref + 1]):
            edge = net.in_edge[some]
            before = net.way_slot[edge]
            if not _some(net, path, before):
                before = net.forward_slot[net.edge_from[edge]]
            count = _collect(net, frame, path, stages, before, True, sign, klass, out, count)
        return count
    count = _collect(net, frame, path, stages, net.forward_slot[ref], True, sign, klass, out, 0)
    for some in range(net.out_first[ref], net.out_first[ref + 1]):
        edge = net.out_edge[some]
        if net.returns[edge]:
            before = net.way_back_slot[edge]
            if not _some(net, path, before):
                before = net.backward_slot[net.edge_to[edge]]
            count = _collect(net, frame, path, stages, before, True, sign, klass, out, count)
    return count


@njit(cache=True, nogil=True)
def successors(net: Any, frame: Any, path: Any, stages: int, task: int, out: Any) -> int:
    """The tasks that wait for a task: how many are written to ``out``; the reverse of :func:`predecessors`."""
    classes = frame.present.shape[1]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    first, end = net.path_first[path[slot]], net.path_first[path[slot] + 1]
    sign = net.stage_sign[first + stage]
    if first + stage + 1 < end:
        return _collect_stage(net, frame, path, stages, slot, stage + 1, sign, klass, out, 0)
    kind, ref = net.slot_kind[slot], net.slot_ref[slot]
    if kind == _WAY:
        after = net.forward_slot[net.edge_to[ref]]
        return _collect(net, frame, path, stages, after, False, sign, klass, out, 0)
    if kind == _WAY_BACK:
        after = net.backward_slot[net.edge_from[ref]]
        return _collect(net, frame, path, stages, after, False, sign, klass, out, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net.out_first[ref], net.out_first[ref + 1]):
            edge = net.out_edge[some]
            after = net.way_slot[edge]
            if not _some(net, path, after):
                after = net.forward_slot[net.edge_to[edge]]
            count = _collect(net, frame, path, stages, after, False, sign, klass, out, count)
        if net.has_back[ref]:
            count = _collect(net, frame, path, stages, net.backward_slot[ref], False, sign, klass, out, count)
        return count
    for some in range(net.in_first[ref], net.in_first[ref + 1]):
        edge = net.in_edge[some]
        if net.returns[edge]:
            after = net.way_back_slot[edge]
            if not _some(net, path, after):
                after = net.backward_slot[net.edge_from[edge]]
            count = _collect(net, frame, path, stages, after, False, sign, klass, out, count)
    return count


@njit(cache=True, nogil=True)
def lane_of(frame: Any, sign: int, klass: int) -> int:
    """The resource of a task, -1 for none: devices first, then the links of each level."""
    kind = frame.kinds[sign]
    return -1 if kind < 0 else kind * frame.present.shape[1] + frame.lanes[kind, klass]


@njit(cache=True, nogil=True)
def simulate(
    net: Any,
    frame: Any,
    path: Any,
    stages: int,
    position: Any,
    line_task: Any,
    line_ready: Any,
    line_end: Any,
    line_lane: Any,
    line_enabler: Any,
    buffer: Any,
) -> int:
    """The timeline of a strategy from nothing (FlexFlow Algorithm 1).

    Args:
        net: arrays of the network.
        frame: of the classes.
        path: of each slot.
        stages: the most of any path.
        position: ``(slots * stages * classes,)``, takes each task's place in the timeline, -1 where there is none.
        line_task: takes the tasks; as long as there are tasks, like all that follow.
        line_ready: takes ready times.
        line_end: takes end times.
        line_lane: takes resources, -1 for none.
        line_enabler: takes what each task waited for last in the timeline, -1 for nothing.
        buffer: as long as a task may have neighbours.

    Returns:
        the end of the last task.
    """
    classes = frame.present.shape[1]
    total = len(line_task)
    waiting = np.zeros(len(position), np.int32)
    ready = np.zeros(len(position), np.int64)
    heap_ready, heap_task = np.empty(total, np.int64), np.empty(total, np.int64)
    lane_end = np.zeros(len(frame.lanes) * classes, np.int64)
    size = 0
    position[:] = -1
    for slot in range(len(path)):
        first, end = net.path_first[path[slot]], net.path_first[path[slot] + 1]
        for stage in range(end - first):
            sign = net.stage_sign[first + stage]
            for klass in range(classes):
                if frame.present[sign, klass]:
                    task = (slot * stages + stage) * classes + klass
                    waiting[task] = predecessors(net, frame, path, stages, task, buffer)
                    if waiting[task] == 0:
                        push(heap_ready, heap_task, size, 0, task)
                        size += 1
    enabler = np.full(len(position), -1, np.int64)
    done = 0
    makespan = 0
    while size > 0:
        at, task = heap_ready[0], heap_task[0]
        pop(heap_ready, heap_task, size)
        size -= 1
        klass, rest = task % classes, task // classes
        stage = net.path_first[path[rest // stages]] + rest % stages
        lane = lane_of(frame, net.stage_sign[stage], klass)
        end = at
        if lane >= 0:
            end = max(at, lane_end[lane]) + net.stage_ticks[stage]
            lane_end[lane] = end
        position[task] = done
        line_task[done], line_ready[done], line_end[done] = task, at, end
        line_lane[done], line_enabler[done] = lane, enabler[task]
        done += 1
        makespan = max(makespan, end)
        for number in range(successors(net, frame, path, stages, task, buffer)):
            after = buffer[number]
            ready[after] = max(ready[after], end)
            waiting[after] -= 1
            if waiting[after] == 0:
                enabler[after] = task
                push(heap_ready, heap_task, size, ready[after], after)
                size += 1
    return makespan
