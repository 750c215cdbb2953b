"""The effects of a change of configurations: the paths that change, and the tasks that may differ."""

from __future__ import annotations

from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.dependencies import lane_of, route, update_links
from tensoropt.simulate.simulation_state import BACKWARD, FORWARD, WAY, WAY_BACK, DeviceClasses, Graph, State

__all__ = ["begin_change", "find_changes", "mark_changes", "move", "undo"]


@inlined
def begin_change(state: State) -> None:
    """No operator has moved yet; then :func:`move` some."""
    state.progress[0].moved = state.progress[0].changed = 0


@inlined
def move(state: State, operator: int, choice: int) -> None:
    """Gives an operator another configuration, in ``state.assignment``; :func:`undo` takes it back."""
    moved = state.moved[state.progress[0].moved]
    moved.operator, moved.choice = operator, state.assignment[operator]
    state.assignment[operator] = choice
    state.progress[0].moved += 1


@inlined
def _set_path(graph: Graph, state: State, slot: int, new: int) -> bool:
    """Gives a slot another path; whether it may."""
    old = state.path[slot]
    if new < 0:
        return False
    if old == new:
        return True
    progress = state.progress[0]
    change = state.changed[progress.changed]
    change.slot, change.path = slot, old
    progress.changed += 1
    state.path[slot] = new
    if (old == 0) != (new == 0):
        update_links(graph, state, slot, new == 0)
    return True


@inlined
def _set_edge(graph: Graph, state: State, number: int) -> bool:
    if state.edge_tried[number] == state.progress[0].tried:
        return True
    state.edge_tried[number] = state.progress[0].tried
    edge = graph.edges[number]
    start, end = state.assignment[edge.producer], state.assignment[edge.consumer]
    ahead, back = route(graph, number, False, start, end), route(graph, number, True, start, end)
    return bool(_set_path(graph, state, edge.way_slot, ahead) and _set_path(graph, state, edge.back_slot, back))


@inlined
def _add_load(graph: Graph, devices: DeviceClasses, state: State, path: int, sign: int) -> int:
    """Adds the ticks of all tasks of a path to what their lanes have left to do, or takes them away.

    Returns:
        the ticks of its stages.
    """
    total = 0
    for stage in range(graph.pool[path]):
        ticks, signature = graph.pool[path + 1 + 2 * stage], graph.pool[path + 2 + 2 * stage]
        total += ticks
        if devices.signatures[signature].kind < 0:
            continue
        for device in range(devices.present.shape[1]):
            if devices.present[signature, device]:
                state.lanes[lane_of(devices, signature, device)].left += sign * ticks
    return total


@compiled
def find_changes(graph: Graph, devices: DeviceClasses, state: State) -> bool:
    """Changes the paths of operators that have moved, and of the edges around them.

    Also notes what lanes have to do in all then, as what they have left, and by how much chains of tasks may become
    shorter.

    Returns:
        whether there are such paths.
    """
    progress = state.progress[0]
    progress.tried += 1
    for number in range(progress.moved):
        op = state.moved[number].operator
        operator = graph.operators[op]
        place = operator.choice_first + state.assignment[op]
        _set_path(graph, state, operator.forward_slot, graph.forward[place])
        _set_path(graph, state, operator.backward_slot, graph.backward[place])
        degree = operator.in_end - operator.in_first
        for some in range(degree + operator.out_end - operator.out_first):
            if some < degree:
                edge = graph.incoming[operator.in_first + some]
            else:
                edge = graph.outgoing[operator.out_first + some - degree]
            if not _set_edge(graph, state, edge):
                return False
    for lane in range(len(state.lanes)):
        state.lanes[lane].left = state.lanes[lane].load
    progress.lost = 0
    for number in range(progress.changed):
        change = state.changed[number]
        before = _add_load(graph, devices, state, change.path, -1)
        progress.lost += max(0, before - _add_load(graph, devices, state, state.path[change.slot], 1))
    return True


@compiled
def undo(graph: Graph, state: State) -> None:
    """Takes a change back that is not wanted."""
    progress = state.progress[0]
    for number in range(progress.changed - 1, -1, -1):
        slot, old = state.changed[number].slot, state.changed[number].path
        if (state.path[slot] == 0) != (old == 0):
            update_links(graph, state, slot, old == 0)
        state.path[slot] = old
    for number in range(progress.moved):
        state.assignment[state.moved[number].operator] = state.moved[number].choice


@inlined
def _mark(graph: Graph, devices: DeviceClasses, state: State, slot: int, old: int) -> None:
    """Notes the tasks of a slot as dirty: those that it has, and those that it had under the path ``old``."""
    progress = state.progress[0]
    if state.slot_epochs[slot].dirty == progress.epoch:
        return
    state.slot_epochs[slot].dirty = progress.epoch
    classes, pool = devices.present.shape[1], graph.pool
    new = state.path[slot]
    for stage in range(max(pool[old], pool[new])):
        for device in range(classes):
            had = stage < pool[old] and devices.present[pool[old + 2 + 2 * stage], device] != 0
            has = stage < pool[new] and devices.present[pool[new + 2 + 2 * stage], device] != 0
            task = (slot * progress.stages + stage) * classes + device
            if had and not has:
                state.gone[progress.gone] = task
                progress.gone += 1
            if had or has:
                dirty = state.dirty[progress.dirty]
                dirty.task, dirty.has_old, dirty.has_new = task, had, has
                progress.dirty += 1


@compiled
def mark_changes(graph: Graph, devices: DeviceClasses, state: State) -> None:
    """Notes what may differ from the timeline: tasks of slots that changed, and those that wait for them."""
    progress = state.progress[0]
    progress.epoch += 1
    progress.gone = progress.dirty = 0
    for number in range(progress.changed):
        change = state.changed[number]
        state.slot_epochs[change.slot].changed = progress.epoch
        _mark(graph, devices, state, change.slot, change.path)
    for number in range(progress.changed):
        slot = graph.slots[state.changed[number].slot]
        _mark_waiting(graph, devices, state, slot.kind, slot.subject)


@inlined
def _mark_waiting(graph: Graph, devices: DeviceClasses, state: State, kind: int, subject: int) -> None:
    """Marks the slots that wait for a slot: those of ways, and of operators that empty ways lead to."""
    if kind == WAY or kind == WAY_BACK:
        edge = graph.edges[subject]
        after = (
            graph.operators[edge.consumer].forward_slot if kind == WAY else graph.operators[edge.producer].backward_slot
        )
        _mark(graph, devices, state, after, state.path[after])
        return
    operator = graph.operators[subject]
    forward = kind == FORWARD
    first, end = (operator.out_first, operator.out_end) if forward else (operator.in_first, operator.in_end)
    for some in range(2 * first, 2 * end + 1):
        # Of each edge its way, then what waits for it if it is empty; then the operator's own backward work.
        if some == 2 * end:
            if kind == BACKWARD:
                continue
            after = operator.backward_slot
        else:
            edge = graph.edges[graph.outgoing[some >> 1] if forward else graph.incoming[some >> 1]]
            after = edge.way_slot if forward else edge.back_slot
            if some & 1:
                if state.path[after] != 0:
                    continue
                other = edge.consumer if forward else edge.producer
                after = graph.operators[other].forward_slot if forward else graph.operators[other].backward_slot
        _mark(graph, devices, state, after, state.path[after])
