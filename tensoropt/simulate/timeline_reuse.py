"""Parts of the old timeline that a changed one takes over, as they are or later by one time."""

from __future__ import annotations

from tensoropt.simulate.checkpoints import advance
from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.dependencies import tasks_before
from tensoropt.simulate.ready_queue import push
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, State

__all__ = ["constant_shift", "note_shift", "queue_if_ready", "reuse", "unchanged_until"]


@inlined
def _is_done(state: State, reused: int, task: int) -> bool:
    """Tells whether a task is done: simulated, or in a part of the old timeline that was reused."""
    if state.tasks[task].simulated == state.progress[0].epoch:
        return True
    return bool(0 <= state.tasks[task].position < reused)


@inlined
def _end_of(state: State, task: int) -> int:
    """Returns the end of a task that has been taken."""
    if state.tasks[task].simulated == state.progress[0].epoch:
        return int(state.tasks[task].end)
    place = state.tasks[task].position
    end = state.lines[state.progress[0].line, place].end
    for number in range(state.progress[0].segments - 1, -1, -1):
        if state.segments[number].first <= place:
            return int(end + state.segments[number].shift)
    return int(end)


@inlined
def _turn(state: State, task: int) -> int:
    """Orders the tasks that have been taken: parts that were reused lie between those that were simulated."""
    if state.tasks[task].simulated == state.progress[0].epoch:
        return int((2 * state.tasks[task].turn + 1) << 32)
    place = state.tasks[task].position
    number = state.progress[0].segments - 1
    while number > 0 and state.segments[number].first > place:
        number -= 1
    return int(((2 * state.segments[number].logged) << 32) + place)


@inlined
def queue_if_ready(
    graph: Graph, devices: DeviceClasses, state: State, reused: int, number: int, by: int, size: int
) -> int:
    """Makes a task wait for its turn if all that it waits for has been taken.

    How many of these have not is counted once, and again after each part that is reused. A task that becomes ready with
    several others that end at once has the one that was taken last as its enabler.

    Args:
        graph: of all strategies.
        devices: that are told apart.
        state: of the simulation.
        reused: tasks of the old timeline before it that were not simulated have been reused.
        number: of the task.
        by: a task that it waits for and that has just been taken, -1 for none.
        size: how many tasks wait for their turn.

    Returns:
        how many wait then.
    """
    progress, task = state.progress[0], state.tasks[number]
    epoch, phase = progress.epoch, progress.phase << 24
    if task.simulated == epoch or task.queued == epoch:
        return size
    if task.open < phase:
        left, ready = 0, 0
        enabler, latest = by, -1
        for some in range(tasks_before(graph, devices, state, number)):
            before = state.tasks_before[some]
            if not _is_done(state, reused, before):
                left += 1
                continue
            ready = max(ready, _end_of(state, before))
            if by < 0 and _turn(state, before) > latest:
                enabler, latest = before, _turn(state, before)
        # Until a task is taken its end is when it is ready, as far as is known.
        task.open, task.enabler, task.end = phase + left, enabler, ready
    elif task.enabler != by:  # else it waits for that one along several edges, all counted
        task.open -= 1
        task.end = max(task.end, _end_of(state, by))
    if task.open > phase:
        return size
    if by >= 0:
        task.enabler = by  # the last one that was taken
    task.queued = epoch
    push(state.queue, size, task.end, number)
    return size + 1


@compiled
def unchanged_until(graph: Graph, devices: DeviceClasses, state: State, start: int, total: int, least: int) -> int:
    """The first place of the old timeline, from ``start`` on, at which something that the change concerns happens.

    If that is less than ``least`` places away, what is found may not be the first one.
    """
    epoch = state.progress[0].epoch
    result = total
    for number in range(state.progress[0].dirty):
        dirty = state.dirty[number]
        if dirty.has_old:
            place = state.tasks[dirty.task].position
            if place < start:
                dirty.has_old = 0  # it is over for good
            elif place < result:
                result = place
    for number in range(state.progress[0].dirty):
        if result - start < least:
            return int(result)
        dirty = state.dirty[number]
        if not dirty.has_new:
            continue
        if state.tasks[dirty.task].simulated == epoch or state.tasks[dirty.task].queued == epoch:
            dirty.has_new = 0
            continue
        # It becomes ready with the last task that it waits for; if that is one of these, it is not near.
        last = start
        for some in range(tasks_before(graph, devices, state, dirty.task)):
            before = state.tasks_before[some]
            if _is_done(state, start, before):
                continue
            slot = before // (state.progress[0].stages * devices.present.shape[1])
            last = total if state.slot_epochs[slot].dirty == epoch else max(last, state.tasks[before].position)
            if last >= result:
                break
        result = min(result, last)
    return int(result)


@compiled
def constant_shift(state: State, base: int, size: int) -> tuple[int, int]:
    """Finds the place from which the old timeline, shifted by a constant time, is the new one.

    Args:
        state: of the simulation.
        base: from this place of the old timeline on, tasks were simulated.
        size: how many tasks wait for their turn.

    Returns:
        the place in the old timeline, or -1 if there is none; and the shift.
    """
    progress, tasks, line = state.progress[0], state.tasks, state.lines[state.progress[0].line]
    place = progress.last + 1
    inside = 0
    for number in range(progress.gone):
        if base <= tasks[state.gone[number]].position < place:
            inside += 1
    if progress.shared != place - base - inside:
        return -1, 0
    head = tasks[state.queue[0].task].position
    if head < 0:
        return -1, 0
    now, then = state.queue[0].ready, line[head].ready
    shift = now - then
    moving = True
    while moving:  # tasks that are gone count as taken, if they do not matter any more
        moving = False
        for number in range(progress.gone):
            if tasks[state.gone[number]].position == place:
                place += 1
                moving = True
    for number in range(progress.gone):
        gone = tasks[state.gone[number]].position
        if gone < place and line[gone].end > then:
            return -1, 0
    if progress.fresh_end > now or progress.fresh_old_end > then:
        return -1, 0
    for number in range(len(state.lanes)):
        lane = state.lanes[number]
        if lane.other_end > now or lane.other_old_end > then:
            return -1, 0
        if lane.shift != shift and (lane.shifted_end > now or lane.shifted_old_end > then):
            return -1, 0
    for number in range(size):
        at = tasks[state.queue[number].task].position
        if at < 0 or state.queue[number].ready - line[at].ready != shift:
            return -1, 0
    return place, shift


@inlined
def note_shift(state: State, number: int, end: int, old_end: int) -> None:
    """Notes by how much the end of a task of a lane (-1: of none) differs, and when it ends.

    A lane's tasks end one after the other, so those that differ by the same time as the last one are told apart from
    all before. Tasks of no lane share one.
    """
    lane = state.lanes[len(state.lanes) - 1 if number < 0 else number]
    if lane.shift != end - old_end:
        lane.other_end = max(lane.other_end, lane.shifted_end)
        lane.other_old_end = max(lane.other_old_end, lane.shifted_old_end)
        lane.shift, lane.shifted_end, lane.shifted_old_end = end - old_end, end, old_end
        return
    lane.shifted_end = max(lane.shifted_end, end)
    lane.shifted_old_end = max(lane.shifted_old_end, old_end)


@compiled
def reuse(
    graph: Graph,
    devices: DeviceClasses,
    state: State,
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
    progress, tasks, line = state.progress[0], state.tasks, state.lines[state.progress[0].line]
    epoch, lanes = progress.epoch, len(state.lanes) - 1
    segment = state.segments[progress.segments]
    segment.first, segment.end, segment.shift, segment.logged = start, stop, shift, progress.logged
    progress.segments += 1
    advance(state, start)
    latest = max(progress.latest, advance(state, stop))
    for number in range(lanes):
        lane = state.lanes[number]
        if lane.last >= start:
            lane.end = line[lane.last].end + shift
        lane.left -= lane.busy - lane.busy_before
        if lane.end + lane.left > limit:
            return -1
    kept = 0
    for number in range(size):
        ready, task = state.queue[number].ready, state.queue[number].task
        if tasks[task].position >= stop:
            push(state.spare_queue, kept, ready, task)
            kept += 1
    for number in range(kept):
        queued, other = state.queue[number], state.spare_queue[number]
        queued.ready, queued.task = other.ready, other.task
    size = kept
    width = progress.stages * devices.present.shape[1]
    place = stop
    while place < progress.tasks and line[place].ready <= latest:
        task, enabler = line[place].task, line[place].enabler
        before = -1 if enabler < 0 else tasks[enabler].position
        if (
            (before >= start or (start == 0 and before < 0))
            and before < stop
            and tasks[task].queued != epoch
            and state.slot_epochs[task // width].dirty != epoch
        ):
            tasks[task].queued, tasks[task].enabler = epoch, enabler
            push(state.queue, size, line[place].ready + shift, task)
            size += 1
        place += 1
    progress.phase += 1
    # From here on only what still runs matters: it ends no later than its lane is free.
    progress.last, progress.latest = stop - 1, latest
    progress.fresh_end = progress.fresh_old_end = -1
    progress.shared = 0
    for number in range(lanes + 1):
        lane = state.lanes[number]
        lane.shift, lane.shifted_end, lane.shifted_old_end = shift, latest + shift, latest
        lane.other_end = lane.other_old_end = -1
    for number in range(progress.dirty):
        if state.dirty[number].has_new:
            size = queue_if_ready(graph, devices, state, stop, state.dirty[number].task, -1, size)
    return size
