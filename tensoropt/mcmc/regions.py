"""Parts of the old timeline that a changed one takes over, as they are or later by one time."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BUFFER_BEFORE,
    CLASSES,
    DIRTY,
    DIRTY_STATE,
    DIRTY_TASKS,
    ENABLER,
    END,
    EPOCH,
    FRESH_NEW,
    FRESH_OLD,
    GONE,
    GONE_TASKS,
    HEAP_READY,
    HEAP_TASK,
    HERE_BUSY,
    HERE_LAST,
    LANE_END,
    LANE_LEFT,
    LANES,
    LAST,
    LATEST,
    LINE_ENABLER,
    LINE_END,
    LINE_POSITION,
    LINE_READY,
    LINE_TASK,
    LOGGED,
    OPEN,
    OTHER_NEW,
    OTHER_OLD,
    PHASE,
    REGION_FIRST,
    REGION_LAST,
    REGION_LOGGED,
    REGION_SHIFT,
    REGIONS,
    SHARED,
    SHIFT_BY,
    SHIFT_NEW,
    SHIFT_OLD,
    SLOT_DIRTY,
    SPARE_READY,
    SPARE_TASK,
    STAMP,
    TASKS,
    THERE_BUSY,
    THERE_LAST,
    TURN,
    WAITING,
    WIDTH,
)
from tensoropt.mcmc.compiled import compiled, inlined
from tensoropt.mcmc.heap import push
from tensoropt.mcmc.links import tasks_before
from tensoropt.mcmc.marks import look_back

__all__ = ["consider", "find_shift", "next_change", "note", "skip"]


@inlined
def _is_done(work: Any, base: int, task: int) -> bool:
    """Whether a task has been taken: simulated, or in a part that was skipped."""
    if work[work[STAMP] + WIDTH * task] == work[EPOCH]:
        return True
    place = work[work[LINE_POSITION] + WIDTH * task]
    return 0 <= place < base


@inlined
def _end_of(work: Any, task: int) -> int:
    """When a task that has been taken ends."""
    if work[work[STAMP] + WIDTH * task] == work[EPOCH]:
        return int(work[work[END] + WIDTH * task])
    place = work[work[LINE_POSITION] + WIDTH * task]
    for region in range(work[REGIONS] - 1, -1, -1):
        if work[work[REGION_FIRST] + region] <= place:
            return int(work[work[LINE_END] + place] + work[work[REGION_SHIFT] + region])
    return int(work[work[LINE_END] + place])


@inlined
def _turn(work: Any, task: int) -> int:
    """Orders the tasks that have been taken: parts that were skipped lie between those that were simulated."""
    if work[work[STAMP] + WIDTH * task] == work[EPOCH]:
        return int((2 * work[work[TURN] + WIDTH * task] + 1) << 32)
    place = work[work[LINE_POSITION] + WIDTH * task]
    region = work[REGIONS] - 1
    while region > 0 and work[work[REGION_FIRST] + region] > place:
        region -= 1
    return int(((2 * work[work[REGION_LOGGED] + region]) << 32) + place)


@inlined
def consider(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    base: int,
    task: int,
    by: int,
    size: int,
) -> int:
    """Makes a task wait for its turn if all that it waits for has been taken.

    How many of these have not is counted once, and again after each part that is skipped.

    Args:
        net: of the network.
        frame: of the classes.
        pool: the stages of paths.
        path: of each slot.
        work: the simulation.
        stages: the most of any path.
        base: tasks of the old timeline before it that were not simulated have been skipped.
        task: to look at.
        by: a task that it waits for and that has just been taken, -1 for none.
        size: how many tasks wait for their turn.

    Returns:
        how many wait then.
    """
    epoch, phase = work[EPOCH], work[PHASE] << 24
    record = WIDTH * task
    if work[work[STAMP] + record] == epoch or work[work[WAITING] + record] == epoch:
        return size
    if work[work[OPEN] + record] < phase:
        count = tasks_before(net, frame, pool, path, work, stages, task, work[BUFFER_BEFORE])
        left, ready = 0, 0
        enabler, latest = by, -1
        for number in range(count):
            before = work[work[BUFFER_BEFORE] + number]
            if not _is_done(work, base, before):
                left += 1
                continue
            ready = max(ready, _end_of(work, before))
            if by < 0 and _turn(work, before) > latest:
                enabler, latest = before, _turn(work, before)
        work[work[OPEN] + record] = phase + left
        # Until a task is taken its end is when it is ready, as far as is known.
        work[work[ENABLER] + record], work[work[END] + record] = enabler, ready
    elif work[work[ENABLER] + record] != by:  # else it waits for that one along several edges, all counted
        work[work[OPEN] + record] -= 1
        work[work[END] + record] = max(work[work[END] + record], _end_of(work, by))
    if work[work[OPEN] + record] > phase:
        return size
    if by >= 0:
        work[work[ENABLER] + record] = by  # the last one that was taken
    work[work[WAITING] + record] = epoch
    push(work, work[HEAP_READY], work[HEAP_TASK], size, work[work[END] + record], task)
    return size + 1


@compiled
def next_change(
    net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int, base: int, total: int, least: int
) -> int:
    """The first place of the old timeline, from ``base`` on, at which something that the change concerns happens.

    If that is less than ``least`` places away, what is found may not be the first one.
    """
    epoch = work[EPOCH]
    result = total
    for number in range(work[DIRTY]):
        if work[work[DIRTY_STATE] + number] & 1:
            place = work[work[LINE_POSITION] + WIDTH * work[work[DIRTY_TASKS] + number]]
            if place < base:
                work[work[DIRTY_STATE] + number] -= 1  # it is over for good
            elif place < result:
                result = place
    for number in range(work[DIRTY]):
        if result - base < least:
            return int(result)
        if not work[work[DIRTY_STATE] + number] & 2:
            continue
        task = work[work[DIRTY_TASKS] + number]
        if work[work[STAMP] + WIDTH * task] == epoch or work[work[WAITING] + WIDTH * task] == epoch:
            work[work[DIRTY_STATE] + number] -= 2
            continue
        # It becomes ready with the last task that it waits for; if that is one of these, it is not near.
        last = base
        for some in range(tasks_before(net, frame, pool, path, work, stages, task, work[BUFFER_BEFORE])):
            before = work[work[BUFFER_BEFORE] + some]
            if _is_done(work, base, before):
                continue
            slot = before // (stages * frame[CLASSES])
            last = (
                total
                if work[work[SLOT_DIRTY] + slot] == epoch
                else max(last, work[work[LINE_POSITION] + WIDTH * before])
            )
            if last >= result:
                break
        result = min(result, last)
    return int(result)


@compiled
def find_shift(work: Any, base: int, size: int) -> Any:
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
        gone = work[work[LINE_POSITION] + WIDTH * work[work[GONE_TASKS] + number]]
        if base <= gone < place:
            inside += 1
    if work[SHARED] != place - base - inside:
        return -1, 0
    head = work[work[LINE_POSITION] + WIDTH * work[work[HEAP_TASK]]]
    if head < 0:
        return -1, 0
    now, then = work[work[HEAP_READY]], work[work[LINE_READY] + head]
    shift = now - then
    moving = True
    while moving:  # tasks that are gone count as taken, if they do not matter any more
        moving = False
        for number in range(work[GONE]):
            if work[work[LINE_POSITION] + WIDTH * work[work[GONE_TASKS] + number]] == place:
                place += 1
                moving = True
    for number in range(work[GONE]):
        gone = work[work[LINE_POSITION] + WIDTH * work[work[GONE_TASKS] + number]]
        if gone < place and work[work[LINE_END] + gone] > then:
            return -1, 0
    if work[FRESH_NEW] > now or work[FRESH_OLD] > then:
        return -1, 0
    for place_of in range(work[LANES] + 1):
        if work[work[OTHER_NEW] + place_of] > now or work[work[OTHER_OLD] + place_of] > then:
            return -1, 0
        if work[work[SHIFT_BY] + place_of] != shift and (
            work[work[SHIFT_NEW] + place_of] > now or work[work[SHIFT_OLD] + place_of] > then
        ):
            return -1, 0
    for number in range(size):
        task = work[work[HEAP_TASK] + number]
        at = work[work[LINE_POSITION] + WIDTH * task]
        if at < 0 or work[work[HEAP_READY] + number] - work[work[LINE_READY] + at] != shift:
            return -1, 0
    return place, shift


@inlined
def note(work: Any, lane: int, by: int, new: int, old: int) -> None:
    """Notes by how much the end of a lane's task differs, and when it ends.

    A lane's tasks end one after the other, so those that differ by the same time as the last one are told apart from
    all before. Tasks of no lane share one.
    """
    place = work[LANES] if lane < 0 else lane
    if work[work[SHIFT_BY] + place] != by:
        work[work[OTHER_NEW] + place] = max(work[work[OTHER_NEW] + place], work[work[SHIFT_NEW] + place])
        work[work[OTHER_OLD] + place] = max(work[work[OTHER_OLD] + place], work[work[SHIFT_OLD] + place])
        work[work[SHIFT_BY] + place] = by
        work[work[SHIFT_NEW] + place], work[work[SHIFT_OLD] + place] = new, old
        return
    work[work[SHIFT_NEW] + place] = max(work[work[SHIFT_NEW] + place], new)
    work[work[SHIFT_OLD] + place] = max(work[work[SHIFT_OLD] + place], old)


@compiled
def skip(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    start: int,
    stop: int,
    shift: int,
    size: int,
    limit: int,
) -> int:
    """Takes the part ``start ... stop - 1`` of the old timeline, later by ``shift``.

    Returns:
        how many tasks wait then, or -1 if the makespan exceeds the limit.
    """
    epoch = work[EPOCH]
    region = work[REGIONS]
    work[work[REGION_FIRST] + region], work[work[REGION_LAST] + region] = start, stop
    work[work[REGION_SHIFT] + region], work[work[REGION_LOGGED] + region] = shift, work[LOGGED]
    work[REGIONS] = region + 1
    look_back(work, start, work[THERE_LAST], work[THERE_BUSY])
    latest = max(work[LATEST], look_back(work, stop, work[HERE_LAST], work[HERE_BUSY]))
    for lane in range(work[LANES]):
        last = work[work[HERE_LAST] + lane]
        if last >= start:
            work[work[LANE_END] + lane] = work[work[LINE_END] + last] + shift
        work[work[LANE_LEFT] + lane] -= work[work[HERE_BUSY] + lane] - work[work[THERE_BUSY] + lane]
        if work[work[LANE_END] + lane] + work[work[LANE_LEFT] + lane] > limit:
            return -1
    kept = 0
    old_size = size
    for number in range(old_size):
        task, ready = work[work[HEAP_TASK] + number], work[work[HEAP_READY] + number]
        if work[work[LINE_POSITION] + WIDTH * task] >= stop:
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
        before = -1 if enabler < 0 else work[work[LINE_POSITION] + WIDTH * enabler]
        if (
            (before >= start or (start == 0 and before < 0))
            and before < stop
            and work[work[WAITING] + WIDTH * task] != epoch
            and work[work[SLOT_DIRTY] + task // (stages * classes)] != epoch
        ):
            work[work[WAITING] + WIDTH * task] = epoch
            work[work[ENABLER] + WIDTH * task] = enabler
            push(work, work[HEAP_READY], work[HEAP_TASK], size, work[work[LINE_READY] + place] + shift, task)
            size += 1
        place += 1
    work[PHASE] += 1
    # From here on only what still runs matters: it ends no later than its lane is free.
    work[LAST], work[LATEST] = stop - 1, latest
    work[FRESH_NEW] = work[FRESH_OLD] = -1
    for place in range(work[LANES] + 1):
        work[work[SHIFT_BY] + place], work[work[SHIFT_NEW] + place] = shift, latest + shift
        work[work[SHIFT_OLD] + place], work[work[OTHER_NEW] + place], work[work[OTHER_OLD] + place] = latest, -1, -1
    work[SHARED] = 0
    for number in range(work[DIRTY]):
        if work[work[DIRTY_STATE] + number] & 2:
            size = consider(net, frame, pool, path, work, stages, stop, work[work[DIRTY_TASKS] + number], -1, size)
    return size
