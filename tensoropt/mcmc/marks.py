"""How far each device and link is at places of a timeline, so that parts of it can be skipped at once."""

from __future__ import annotations

from typing import Any

from numba import njit

from tensoropt.mcmc.blob import (
    BLOCK,
    HERE_LAST,
    LANE_LOAD,
    LANES,
    LINE_END,
    LINE_LANE,
    LINE_READY,
    MAKESPAN,
    MARK_BUSY,
    MARK_LAST,
    MARK_PEAK,
    TASKS,
)

__all__ = ["leave_marks", "look_back"]


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
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
