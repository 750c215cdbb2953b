"""Delta simulation: what a timeline becomes when one operator's configuration changes (FlexFlow Algorithm 2).

The timeline is simulated again from the first task that may differ. As soon as everything that is still going on
differs from the old timeline by one and the same time, the rest is the old one, shifted by it, up to the next task
that the change concerns (its gradients, say). Times are whole ticks, so what is shifted is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from tensoropt.mcmc.blob import (
    BACKWARD_SLOT,
    BUFFER_AFTER,
    BUFFER_BEFORE,
    CHANGED,
    CHANGED_PATH,
    CHANGED_SLOT,
    CLASSES,
    DIRTY,
    DIRTY_STATE,
    DIRTY_TASKS,
    EDGE_FROM,
    EDGE_TO,
    ENABLER,
    END,
    EPOCH,
    FORWARD_SLOT,
    FRESH_NEW,
    FRESH_OLD,
    GONE,
    GONE_TASKS,
    HEAP_READY,
    HEAP_TASK,
    IN_EDGE,
    IN_FIRST,
    LANE_END,
    LANES,
    LAST,
    LATEST,
    LINE_ENABLER,
    LINE_END,
    LINE_LANE,
    LINE_POSITION,
    LINE_READY,
    LINE_TASK,
    LOG_END,
    LOG_LANE,
    LOG_READY,
    LOG_TASK,
    LOGGED,
    OP_BACKWARD,
    OP_BASE,
    OP_FORWARD,
    OTHER_ENABLER,
    OTHER_END,
    OTHER_LANE,
    OTHER_READY,
    OTHER_TASK,
    OUT_EDGE,
    OUT_FIRST,
    PRESENT,
    REGION_FIRST,
    REGION_LAST,
    REGION_LOGGED,
    REGION_SHIFT,
    REGIONS,
    SHARED,
    SHIFT_BY,
    SHIFT_NEW,
    SHIFT_OLD,
    SHIFTS,
    SHIFTS_AT_ONCE,
    SLOT_DIRTY,
    SLOT_KIND,
    SLOT_REF,
    SPARE_READY,
    SPARE_TASK,
    STAMP,
    TASKS,
    TURN,
    WAITING,
    WAY_BACK_SLOT,
    WAY_SLOT,
)
from tensoropt.mcmc.kernels import lane_of, pop, predecessors, push, route, successors

__all__ = ["change", "commit", "restore"]

# Trying to skip costs as much as simulating a few tasks.
_LEAST_GAIN = 12


@njit(cache=True, nogil=True)
def _touch(first: Any, pool: Any, path: Any, work: Any, slot: int, new: int) -> bool:
    """Gives a slot another path, unless that has the same stages; whether it may."""
    old = path[slot]
    if new < 0:
        return False
    if old == new:
        return True
    here, there = first[old], first[new]
    length = first[old + 1] - here
    if first[new + 1] - there == length:
        same = True
        for stage in range(length):
            if pool[0, here + stage] != pool[0, there + stage] or pool[1, here + stage] != pool[1, there + stage]:
                same = False
                break
        if same:
            return True
    count = work[CHANGED]
    work[work[CHANGED_SLOT] + count], work[work[CHANGED_PATH] + count] = slot, old
    work[CHANGED] = count + 1
    path[slot] = new
    return True


@njit(cache=True, nogil=True)
def _mark(net: Any, frame: Any, first: Any, pool: Any, path: Any, work: Any, stages: int, slot: int, old: int) -> None:
    """Notes the tasks of a slot as dirty: those that it has, and those that it had under the path ``old``."""
    epoch = work[EPOCH]
    if work[work[SLOT_DIRTY] + slot] == epoch:
        return
    work[work[SLOT_DIRTY] + slot] = epoch
    classes = frame[CLASSES]
    new = path[slot]
    first_old, first_new = first[old], first[new]
    length_old, length_new = first[old + 1] - first_old, first[new + 1] - first_new
    for stage in range(max(length_old, length_new)):
        for klass in range(classes):
            had = stage < length_old and frame[frame[PRESENT] + pool[1, first_old + stage] * frame[CLASSES] + klass]
            has = stage < length_new and frame[frame[PRESENT] + pool[1, first_new + stage] * frame[CLASSES] + klass]
            task = (slot * stages + stage) * classes + klass
            if had and not has:
                work[work[GONE_TASKS] + work[GONE]] = task
                work[GONE] += 1
            if had or has:
                work[work[DIRTY_TASKS] + work[DIRTY]] = task
                work[work[DIRTY_STATE] + work[DIRTY]] = (1 if had else 0) + (2 if has else 0)
                work[DIRTY] += 1


@njit(cache=True, nogil=True)
def _prepare(
    net: Any,
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    assignment: Any,
    op: int,
    choice: int,
) -> bool:
    """Changes the paths around an operator and notes what may differ: these tasks, and those that wait for them.

    Returns:
        whether there are such paths.
    """
    work[EPOCH] += 1
    work[CHANGED] = work[GONE] = work[DIRTY] = work[LOGGED] = work[REGIONS] = 0
    _touch(first, pool, path, work, net[net[FORWARD_SLOT] + op], net[net[OP_FORWARD] + net[net[OP_BASE] + op] + choice])
    _touch(
        first, pool, path, work, net[net[BACKWARD_SLOT] + op], net[net[OP_BACKWARD] + net[net[OP_BASE] + op] + choice]
    )
    possible = True
    for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
        edge = net[net[IN_EDGE] + some]
        other = assignment[net[net[EDGE_FROM] + edge]]
        possible &= _touch(
            first, pool, path, work, net[net[WAY_SLOT] + edge], route(net, rows, routes, edge, False, other, choice)
        )
        possible &= _touch(
            first, pool, path, work, net[net[WAY_BACK_SLOT] + edge], route(net, rows, routes, edge, True, other, choice)
        )
    for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
        edge = net[net[OUT_EDGE] + some]
        other = assignment[net[net[EDGE_TO] + edge]]
        possible &= _touch(
            first, pool, path, work, net[net[WAY_SLOT] + edge], route(net, rows, routes, edge, False, choice, other)
        )
        possible &= _touch(
            first, pool, path, work, net[net[WAY_BACK_SLOT] + edge], route(net, rows, routes, edge, True, choice, other)
        )
    if not possible:
        return False
    changed = work[CHANGED]
    for number in range(changed):
        _mark(
            net,
            frame,
            first,
            pool,
            path,
            work,
            stages,
            work[work[CHANGED_SLOT] + number],
            work[work[CHANGED_PATH] + number],
        )
    for number in range(changed):
        slot = work[work[CHANGED_SLOT] + number]
        kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
        if kind == 0:
            after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + ref]]
            _mark(net, frame, first, pool, path, work, stages, after, path[after])
        elif kind == 3:
            after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + ref]]
            _mark(net, frame, first, pool, path, work, stages, after, path[after])
        elif kind == 1:
            for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
                edge = net[net[OUT_EDGE] + some]
                after = net[net[WAY_SLOT] + edge]
                _mark(net, frame, first, pool, path, work, stages, after, path[after])
                if path[after] == 0:
                    after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + edge]]
                    _mark(net, frame, first, pool, path, work, stages, after, path[after])
            after = net[net[BACKWARD_SLOT] + ref]
            _mark(net, frame, first, pool, path, work, stages, after, path[after])
        else:
            for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
                edge = net[net[IN_EDGE] + some]
                after = net[net[WAY_BACK_SLOT] + edge]
                _mark(net, frame, first, pool, path, work, stages, after, path[after])
                if path[after] == 0:
                    after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + edge]]
                    _mark(net, frame, first, pool, path, work, stages, after, path[after])
    return True


@njit(cache=True, nogil=True)
def _is_done(work: Any, base: int, task: int) -> bool:
    """Whether a task has been taken: simulated, or in a part that was skipped."""
    if work[work[STAMP] + task] == work[EPOCH]:
        return True
    place = work[work[LINE_POSITION] + task]
    return 0 <= place < base


@njit(cache=True, nogil=True)
def _end_of(work: Any, task: int) -> int:
    """When a task that has been taken ends."""
    if work[work[STAMP] + task] == work[EPOCH]:
        return int(work[work[END] + task])
    place = work[work[LINE_POSITION] + task]
    for region in range(work[REGIONS] - 1, -1, -1):
        if work[work[REGION_FIRST] + region] <= place:
            return int(work[work[LINE_END] + place] + work[work[REGION_SHIFT] + region])
    return int(work[work[LINE_END] + place])


@njit(cache=True, nogil=True)
def _turn(work: Any, task: int) -> int:
    """Orders the tasks that have been taken: parts that were skipped lie between those that were simulated."""
    if work[work[STAMP] + task] == work[EPOCH]:
        return int((2 * work[work[TURN] + task] + 1) << 32)
    place = work[work[LINE_POSITION] + task]
    region = work[REGIONS] - 1
    while region > 0 and work[work[REGION_FIRST] + region] > place:
        region -= 1
    return int(((2 * work[work[REGION_LOGGED] + region]) << 32) + place)


@njit(cache=True, nogil=True)
def _consider(
    net: Any, frame: Any, first: Any, pool: Any, path: Any, work: Any, stages: int, base: int, task: int, size: int
) -> int:
    """Makes a task wait for its turn if all that it waits for has been taken; returns how many wait."""
    epoch = work[EPOCH]
    if work[work[STAMP] + task] == epoch or work[work[WAITING] + task] == epoch:
        return size
    count = predecessors(net, frame, first, pool, path, stages, task, work, work[BUFFER_BEFORE])
    for number in range(count):
        if not _is_done(work, base, work[work[BUFFER_BEFORE] + number]):
            return size
    ready = 0
    enabler, latest = -1, -1
    for number in range(count):
        before = work[work[BUFFER_BEFORE] + number]
        ready = max(ready, _end_of(work, before))
        turn = _turn(work, before)
        if turn > latest:
            enabler, latest = before, turn
    work[work[WAITING] + task] = epoch
    work[work[ENABLER] + task] = enabler
    push(work, work[HEAP_READY], work[HEAP_TASK], size, ready, task)
    return size + 1


@njit(cache=True, nogil=True)
def _limit(
    net: Any, frame: Any, first: Any, pool: Any, path: Any, work: Any, stages: int, base: int, total: int
) -> int:
    """The first place of the old timeline, from ``base`` on, at which something that the change concerns happens."""
    epoch = work[EPOCH]
    result = total
    for number in range(work[DIRTY]):
        task, state = work[work[DIRTY_TASKS] + number], work[work[DIRTY_STATE] + number]
        if state & 1 and work[work[LINE_POSITION] + task] >= base:
            result = min(result, work[work[LINE_POSITION] + task])
        if not state & 2 or work[work[STAMP] + task] == epoch or work[work[WAITING] + task] == epoch:
            continue
        # It becomes ready with the last task that it waits for; if that is one of these, it is not near.
        last = base
        for some in range(predecessors(net, frame, first, pool, path, stages, task, work, work[BUFFER_BEFORE])):
            before = work[work[BUFFER_BEFORE] + some]
            if _is_done(work, base, before):
                continue
            slot = before // (stages * frame[CLASSES])
            last = total if work[work[SLOT_DIRTY] + slot] == epoch else max(last, work[work[LINE_POSITION] + before])
        result = min(result, last)
    return result


@njit(cache=True, nogil=True)
def _shift(work: Any, base: int, size: int) -> Any:
    """Whether all that is going on is as in the old timeline, only later by one time.

    Args:
        work: the old timeline, and the state of the simulation.
        base: from this place of the old timeline on, tasks were simulated.
        size: how many tasks wait for their turn.

    Returns:
        the place in the old timeline, or -1 if not; and the shift.
    """
    place = work[LAST] + 1
    inside = 0
    for number in range(work[GONE]):
        gone = work[work[LINE_POSITION] + work[work[GONE_TASKS] + number]]
        if base <= gone < place:
            inside += 1
    if work[SHARED] != place - base - inside:
        return -1, 0
    head = work[work[LINE_POSITION] + work[work[HEAP_TASK]]]
    if head < 0:
        return -1, 0
    now, then = work[work[HEAP_READY]], work[work[LINE_READY] + head]
    shift = now - then
    moving = True
    while moving:  # tasks that are gone count as taken, if they do not matter any more
        moving = False
        for number in range(work[GONE]):
            if work[work[LINE_POSITION] + work[work[GONE_TASKS] + number]] == place:
                place += 1
                moving = True
    for number in range(work[GONE]):
        gone = work[work[LINE_POSITION] + work[work[GONE_TASKS] + number]]
        if gone < place and work[work[LINE_END] + gone] > then:
            return -1, 0
    if work[FRESH_NEW] > now or work[FRESH_OLD] > then:
        return -1, 0
    for number in range(work[SHIFTS]):
        if work[work[SHIFT_BY] + number] != shift and (
            work[work[SHIFT_NEW] + number] > now or work[work[SHIFT_OLD] + number] > then
        ):
            return -1, 0
    for number in range(size):
        task = work[work[HEAP_TASK] + number]
        at = work[work[LINE_POSITION] + task]
        if at < 0 or work[work[HEAP_READY] + number] - work[work[LINE_READY] + at] != shift:
            return -1, 0
    return place, shift


@njit(cache=True, nogil=True)
def _note(work: Any, by: int, new: int, old: int) -> None:
    """Notes by how much a task's end differs, and when it ends."""
    for number in range(work[SHIFTS]):
        if work[work[SHIFT_BY] + number] == by:
            work[work[SHIFT_NEW] + number] = max(work[work[SHIFT_NEW] + number], new)
            work[work[SHIFT_OLD] + number] = max(work[work[SHIFT_OLD] + number], old)
            return
    if work[SHIFTS] == SHIFTS_AT_ONCE:
        work[FRESH_NEW] = max(work[FRESH_NEW], new)
        work[FRESH_OLD] = max(work[FRESH_OLD], old)
        return
    number = work[SHIFTS]
    work[work[SHIFT_BY] + number], work[work[SHIFT_NEW] + number], work[work[SHIFT_OLD] + number] = by, new, old
    work[SHIFTS] += 1


@njit(cache=True, nogil=True)
def _skip(
    net: Any,
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    start: int,
    stop: int,
    shift: int,
    size: int,
) -> int:
    """Takes the part ``start ... stop - 1`` of the old timeline, later by ``shift``; how many tasks wait then."""
    epoch = work[EPOCH]
    region = work[REGIONS]
    work[work[REGION_FIRST] + region], work[work[REGION_LAST] + region] = start, stop
    work[work[REGION_SHIFT] + region], work[work[REGION_LOGGED] + region] = shift, work[LOGGED]
    work[REGIONS] = region + 1
    latest = work[LATEST]
    for place in range(start, stop):
        end = work[work[LINE_END] + place]
        lane = work[work[LINE_LANE] + place]
        latest = max(latest, end)
        if lane >= 0:
            work[work[LANE_END] + lane] = end + shift
    kept = 0
    old_size = size
    for number in range(old_size):
        task, ready = work[work[HEAP_TASK] + number], work[work[HEAP_READY] + number]
        if work[work[LINE_POSITION] + task] >= stop:
            push(work, work[SPARE_READY], work[SPARE_TASK], kept, ready, task)
            kept += 1
    for number in range(kept):
        work[work[HEAP_READY] + number], work[work[HEAP_TASK] + number] = (
            work[work[SPARE_READY] + number],
            work[work[SPARE_TASK] + number],
        )
    size = kept
    classes = frame[CLASSES]
    place = stop
    while place < work[TASKS] and work[work[LINE_READY] + place] <= latest:
        task, enabler = work[work[LINE_TASK] + place], work[work[LINE_ENABLER] + place]
        before = -1 if enabler < 0 else work[work[LINE_POSITION] + enabler]
        if (
            (before >= start or (start == 0 and before < 0))
            and before < stop
            and work[work[WAITING] + task] != epoch
            and work[work[SLOT_DIRTY] + task // (stages * classes)] != epoch
        ):
            work[work[WAITING] + task] = epoch
            work[work[ENABLER] + task] = enabler
            push(work, work[HEAP_READY], work[HEAP_TASK], size, work[work[LINE_READY] + place] + shift, task)
            size += 1
        place += 1
    # From here on only what still runs matters: it ends no later than its lane is free.
    work[LAST], work[SHIFTS], work[LATEST] = stop - 1, 0, latest
    work[FRESH_NEW] = work[FRESH_OLD] = -1
    _note(work, shift, latest + shift, latest)
    work[SHARED] = 0
    for number in range(work[DIRTY]):
        if work[work[DIRTY_STATE] + number] & 2:
            size = _consider(net, frame, first, pool, path, work, stages, stop, work[work[DIRTY_TASKS] + number], size)
    return size


@njit(cache=True, nogil=True)
def change(
    net: Any,
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    assignment: Any,
    op: int,
    choice: int,
    limit: int,
) -> int:
    """The makespan when one operator has another configuration.

    ``path`` is changed; :func:`commit` makes the timeline follow, :func:`restore` takes the change back.

    Args:
        net: of the network.
        frame: of the classes.
        first: where each path's stages begin.
        pool: ticks and signatures of stages.
        path: of each slot.
        work: the timeline, and room to work in.
        stages: the most of any path.
        rows: where each row of routes begins, -1 if it is not known.
        routes: the path of each route.
        assignment: the configurations so far.
        op: the operator.
        choice: its new configuration.
        limit: it is not wanted if it is longer than this.

    Returns:
        the makespan, or -1 if it exceeds the limit, or if there is no such strategy.
    """
    if not _prepare(net, frame, first, pool, path, work, stages, rows, routes, assignment, op, choice):
        return -1
    epoch, total = work[EPOCH], work[TASKS]
    classes = frame[CLASSES]
    for lane in range(work[LANES]):
        work[work[LANE_END] + lane] = 0
    work[LATEST] = 0
    base = _limit(net, frame, first, pool, path, work, stages, 0, total)
    size = _skip(net, frame, first, pool, path, work, stages, 0, base, 0, 0)
    tries, pause = 2, 2
    while size > 0:
        if tries <= 0:
            start, shift = _shift(work, base, size)
            tries = pause
            pause = min(2 * pause, 64)
            if start >= 0:
                stop = _limit(net, frame, first, pool, path, work, stages, start, total)
                if stop - start >= _LEAST_GAIN:
                    base = stop
                    size = _skip(net, frame, first, pool, path, work, stages, start, stop, shift, size)
                    tries, pause = 2, 2
                    continue
        tries -= 1
        ready, task = work[work[HEAP_READY]], work[work[HEAP_TASK]]
        pop(work, work[HEAP_READY], work[HEAP_TASK], size)
        size -= 1
        klass, rest = task % classes, task // classes
        slot = rest // stages
        stage = first[path[slot]] + rest % stages
        lane = lane_of(frame, pool[1, stage], klass)
        end = ready
        if lane >= 0:
            end = max(ready, work[work[LANE_END] + lane]) + pool[0, stage]
            work[work[LANE_END] + lane] = end
        if end > limit:
            return -1
        logged = work[LOGGED]
        work[work[STAMP] + task], work[work[END] + task], work[work[TURN] + task] = epoch, end, logged
        work[work[LOG_TASK] + logged], work[work[LOG_READY] + logged], work[work[LOG_END] + logged] = task, ready, end
        work[work[LOG_LANE] + logged] = lane
        work[LOGGED] = logged + 1
        place = work[work[LINE_POSITION] + task]
        if place >= 0:
            work[SHARED] += 1
            work[LAST] = max(work[LAST], place)
            work[LATEST] = max(work[LATEST], work[work[LINE_END] + place])
            if work[work[LINE_LANE] + place] == lane:
                _note(work, end - work[work[LINE_END] + place], end, work[work[LINE_END] + place])
            else:
                work[FRESH_NEW] = max(work[FRESH_NEW], end)
                work[FRESH_OLD] = max(work[FRESH_OLD], work[work[LINE_END] + place])
        else:
            work[FRESH_NEW] = max(work[FRESH_NEW], end)
        for number in range(successors(net, frame, first, pool, path, stages, task, work, work[BUFFER_AFTER])):
            size = _consider(net, frame, first, pool, path, work, stages, base, work[work[BUFFER_AFTER] + number], size)
    makespan = 0
    for lane in range(work[LANES]):
        makespan = max(makespan, work[work[LANE_END] + lane])
    return makespan if makespan <= limit else -1


@njit(cache=True, nogil=True)
def restore(work: Any, path: Any) -> None:
    """Takes a change back that is not wanted."""
    for number in range(work[CHANGED] - 1, -1, -1):
        path[work[work[CHANGED_SLOT] + number]] = work[work[CHANGED_PATH] + number]


@njit(cache=True, nogil=True)
def commit(work: Any) -> None:
    """Makes the timeline that of the change: it is written beside the old one, which then is room for the next."""
    for number in range(work[GONE]):
        work[work[LINE_POSITION] + work[work[GONE_TASKS] + number]] = -1
    done = 0
    region = 0
    for logged in range(work[LOGGED] + 1):
        while region < work[REGIONS] and work[work[REGION_LOGGED] + region] == logged:
            shift = work[work[REGION_SHIFT] + region]
            for place in range(work[work[REGION_FIRST] + region], work[work[REGION_LAST] + region]):
                work[work[OTHER_TASK] + done], work[work[OTHER_LANE] + done] = (
                    work[work[LINE_TASK] + place],
                    work[work[LINE_LANE] + place],
                )
                work[work[OTHER_READY] + done], work[work[OTHER_END] + done] = (
                    work[work[LINE_READY] + place] + shift,
                    work[work[LINE_END] + place] + shift,
                )
                # What was waiting already when the part was skipped may have waited for another task last.
                task = work[work[LINE_TASK] + place]
                known = work[work[WAITING] + task] == work[EPOCH]
                work[work[OTHER_ENABLER] + done] = (
                    work[work[ENABLER] + task] if known else work[work[LINE_ENABLER] + place]
                )
                work[work[LINE_POSITION] + task] = done
                done += 1
            region += 1
        if logged < work[LOGGED]:
            task = work[work[LOG_TASK] + logged]
            work[work[OTHER_TASK] + done], work[work[OTHER_LANE] + done] = task, work[work[LOG_LANE] + logged]
            work[work[OTHER_READY] + done], work[work[OTHER_END] + done] = (
                work[work[LOG_READY] + logged],
                work[work[LOG_END] + logged],
            )
            work[work[OTHER_ENABLER] + done] = work[work[ENABLER] + task]
            work[work[LINE_POSITION] + task] = done
            done += 1
    work[TASKS] = done
    for field in range(OTHER_ENABLER - OTHER_TASK + 1):
        work[LINE_TASK + field], work[OTHER_TASK + field] = work[OTHER_TASK + field], work[LINE_TASK + field]
