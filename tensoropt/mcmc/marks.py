"""How far each device and link is at places of a timeline, so that parts of it can be skipped at once."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BLOCK,
    BUFFER_AFTER,
    CHANGED,
    CHANGED_SLOT,
    CLASSES,
    DRIFT,
    HERE_LAST,
    LANE_LOAD,
    LANES,
    LINE_END,
    LINE_LANE,
    LINE_READY,
    LINE_TASK,
    LOST,
    MAKESPAN,
    MARK_BUSY,
    MARK_LAST,
    MARK_PEAK,
    STALE,
    TAIL,
    TAKEN,
    TASKS,
    TRIED,
    WIDTH,
)
from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.links import tasks_after

__all__ = ["forget_tails", "leave_marks", "leave_tails", "look_back"]

_MUCH = 2**61


@compiled
def leave_marks(work: Any) -> None:
    """Goes once through a timeline and notes, every so many tasks, how far each lane is.

    Per mark: the last task of each lane before it, how long lanes were busy, and when the last task so far ends.
    """
    lanes, block = work[LANES], work[BLOCK]
    last, busy, peaks = work[MARK_LAST], work[MARK_BUSY], work[MARK_PEAK]
    here_last, load = work[HERE_LAST], work[LANE_LOAD]
    line_lane, line_end, line_ready = work[LINE_LANE], work[LINE_END], work[LINE_READY]
    for lane in range(lanes):
        work[here_last + lane], work[load + lane] = -1, 0
    peak = 0
    for place in range(work[TASKS]):
        if place % block == 0:
            mark = place // block
            for lane in range(lanes):
                work[last + mark * lanes + lane] = work[here_last + lane]
                work[busy + mark * lanes + lane] = work[load + lane]
            work[peaks + mark] = peak
        lane, end = work[line_lane + place], work[line_end + place]
        peak = max(peak, end)
        if lane >= 0:
            before = work[here_last + lane]
            start = work[line_ready + place]
            if before >= 0:
                start = max(start, work[line_end + before])
            work[load + lane] += end - start
            work[here_last + lane] = place
    work[MAKESPAN] = peak


@compiled
def look_back(work: Any, stop: int, last: int, busy: int) -> int:
    """How far each lane is after the first ``stop`` tasks of a timeline.

    Args:
        work: the timeline.
        stop: see above.
        last: from here on takes the place of each lane's last task, -1 for none.
        busy: from here on takes how long each lane was busy.

    Returns:
        when the last of these tasks ends.
    """
    lanes = work[LANES]
    mark = max(stop - 1, 0) // work[BLOCK]
    place = mark * work[BLOCK]
    if stop == 0:
        for lane in range(lanes):
            work[last + lane], work[busy + lane] = -1, 0
        return 0
    for lane in range(lanes):
        work[last + lane] = work[work[MARK_LAST] + mark * lanes + lane]
        work[busy + lane] = work[work[MARK_BUSY] + mark * lanes + lane]
    peak = work[work[MARK_PEAK] + mark]
    line_lane, line_end, line_ready = work[LINE_LANE], work[LINE_END], work[LINE_READY]
    while place < stop:
        lane, end = work[line_lane + place], work[line_end + place]
        peak = max(peak, end)
        if lane >= 0:
            before = work[last + lane]
            start = work[line_ready + place]
            if before >= 0:
                start = max(start, work[line_end + before])
            work[busy + lane] += end - start
            work[last + lane] = place
        place += 1
    return int(peak)


@compiled
def leave_tails(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int) -> None:
    """Notes for each task of a timeline how long the longest chain of tasks that wait for it takes.

    Whatever else changes, no schedule is shorter than a task's end and that. Where tasks have places, a change may
    take away what makes tasks wait for one another, and nothing is claimed.
    """
    work[STALE], work[DRIFT] = 0, 0
    if frame[CLASSES] > 1:
        work[DRIFT] = _MUCH
        return
    buffer = work[BUFFER_AFTER]
    for place in range(work[TASKS] - 1, -1, -1):
        task = work[work[LINE_TASK] + place]
        tail = 0
        for number in range(tasks_after(net, frame, pool, path, work, stages, task, buffer)):
            after = work[buffer + number]
            after = after if after >= 0 else ~after
            spent = pool[path[after // stages] + 1 + 2 * (after % stages)]
            tail = max(tail, spent + work[work[TAIL] + WIDTH * after])
        work[work[TAIL] + WIDTH * task] = tail


@compiled
def forget_tails(pool: Any, path: Any, work: Any, stages: int) -> None:
    """Keeps what was noted true after a change: chains may be shorter by what it has made tasks shorter."""
    work[STALE] += 1
    work[TAKEN] = work[TRIED]
    if work[DRIFT] >= _MUCH:
        return
    work[DRIFT] += work[LOST]
    for number in range(work[CHANGED]):
        slot = work[work[CHANGED_SLOT] + number]
        for stage in range(pool[path[slot]]):
            work[work[TAIL] + WIDTH * (slot * stages + stage)] = 0
