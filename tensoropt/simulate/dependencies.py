"""Which tasks wait for which, and where each runs, for compiled loops.

They are followed from slots through operators and edges. Where one task stands for all devices they are also kept from
one strategy to the next, as lists of slots in which an empty way is left out: a change rewrites the entries of ways
that become empty or cease to be. Of what comes after, slots and tasks that wait for a single other one are written as
their complement, ``~slot``: simulation need not look up what else they wait for.
"""

from __future__ import annotations

from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.state import FORWARD, WAY, WAY_BACK, DeviceClasses, Graph, State
from tensoropt.space.work import Ints

__all__ = ["lane_of", "link_all", "predecessors", "route", "successors", "tasks_after", "tasks_before", "update_links"]


@inlined
def route(graph: Graph, edge: int, back: bool, start: int, end: int) -> int:
    """The path of an edge between configurations of its producer and consumer; -1 if its row is not known."""
    ends = graph.edges[edge]
    if back:
        if ends.back_table < 0:
            return 0
        row = graph.rows[ends.back_table + graph.layouts[ends.back_from + end]]
        return -1 if row < 0 else graph.routes[row + graph.layouts[ends.back_to + start]]
    row = graph.rows[ends.way_table + graph.layouts[ends.way_from + start]]
    return -1 if row < 0 else graph.routes[row + graph.layouts[ends.way_to + end]]


@inlined
def lane_of(devices: DeviceClasses, signature: int, device: int) -> int:
    """The resource of a task, -1 for none: devices first, then the links of each level."""
    kind = devices.signatures[signature].kind
    return -1 if kind < 0 else kind * devices.lanes.shape[1] + devices.lanes[kind, device]


@inlined
def _collect(
    graph: Graph,
    devices: DeviceClasses,
    state: State,
    slot: int,
    stage: int,
    signature: int,
    device: int,
    out: Ints,
    count: int,
) -> int:
    """Adds the tasks of a slot's stage that a task of another one waits for, or they for it; ``stage`` -1 is the last.

    Returns:
        how many ``out`` has then.
    """
    path = state.path[slot]
    if stage < 0:
        stage = graph.pool[path] - 1
    other = graph.pool[path + 2 + 2 * stage]
    classes = devices.present.shape[1]
    base = (slot * state.progress[0].stages + stage) * classes
    if classes == 1:
        out[count] = base
        return count + 1
    axes = devices.signatures[signature].axes | devices.signatures[other].axes
    zeroed = devices.zeroed[axes, device]
    for place in range(devices.offset_first[axes], devices.offset_first[axes + 1]):
        found = zeroed + devices.offsets[place]
        if devices.present[other, found]:
            out[count] = base + found
            count += 1
    return count


@inlined
def predecessors(graph: Graph, devices: DeviceClasses, state: State, task: int, out: Ints) -> int:
    """The tasks that a task waits for: how many are written to ``out``."""
    stages, classes = state.progress[0].stages, devices.present.shape[1]
    device, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    sign = graph.pool[state.path[slot] + 2 + 2 * stage]
    kind, subject = graph.slots[slot].kind, graph.slots[slot].subject
    if stage > 0 or kind == WAY or kind == WAY_BACK:
        before, last = slot, stage - 1
        if stage == 0 and kind == WAY:
            before = graph.operators[graph.edges[subject].producer].forward_slot
        elif stage == 0:
            before = graph.operators[graph.edges[subject].consumer].backward_slot
        return int(_collect(graph, devices, state, before, last, sign, device, out, 0))
    operator = graph.operators[subject]
    forward = kind == FORWARD
    first, end = (operator.in_first, operator.in_end) if forward else (operator.out_first, operator.out_end)
    count = 0
    # One more turn than edges: backward work waits for forward work, too.
    for some in range(first - 1, end):
        if some < first:
            if forward:
                continue
            before = operator.forward_slot
        else:
            edge = graph.edges[graph.incoming[some] if forward else graph.outgoing[some]]
            if not forward and not edge.returns:
                continue
            before = edge.way_slot if forward else edge.back_slot
            if state.path[before] == 0:
                other = edge.producer if forward else edge.consumer
                before = graph.operators[other].forward_slot if forward else graph.operators[other].backward_slot
        count = _collect(graph, devices, state, before, -1, sign, device, out, count)
    return count


@inlined
def successors(graph: Graph, devices: DeviceClasses, state: State, task: int, out: Ints) -> int:
    """The tasks that wait for a task, as :func:`predecessors` gives those that it waits for."""
    stages, classes = state.progress[0].stages, devices.present.shape[1]
    device, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    path = state.path[slot]
    sign = graph.pool[path + 2 + 2 * stage]
    kind, subject = graph.slots[slot].kind, graph.slots[slot].subject
    inside = stage + 1 < graph.pool[path]
    if inside or kind == WAY or kind == WAY_BACK:
        after, first_stage = slot, stage + 1
        if not inside:
            first_stage = 0
            if kind == WAY:
                after = graph.operators[graph.edges[subject].consumer].forward_slot
            else:
                after = graph.operators[graph.edges[subject].producer].backward_slot
        return int(_collect(graph, devices, state, after, first_stage, sign, device, out, 0))
    operator = graph.operators[subject]
    forward = kind == FORWARD
    first, end = (operator.out_first, operator.out_end) if forward else (operator.in_first, operator.in_end)
    count = 0
    for some in range(first, end + 1):
        if some == end:
            if not forward or not operator.has_backward:
                continue
            after = operator.backward_slot
        else:
            edge = graph.edges[graph.outgoing[some] if forward else graph.incoming[some]]
            if not forward and not edge.returns:
                continue
            after = edge.way_slot if forward else edge.back_slot
            if state.path[after] == 0:
                other = edge.consumer if forward else edge.producer
                after = graph.operators[other].forward_slot if forward else graph.operators[other].backward_slot
        count = _collect(graph, devices, state, after, 0, sign, device, out, count)
    return count


@inlined
def update_links(graph: Graph, state: State, slot: int, empty: bool) -> None:
    """Notes whether a way is empty: then its ends wait for one another directly."""
    way = graph.slots[slot]
    if way.source >= 0:
        state.after[way.source_entry] = way.target if empty else ~slot
        state.before[way.target_entry] = way.source if empty else slot


@compiled
def link_all(graph: Graph, state: State) -> None:
    """Makes the lists of a strategy."""
    for entry in range(len(graph.after)):
        state.after[entry], state.before[entry] = graph.after[entry], graph.before[entry]
    for slot in range(len(state.path)):
        if state.path[slot] == 0:
            update_links(graph, state, slot, True)


@inlined
def tasks_after(graph: Graph, devices: DeviceClasses, state: State, task: int) -> int:
    """The tasks that wait for a task: how many are written to ``state.tasks_after``.

    Those known to wait for no other one are written as their complement.
    """
    if devices.present.shape[1] > 1:
        return int(successors(graph, devices, state, task, state.tasks_after))
    stages = state.progress[0].stages
    slot = task // stages
    if task - slot * stages + 1 < graph.pool[state.path[slot]]:
        state.tasks_after[0] = ~(task + 1)
        return 1
    first, end = graph.slots[slot].after_first, graph.slots[slot].after_end
    for entry in range(first, end):
        after = state.after[entry]
        state.tasks_after[entry - first] = after * stages if after >= 0 else ~(~after * stages)
    return int(end - first)


@inlined
def tasks_before(graph: Graph, devices: DeviceClasses, state: State, task: int) -> int:
    """The tasks that a task waits for: how many are written to ``state.tasks_before``."""
    if devices.present.shape[1] > 1:
        return int(predecessors(graph, devices, state, task, state.tasks_before))
    stages = state.progress[0].stages
    slot = task // stages
    if task > slot * stages:
        state.tasks_before[0] = task - 1
        return 1
    first, end = graph.slots[slot].before_first, graph.slots[slot].before_end
    for entry in range(first, end):
        before = state.before[entry]
        state.tasks_before[entry - first] = before * stages + graph.pool[state.path[before]] - 1
    return int(end - first)
