"""Delta simulation: what a timeline becomes when one operator's configuration changes (FlexFlow Algorithm 2).

The timeline is simulated again from the first task that may differ. As soon as everything that is still going on
differs from the old timeline by one and the same time, the rest is the old one, shifted by it, up to the next task
that the change concerns (its gradients, say). Times are whole ticks, so what is shifted is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BUFFER_AFTER,
    CHANGED,
    CLASSES,
    DIRTY,
    DRIFT,
    ENABLER,
    END,
    EPOCH,
    FRESH_NEW,
    FRESH_OLD,
    GONE,
    GONE_TASKS,
    HEAP_READY,
    HEAP_TASK,
    LANE_END,
    LANE_LEFT,
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
    LOST,
    MAKESPAN,
    OTHER_ENABLER,
    OTHER_END,
    OTHER_LANE,
    OTHER_READY,
    OTHER_TASK,
    REGION_FIRST,
    REGION_LAST,
    REGION_LOGGED,
    REGION_SHIFT,
    REGIONS,
    SHARED,
    SLOT_CHANGED,
    STALE,
    STAMP,
    TAIL,
    TAKEN,
    TASKS,
    TRIED,
    TURN,
    WAITING,
    WIDTH,
)
from tensoropt.mcmc.changes import find_changes, mark_changes
from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.heap import pop, push
from tensoropt.mcmc.links import tasks_after
from tensoropt.mcmc.marks import forget_tails, leave_marks, leave_tails
from tensoropt.mcmc.regions import consider, find_shift, next_change, note, skip
from tensoropt.mcmc.relations import lane_of

__all__ = ["change", "commit"]

# Skipping costs as much as simulating so many tasks, and those that the change concerns.
_LEAST_GAIN = 12
# After a change so many others are tried before chains are measured anew: several changes may follow one another.
_TRIES = 4


@compiled
def change(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    assignment: Any,
    limit: int,
) -> int:
    """The makespan when operators have moved to other configurations.

    ``path`` is changed; :func:`commit` makes the timeline follow, :func:`tensoropt.mcmc.moves.restore` takes the change
    back.

    Args:
        net: of the network.
        frame: of the classes.
        pool: the stages of paths.
        path: of each slot.
        work: the timeline, and room to work in.
        stages: the most of any path.
        rows: where each row of routes begins, -1 if it is not known.
        routes: the path of each route.
        assignment: the configurations, with those of operators that have moved.
        limit: it is not wanted if it is longer than this.

    Returns:
        the makespan, or -1 if it exceeds the limit, or if there is no such strategy.
    """
    work[LOGGED] = work[REGIONS] = 0
    if work[STALE] > 0 and work[TRIED] - work[TAKEN] >= _TRIES:
        leave_tails(net, frame, pool, path, work, stages)
    if not find_changes(net, frame, pool, path, work, rows, routes, assignment):
        return -1
    if work[CHANGED] == 0:
        return int(work[MAKESPAN]) if work[MAKESPAN] <= limit else -1
    for lane in range(work[LANES]):
        if work[work[LANE_LEFT] + lane] > limit:
            return -1
        work[work[LANE_END] + lane] = 0
    mark_changes(net, frame, pool, path, work, stages)
    epoch, total = work[EPOCH], work[TASKS]
    classes = frame[CLASSES]
    work[LATEST] = 0
    base = next_change(net, frame, pool, path, work, stages, 0, total, 0)
    size = skip(net, frame, pool, path, work, stages, 0, base, 0, 0, limit)
    reach = limit + work[LOST] + work[DRIFT]
    tries, pause = 2, 2
    least = _LEAST_GAIN + work[DIRTY]
    while size > 0:
        if tries <= 0:
            start, shift = find_shift(work, base, size)
            tries = pause
            pause = min(2 * pause, 256)  # looking costs as much as simulating several tasks
            if start >= 0:
                stop = next_change(net, frame, pool, path, work, stages, start, total, least)
                if stop - start >= least:
                    base = stop
                    size = skip(net, frame, pool, path, work, stages, start, stop, shift, size, limit)
                    tries, pause = 2, 2
                    continue
        tries -= 1
        ready, task = work[work[HEAP_READY]], work[work[HEAP_TASK]]
        pop(work, work[HEAP_READY], work[HEAP_TASK], size)
        size -= 1
        klass, rest = task % classes, task // classes
        slot = rest // stages
        stage = path[slot] + 1 + 2 * (rest % stages)
        lane = lane_of(frame, pool[stage + 1], klass)
        end = ready
        if lane >= 0:
            end = max(ready, work[work[LANE_END] + lane]) + pool[stage]
            work[work[LANE_END] + lane] = end
            # All that a lane has left comes after.
            left = work[work[LANE_LEFT] + lane] - pool[stage]
            work[work[LANE_LEFT] + lane] = left
            if end + left > limit:
                return -1
        # And so does the longest chain of tasks that wait for this one.
        if work[work[SLOT_CHANGED] + slot] != epoch and end + work[work[TAIL] + WIDTH * task] > reach:
            return -1
        logged = work[LOGGED]
        work[work[STAMP] + WIDTH * task], work[work[END] + WIDTH * task], work[work[TURN] + WIDTH * task] = (
            epoch,
            end,
            logged,
        )
        work[work[LOG_TASK] + logged], work[work[LOG_READY] + logged], work[work[LOG_END] + logged] = task, ready, end
        work[work[LOG_LANE] + logged] = lane
        work[LOGGED] = logged + 1
        place = work[work[LINE_POSITION] + WIDTH * task]
        if place >= 0:
            work[SHARED] += 1
            work[LAST] = max(work[LAST], place)
            work[LATEST] = max(work[LATEST], work[work[LINE_END] + place])
            if work[work[LINE_LANE] + place] == lane:
                note(work, lane, end - work[work[LINE_END] + place], end, work[work[LINE_END] + place])
            else:
                work[FRESH_NEW] = max(work[FRESH_NEW], end)
                work[FRESH_OLD] = max(work[FRESH_OLD], work[work[LINE_END] + place])
        else:
            work[FRESH_NEW] = max(work[FRESH_NEW], end)
        for number in range(tasks_after(net, frame, pool, path, work, stages, task, work[BUFFER_AFTER])):
            after = work[work[BUFFER_AFTER] + number]
            if after < 0:
                after = ~after
                work[work[WAITING] + WIDTH * after], work[work[ENABLER] + WIDTH * after] = epoch, task
                push(work, work[HEAP_READY], work[HEAP_TASK], size, end, after)
                size += 1
            else:
                size = consider(net, frame, pool, path, work, stages, base, after, task, size)
    if size < 0:
        return -1
    makespan = 0
    for lane in range(work[LANES]):
        makespan = max(makespan, work[work[LANE_END] + lane])
    return makespan if makespan <= limit else -1


@compiled
def commit(pool: Any, path: Any, work: Any, stages: int) -> None:
    """Makes the timeline that of the change: it is written beside the old one, which then is room for the next."""
    if work[CHANGED] == 0:
        return
    forget_tails(pool, path, work, stages)
    for number in range(work[GONE]):
        work[work[LINE_POSITION] + WIDTH * work[work[GONE_TASKS] + number]] = -1
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
                known = work[work[WAITING] + WIDTH * task] == work[EPOCH]
                work[work[OTHER_ENABLER] + done] = (
                    work[work[ENABLER] + WIDTH * task] if known else work[work[LINE_ENABLER] + place]
                )
                work[work[LINE_POSITION] + WIDTH * task] = done
                done += 1
            region += 1
        if logged < work[LOGGED]:
            task = work[work[LOG_TASK] + logged]
            work[work[OTHER_TASK] + done], work[work[OTHER_LANE] + done] = task, work[work[LOG_LANE] + logged]
            work[work[OTHER_READY] + done], work[work[OTHER_END] + done] = (
                work[work[LOG_READY] + logged],
                work[work[LOG_END] + logged],
            )
            work[work[OTHER_ENABLER] + done] = work[work[ENABLER] + WIDTH * task]
            work[work[LINE_POSITION] + WIDTH * task] = done
            done += 1
    work[TASKS] = done
    for field in range(OTHER_ENABLER - OTHER_TASK + 1):
        work[LINE_TASK + field], work[OTHER_TASK + field] = work[OTHER_TASK + field], work[LINE_TASK + field]
    leave_marks(work)
