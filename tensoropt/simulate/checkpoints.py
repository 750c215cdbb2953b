"""Checkpoints of a timeline: the progress of each device and link, so that parts can be reused at once."""

from __future__ import annotations

from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.dependencies import tasks_after
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, Records, State

__all__ = ["advance", "find_bottom_levels", "keep_bottom_levels", "set_checkpoints"]

_MUCH = 2**61


@inlined
def _take(line: Records, lanes: Records, place: int) -> None:
    """Notes one more task of a timeline as its lane's last."""
    lane, end = line[place].lane, line[place].end
    if lane >= 0:
        before = lanes[lane].last
        start = line[place].ready
        if before >= 0:
            start = max(start, line[before].end)
        lanes[lane].busy += end - start
        lanes[lane].last = place


@compiled
def set_checkpoints(state: State) -> None:
    """Goes once through a timeline and notes, every so many tasks, how far each lane is.

    Per checkpoint: the last task of each lane before it, how long lanes were busy, and when the last task so far ends.
    """
    progress, lanes = state.progress[0], state.lanes
    line, count = state.lines[progress.line], len(lanes) - 1
    for lane in range(count):
        lanes[lane].last, lanes[lane].busy = -1, 0
    peak = 0
    for place in range(progress.tasks):
        if place % progress.block == 0:
            number = place // progress.block
            for lane in range(count):
                checkpoint = state.checkpoints[number, lane]
                checkpoint.last, checkpoint.busy = lanes[lane].last, lanes[lane].busy
            state.peaks[number] = peak
        peak = max(peak, line[place].end)
        _take(line, lanes, place)
    for lane in range(count):
        lanes[lane].load = lanes[lane].busy
    progress.makespan = peak


@compiled
def advance(state: State, stop: int) -> int:
    """Brings ``last`` and ``busy`` of each lane to where they are after the first ``stop`` tasks of the timeline.

    What they were before becomes ``last_before`` and ``busy_before``.

    Returns:
        when the last of these tasks ends.
    """
    progress, lanes = state.progress[0], state.lanes
    line, count = state.lines[progress.line], len(lanes) - 1
    number = max(stop - 1, 0) // progress.block
    for lane in range(count):
        lanes[lane].last_before, lanes[lane].busy_before = lanes[lane].last, lanes[lane].busy
        lanes[lane].last, lanes[lane].busy = -1, 0
        if stop > 0:
            checkpoint = state.checkpoints[number, lane]
            lanes[lane].last, lanes[lane].busy = checkpoint.last, checkpoint.busy
    if stop == 0:
        return 0
    peak = state.peaks[number]
    for place in range(number * progress.block, stop):
        peak = max(peak, line[place].end)
        _take(line, lanes, place)
    return int(peak)


@compiled
def find_bottom_levels(graph: Graph, devices: DeviceClasses, state: State) -> None:
    """Notes for each task of a timeline how long the longest chain of tasks that wait for it takes.

    Whatever else changes, no schedule is shorter than a task's end and that. Where tasks have places, a change may
    take away what makes tasks wait for one another, and nothing is claimed.
    """
    progress = state.progress[0]
    progress.stale = progress.drift = 0
    if devices.present.shape[1] > 1:
        progress.drift = _MUCH
        return
    line, stages = state.lines[progress.line], progress.stages
    for place in range(progress.tasks - 1, -1, -1):
        task = line[place].task
        bottom = 0
        for number in range(tasks_after(graph, devices, state, task)):
            after = state.tasks_after[number]
            after = after if after >= 0 else ~after
            spent = graph.pool[state.path[after // stages] + 1 + 2 * (after % stages)]
            bottom = max(bottom, spent + state.tasks[after].bottom)
        state.tasks[task].bottom = bottom


@compiled
def keep_bottom_levels(graph: Graph, state: State) -> None:
    """Keeps what was noted true after a change: chains may be shorter by what it has made tasks shorter."""
    progress = state.progress[0]
    progress.stale += 1
    progress.taken = progress.tried
    if progress.drift >= _MUCH:
        return
    progress.drift += progress.lost
    for number in range(progress.changed):
        slot = state.changed[number].slot
        for stage in range(graph.pool[state.path[slot]]):
            state.tasks[slot * progress.stages + stage].bottom = 0
