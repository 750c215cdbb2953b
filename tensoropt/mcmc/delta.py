"""Delta simulation: what a timeline becomes when one operator's configuration changes (FlexFlow Algorithm 2).

The timeline is simulated again from the first task that may differ. As soon as everything that is still going on
differs from the old timeline by one and the same time, the rest is the old one, shifted by it, up to the next task
that the change concerns (its gradients, say). Times are whole ticks, so what is shifted is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tensoropt.mcmc.kernels import lane_of, pop, predecessors, push, route, successors

__all__ = ["change", "commit", "restore"]

# Entries of Work.counts.
TASKS, LOGGED, REGIONS, CHANGED, GONE, DIRTY, EPOCH, SHARED = range(8)
# So many different shifts are told apart at once; with more, no part is skipped until they are over.
_SHIFTS = 32
# Trying to skip costs as much as simulating a few tasks.
_LEAST_GAIN = 12


@njit(cache=True, nogil=True)
def _touch(net: Any, work: Any, path: Any, slot: int, new: int) -> bool:
    """Gives a slot another path, unless that has the same stages; whether it may."""
    old = path[slot]
    if new < 0:
        return False
    if old == new:
        return True
    first, other = net.path_first[old], net.path_first[new]
    length = net.path_first[old + 1] - first
    if net.path_first[new + 1] - other == length:
        same = True
        for stage in range(length):
            if (
                net.stage_ticks[first + stage] != net.stage_ticks[other + stage]
                or net.stage_sign[first + stage] != net.stage_sign[other + stage]
            ):
                same = False
                break
        if same:
            return True
    count = work.counts[CHANGED]
    work.changed_slot[count], work.changed_path[count] = slot, old
    work.counts[CHANGED] = count + 1
    path[slot] = new
    return True


@njit(cache=True, nogil=True)
def _mark(net: Any, frame: Any, work: Any, path: Any, stages: int, slot: int, old: int) -> None:
    """Notes the tasks of a slot as dirty: those that it has, and those that it had under the path ``old``."""
    epoch = work.counts[EPOCH]
    if work.slot_dirty[slot] == epoch:
        return
    work.slot_dirty[slot] = epoch
    classes = frame.present.shape[1]
    new = path[slot]
    first_old, first_new = net.path_first[old], net.path_first[new]
    length_old, length_new = net.path_first[old + 1] - first_old, net.path_first[new + 1] - first_new
    for stage in range(max(length_old, length_new)):
        for klass in range(classes):
            had = stage < length_old and frame.present[net.stage_sign[first_old + stage], klass]
            has = stage < length_new and frame.present[net.stage_sign[first_new + stage], klass]
            task = (slot * stages + stage) * classes + klass
            if had and not has:
                work.gone[work.counts[GONE]] = task
                work.counts[GONE] += 1
            if had or has:
                work.dirty[work.counts[DIRTY]] = task
                work.dirty_state[work.counts[DIRTY]] = (1 if had else 0) + (2 if has else 0)
                work.counts[DIRTY] += 1


@njit(cache=True, nogil=True)
def _prepare(net: Any, frame: Any, work: Any, path: Any, stages: int, assignment: Any, op: int, choice: int) -> bool:
    """Changes the paths around an operator and notes what may differ: these tasks, and those that wait for them.

    Returns:
        whether there are such paths.
    """
    counts = work.counts
    counts[EPOCH] += 1
    counts[CHANGED] = counts[GONE] = counts[DIRTY] = counts[LOGGED] = counts[REGIONS] = 0
    _touch(net, work, path, net.forward_slot[op], net.op_forward[net.op_base[op] + choice])
    _touch(net, work, path, net.backward_slot[op], net.op_backward[net.op_base[op] + choice])
    possible = True
    for some in range(net.in_first[op], net.in_first[op + 1]):
        edge = net.in_edge[some]
        other = assignment[net.edge_from[edge]]
        possible &= _touch(net, work, path, net.way_slot[edge], route(net, edge, False, other, choice))
        possible &= _touch(net, work, path, net.way_back_slot[edge], route(net, edge, True, other, choice))
    for some in range(net.out_first[op], net.out_first[op + 1]):
        edge = net.out_edge[some]
        other = assignment[net.edge_to[edge]]
        possible &= _touch(net, work, path, net.way_slot[edge], route(net, edge, False, choice, other))
        possible &= _touch(net, work, path, net.way_back_slot[edge], route(net, edge, True, choice, other))
    if not possible:
        return False
    changed = counts[CHANGED]
    for number in range(changed):
        _mark(net, frame, work, path, stages, work.changed_slot[number], work.changed_path[number])
    for number in range(changed):
        slot = work.changed_slot[number]
        kind, ref = net.slot_kind[slot], net.slot_ref[slot]
        if kind == 0:
            after = net.forward_slot[net.edge_to[ref]]
            _mark(net, frame, work, path, stages, after, path[after])
        elif kind == 3:
            after = net.backward_slot[net.edge_from[ref]]
            _mark(net, frame, work, path, stages, after, path[after])
        elif kind == 1:
            for some in range(net.out_first[ref], net.out_first[ref + 1]):
                edge = net.out_edge[some]
                after = net.way_slot[edge]
                _mark(net, frame, work, path, stages, after, path[after])
                if path[after] == 0:
                    after = net.forward_slot[net.edge_to[edge]]
                    _mark(net, frame, work, path, stages, after, path[after])
            after = net.backward_slot[ref]
            _mark(net, frame, work, path, stages, after, path[after])
        else:
            for some in range(net.in_first[ref], net.in_first[ref + 1]):
                edge = net.in_edge[some]
                after = net.way_back_slot[edge]
                _mark(net, frame, work, path, stages, after, path[after])
                if path[after] == 0:
                    after = net.backward_slot[net.edge_from[edge]]
                    _mark(net, frame, work, path, stages, after, path[after])
    return True


@njit(cache=True, nogil=True)
def _is_done(line: Any, work: Any, base: int, task: int) -> bool:
    """Whether a task has been taken: simulated, or in a part that was skipped."""
    if work.stamp[task] == work.counts[EPOCH]:
        return True
    place = line.position[task]
    return 0 <= place < base


@njit(cache=True, nogil=True)
def _end_of(line: Any, work: Any, task: int) -> int:
    """When a task that has been taken ends."""
    if work.stamp[task] == work.counts[EPOCH]:
        return int(work.end[task])
    place = line.position[task]
    for region in range(work.counts[REGIONS] - 1, -1, -1):
        if work.region_first[region] <= place:
            return int(line.end[place] + work.region_shift[region])
    return int(line.end[place])


@njit(cache=True, nogil=True)
def _turn(line: Any, work: Any, task: int) -> int:
    """Orders the tasks that have been taken: parts that were skipped lie between those that were simulated."""
    if work.stamp[task] == work.counts[EPOCH]:
        return int(((2 * work.turn[task] + 1) << 32))
    place = line.position[task]
    region = work.counts[REGIONS] - 1
    while region > 0 and work.region_first[region] > place:
        region -= 1
    return int(((2 * work.region_logged[region]) << 32) + place)


@njit(cache=True, nogil=True)
def _consider(net: Any, frame: Any, line: Any, work: Any, path: Any, stages: int, base: int, task: int, size: int) -> int:
    """Makes a task wait for its turn if all that it waits for has been taken; returns how many wait."""
    epoch = work.counts[EPOCH]
    if work.stamp[task] == epoch or work.waiting[task] == epoch:
        return size
    count = predecessors(net, frame, path, stages, task, work.buffer_before)
    for number in range(count):
        if not _is_done(line, work, base, work.buffer_before[number]):
            return size
    ready = 0
    enabler, latest = -1, -1
    for number in range(count):
        before = work.buffer_before[number]
        ready = max(ready, _end_of(line, work, before))
        turn = _turn(line, work, before)
        if turn > latest:
            enabler, latest = before, turn
    work.waiting[task] = epoch
    work.enabler[task] = enabler
    push(work.heap_ready, work.heap_task, size, ready, task)
    return size + 1


@njit(cache=True, nogil=True)
def _limit(net: Any, frame: Any, line: Any, work: Any, path: Any, stages: int, base: int, total: int) -> int:
    """The first place of the old timeline, from ``base`` on, at which something that the change concerns happens."""
    epoch = work.counts[EPOCH]
    result = total
    for number in range(work.counts[DIRTY]):
        task, state = work.dirty[number], work.dirty_state[number]
        if state & 1 and line.position[task] >= base:
            result = min(result, line.position[task])
        if not state & 2 or work.stamp[task] == epoch or work.waiting[task] == epoch:
            continue
        # It becomes ready with the last task that it waits for; if that is one of these, it is not near.
        last = base
        for some in range(predecessors(net, frame, path, stages, task, work.buffer_before)):
            before = work.buffer_before[some]
            if _is_done(line, work, base, before):
                continue
            slot = before // (stages * frame.present.shape[1])
            last = total if work.slot_dirty[slot] == epoch else max(last, line.position[before])
        result = min(result, last)
    return result


@njit(cache=True, nogil=True)
def _shift(line: Any, work: Any, base: int, size: int, shifts: Any) -> Any:
    """Whether all that is going on is as in the old timeline, only later by one time.

    Args:
        line: the old timeline.
        work: the state of the simulation.
        base: from this place of the old timeline on, tasks were simulated.
        size: how many tasks wait for their turn.
        shifts: see :func:`change`.

    Returns:
        the place in the old timeline, or -1 if not; and the shift.
    """
    counts = work.counts
    place = shifts.last[0] + 1
    inside = 0
    for number in range(counts[GONE]):
        gone = line.position[work.gone[number]]
        if base <= gone < place:
            inside += 1
    if counts[SHARED] != place - base - inside:
        return -1, 0
    first = work.heap_task[0]
    if line.position[first] < 0:
        return -1, 0
    now, then = work.heap_ready[0], line.ready[line.position[first]]
    shift = now - then
    moving = True
    while moving:  # tasks that are gone count as taken, if they do not matter any more
        moving = False
        for number in range(counts[GONE]):
            if line.position[work.gone[number]] == place:
                place += 1
                moving = True
    for number in range(counts[GONE]):
        gone = line.position[work.gone[number]]
        if gone < place and line.end[gone] > then:
            return -1, 0
    if shifts.fresh[0] > now or shifts.fresh[1] > then:
        return -1, 0
    for number in range(shifts.last[1]):
        if shifts.by[number] != shift and (shifts.new[number] > now or shifts.old[number] > then):
            return -1, 0
    for number in range(size):
        task = work.heap_task[number]
        at = line.position[task]
        if at < 0 or work.heap_ready[number] - line.ready[at] != shift:
            return -1, 0
    return place, shift


@njit(cache=True, nogil=True)
def _note(shifts: Any, by: int, new: int, old: int) -> None:
    """Notes by how much a task's end differs, and when it ends."""
    for number in range(shifts.last[1]):
        if shifts.by[number] == by:
            shifts.new[number] = max(shifts.new[number], new)
            shifts.old[number] = max(shifts.old[number], old)
            return
    if shifts.last[1] == _SHIFTS:
        shifts.fresh[0] = max(shifts.fresh[0], new)
        shifts.fresh[1] = max(shifts.fresh[1], old)
        return
    number = shifts.last[1]
    shifts.by[number], shifts.new[number], shifts.old[number] = by, new, old
    shifts.last[1] += 1


@njit(cache=True, nogil=True)
def _skip(
    net: Any,
    frame: Any,
    line: Any,
    work: Any,
    path: Any,
    stages: int,
    start: int,
    stop: int,
    shift: int,
    size: int,
    shifts: Any,
) -> int:
    """Takes the part ``start ... stop - 1`` of the old timeline, later by ``shift``; returns how many tasks wait then."""
    counts = work.counts
    epoch = counts[EPOCH]
    region = counts[REGIONS]
    work.region_first[region], work.region_last[region] = start, stop
    work.region_shift[region], work.region_logged[region] = shift, counts[LOGGED]
    counts[REGIONS] = region + 1
    latest = shifts.last[2]
    for place in range(start, stop):
        end = line.end[place]
        lane = line.lane[place]
        latest = max(latest, end)
        if lane >= 0:
            work.lane_end[lane] = end + shift
    kept = 0
    old_size = size
    for number in range(old_size):
        task, ready = work.heap_task[number], work.heap_ready[number]
        if line.position[task] >= stop:
            push(work.spare_ready, work.spare_task, kept, ready, task)
            kept += 1
    for number in range(kept):
        work.heap_ready[number], work.heap_task[number] = work.spare_ready[number], work.spare_task[number]
    size = kept
    classes = frame.present.shape[1]
    place = stop
    while place < counts[TASKS] and line.ready[place] <= latest:
        task, enabler = line.task[place], line.enabler[place]
        before = -1 if enabler < 0 else line.position[enabler]
        if (
            (before >= start or (start == 0 and before < 0))
            and before < stop
            and work.waiting[task] != epoch
            and work.slot_dirty[task // (stages * classes)] != epoch
        ):
            work.waiting[task] = epoch
            work.enabler[task] = enabler
            push(work.heap_ready, work.heap_task, size, line.ready[place] + shift, task)
            size += 1
        place += 1
    # From here on only what still runs matters: it ends no later than its lane is free.
    shifts.last[0], shifts.last[1], shifts.last[2] = stop - 1, 0, latest
    shifts.fresh[0] = shifts.fresh[1] = -1
    _note(shifts, shift, latest + shift, latest)
    counts[SHARED] = 0
    for number in range(counts[DIRTY]):
        if work.dirty_state[number] & 2:
            size = _consider(net, frame, line, work, path, stages, stop, work.dirty[number], size)
    return size


@njit(cache=True, nogil=True)
def change(
    net: Any,
    frame: Any,
    line: Any,
    work: Any,
    path: Any,
    stages: int,
    assignment: Any,
    op: int,
    choice: int,
    limit: int,
    shifts: Any,
) -> int:
    """The makespan when one operator has another configuration.

    ``path`` is changed; :func:`commit` makes the timeline follow, :func:`restore` takes the change back.

    Args:
        net: arrays of the network.
        frame: of the classes.
        line: the timeline so far.
        work: room to work in.
        path: of each slot.
        stages: the most of any path.
        assignment: the configurations so far.
        op: the operator.
        choice: its new configuration.
        limit: it is not wanted if it is longer than this.
        shifts: room for the different times by which tasks are later than before.

    Returns:
        the makespan, or -1 if it exceeds the limit, or if there is no such strategy.
    """
    counts = work.counts
    if not _prepare(net, frame, work, path, stages, assignment, op, choice):
        return -1
    epoch, total = counts[EPOCH], counts[TASKS]
    classes = frame.present.shape[1]
    work.lane_end[:] = 0
    shifts.last[2] = 0
    base = _limit(net, frame, line, work, path, stages, 0, total)
    size = _skip(net, frame, line, work, path, stages, 0, base, 0, 0, shifts)
    tries, pause = 2, 2
    while size > 0:
        if tries <= 0:
            start, shift = _shift(line, work, base, size, shifts)
            tries = pause
            pause = min(2 * pause, 64)
            if start >= 0:
                stop = _limit(net, frame, line, work, path, stages, start, total)
                if stop - start >= _LEAST_GAIN:
                    base = stop
                    size = _skip(net, frame, line, work, path, stages, start, stop, shift, size, shifts)
                    tries, pause = 2, 2
                    continue
        tries -= 1
        ready, task = work.heap_ready[0], work.heap_task[0]
        pop(work.heap_ready, work.heap_task, size)
        size -= 1
        klass, rest = task % classes, task // classes
        slot = rest // stages
        stage = net.path_first[path[slot]] + rest % stages
        lane = lane_of(frame, net.stage_sign[stage], klass)
        end = ready
        if lane >= 0:
            end = max(ready, work.lane_end[lane]) + net.stage_ticks[stage]
            work.lane_end[lane] = end
        if end > limit:
            return -1
        logged = counts[LOGGED]
        work.stamp[task], work.end[task], work.turn[task] = epoch, end, logged
        work.log_task[logged], work.log_ready[logged], work.log_end[logged] = task, ready, end
        work.log_lane[logged] = lane
        counts[LOGGED] = logged + 1
        place = line.position[task]
        if place >= 0:
            counts[SHARED] += 1
            shifts.last[0] = max(shifts.last[0], place)
            shifts.last[2] = max(shifts.last[2], line.end[place])
            if line.lane[place] == lane:
                _note(shifts, end - line.end[place], end, line.end[place])
            else:
                shifts.fresh[0] = max(shifts.fresh[0], end)
                shifts.fresh[1] = max(shifts.fresh[1], line.end[place])
        else:
            shifts.fresh[0] = max(shifts.fresh[0], end)
        for number in range(successors(net, frame, path, stages, task, work.buffer_after)):
            size = _consider(net, frame, line, work, path, stages, base, work.buffer_after[number], size)
    makespan = 0
    for lane in range(len(work.lane_end)):
        makespan = max(makespan, work.lane_end[lane])
    return makespan if makespan <= limit else -1


@njit(cache=True, nogil=True)
def restore(work: Any, path: Any) -> None:
    """Takes a change back that is not wanted."""
    for number in range(work.counts[CHANGED] - 1, -1, -1):
        path[work.changed_slot[number]] = work.changed_path[number]


@njit(cache=True, nogil=True)
def commit(line: Any, other: Any, work: Any) -> None:
    """Makes the timeline that of the change: from ``line`` into ``other``, which shares the tasks' places."""
    counts = work.counts
    for number in range(counts[GONE]):
        line.position[work.gone[number]] = -1
    done = 0
    region = 0
    for logged in range(counts[LOGGED] + 1):
        while region < counts[REGIONS] and work.region_logged[region] == logged:
            shift = work.region_shift[region]
            for place in range(work.region_first[region], work.region_last[region]):
                other.task[done], other.lane[done] = line.task[place], line.lane[place]
                other.ready[done], other.end[done] = line.ready[place] + shift, line.end[place] + shift
                # What was waiting already when the part was skipped may have waited for another task last.
                task = line.task[place]
                known = work.waiting[task] == counts[EPOCH]
                other.enabler[done] = work.enabler[task] if known else line.enabler[place]
                line.position[task] = done
                done += 1
            region += 1
        if logged < counts[LOGGED]:
            task = work.log_task[logged]
            other.task[done], other.lane[done] = task, work.log_lane[logged]
            other.ready[done], other.end[done] = work.log_ready[logged], work.log_end[logged]
            other.enabler[done] = work.enabler[task]
            line.position[task] = done
            done += 1
    counts[TASKS] = done
