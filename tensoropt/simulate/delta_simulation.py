"""Delta simulation: what a timeline becomes when configurations of operators change (FlexFlow Algorithm 2).

The timeline is simulated again from the first task that may differ. As soon as everything that is still going on
differs from the old timeline by one and the same time, the rest is the old one, shifted by it, up to the next task
that the change concerns (its gradients, say). Times are whole ticks, so what is shifted is the same to the last bit.
"""

from __future__ import annotations

from tensoropt.simulate.changes import find_changes, mark_changes
from tensoropt.simulate.checkpoints import find_bottom_levels, keep_bottom_levels, set_checkpoints
from tensoropt.simulate.compiled import compiled
from tensoropt.simulate.dependencies import lane_of, tasks_after
from tensoropt.simulate.ready_queue import pop, push
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, State
from tensoropt.simulate.timeline_reuse import constant_shift, note_shift, queue_if_ready, reuse, unchanged_until

__all__ = ["commit", "simulate_delta"]

# Reusing a part costs as much as simulating so many tasks, and those that the change concerns.
_LEAST_GAIN = 12
# After a change so many others are tried before chains are measured anew: several changes may follow one another.
_TRIES = 4


@compiled
def simulate_delta(graph: Graph, devices: DeviceClasses, state: State, limit: int) -> int:
    """The makespan when operators have moved to other configurations.

    ``state.path`` is changed; :func:`commit` makes the timeline follow, :func:`tensoropt.simulate.changes.undo` takes
    the change back.

    Args:
        graph: of all strategies, with the rows of routes that the change needs.
        devices: that are told apart.
        state: the timeline; ``state.assignment`` has the new configurations, and ``state.moved`` the old ones of the
            ``moved`` operators.
        limit: the makespan that is not wanted if it is longer.

    Returns:
        the makespan, or -1 if it exceeds the limit, or if there is no such strategy.
    """
    progress, tasks, lanes, queue = state.progress[0], state.tasks, state.lanes, state.queue
    progress.logged = progress.segments = 0
    if progress.stale > 0 and progress.tried - progress.taken >= _TRIES:
        find_bottom_levels(graph, devices, state)
    if not find_changes(graph, devices, state):
        return -1
    if progress.changed == 0:
        return int(progress.makespan) if progress.makespan <= limit else -1
    for lane in range(len(lanes)):
        if lanes[lane].left > limit:
            return -1
        lanes[lane].end = 0
    mark_changes(graph, devices, state)
    line, stages, classes = state.lines[progress.line], progress.stages, devices.present.shape[1]
    epoch, total = progress.epoch, progress.tasks
    progress.latest = 0
    base = unchanged_until(graph, devices, state, 0, total, 0)
    size = reuse(graph, devices, state, 0, base, 0, 0, limit)
    reach = limit + progress.lost + progress.drift
    tries, pause = 2, 2
    least = _LEAST_GAIN + progress.dirty
    while size > 0:
        if tries <= 0:
            start, shift = constant_shift(state, base, size)
            tries = pause
            pause = min(2 * pause, 256)  # looking costs as much as simulating several tasks
            if start >= 0:
                stop = unchanged_until(graph, devices, state, start, total, least)
                if stop - start >= least:
                    base = stop
                    size = reuse(graph, devices, state, start, stop, shift, size, limit)
                    tries, pause = 2, 2
                    continue
        tries -= 1
        ready, number = queue[0].ready, queue[0].task
        pop(queue, size)
        size -= 1
        rest = number // classes
        slot = rest // stages
        stage = state.path[slot] + 1 + 2 * (rest % stages)
        lane = lane_of(devices, graph.pool[stage + 1], number % classes)
        end = ready
        if lane >= 0:
            end = max(ready, lanes[lane].end) + graph.pool[stage]
            lanes[lane].end = end
            # All that a lane has left comes after.
            lanes[lane].left -= graph.pool[stage]
            if end + lanes[lane].left > limit:
                return -1
        task = tasks[number]
        # And so does the longest chain of tasks that wait for this one.
        if state.slot_epochs[slot].changed != epoch and end + task.bottom > reach:
            return -1
        task.simulated, task.end, task.turn = epoch, end, progress.logged
        logged = state.log[progress.logged]
        logged.task, logged.ready, logged.end, logged.lane = number, ready, end, lane
        progress.logged += 1
        if task.position >= 0:
            old = line[task.position]
            progress.shared += 1
            progress.last = max(progress.last, task.position)
            progress.latest = max(progress.latest, old.end)
            if old.lane == lane:
                note_shift(state, lane, end, old.end)
            else:
                progress.fresh_end = max(progress.fresh_end, end)
                progress.fresh_old_end = max(progress.fresh_old_end, old.end)
        else:
            progress.fresh_end = max(progress.fresh_end, end)
        for some in range(tasks_after(graph, devices, state, number)):
            after = state.tasks_after[some]
            if after < 0:
                after = ~after
                tasks[after].queued, tasks[after].enabler = epoch, number
                push(queue, size, end, after)
                size += 1
            else:
                size = queue_if_ready(graph, devices, state, base, after, number, size)
    if size < 0:
        return -1
    makespan = 0
    for lane in range(len(lanes) - 1):
        makespan = max(makespan, lanes[lane].end)
    return makespan if makespan <= limit else -1


@compiled
def commit(graph: Graph, state: State) -> None:
    """Makes the timeline that of the change: it is written beside the old one, which then is room for the next."""
    progress, tasks = state.progress[0], state.tasks
    if progress.changed == 0:
        return
    keep_bottom_levels(graph, state)
    for number in range(progress.gone):
        tasks[state.gone[number]].position = -1
    old, new = state.lines[progress.line], state.lines[1 - progress.line]
    done = number = 0
    for logged in range(progress.logged + 1):
        while number < progress.segments and state.segments[number].logged == logged:
            segment = state.segments[number]
            for place in range(segment.first, segment.end):
                one, other = old[place], new[done]
                other.task, other.lane = one.task, one.lane
                other.ready, other.end = one.ready + segment.shift, one.end + segment.shift
                # What was waiting already when the part was reused may have waited for another task last.
                task = tasks[one.task]
                other.enabler = task.enabler if task.queued == progress.epoch else one.enabler
                task.position = done
                done += 1
            number += 1
        if logged < progress.logged:
            one, other = state.log[logged], new[done]
            other.task, other.lane, other.ready, other.end = one.task, one.lane, one.ready, one.end
            other.enabler = tasks[one.task].enabler
            tasks[one.task].position = done
            done += 1
    progress.tasks = done
    progress.line = 1 - progress.line
    set_checkpoints(state)
