"""The dependencies of tasks, and the resources that tasks run on, for compiled loops.

Of a strategy there are lists of slots in which an empty way is left out, kept from one strategy to the next: a change
rewrites the entries of ways that become empty or cease to be. Of what comes after, slots that wait for a single other
one are written as their complement, ``~slot``, and so are their tasks where one stands for all devices: simulation need
not look up what else they wait for.
"""

from __future__ import annotations

from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, State
from tensoropt.space.work import Ints

__all__ = ["lane_of", "link_all", "route", "tasks_after", "tasks_before", "update_links"]


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
    """Adds the tasks of a stage that a task of a class of devices and of another stage waits for, or they for it.

    Returns:
        how many ``out`` has then.
    """
    other = graph.pool[state.path[slot] + 2 + 2 * stage]
    base = (slot * state.progress[0].stages + stage) * devices.present.shape[1]
    axes = devices.signatures[signature].axes | devices.signatures[other].axes
    zeroed = devices.zeroed[axes, device]
    for place in range(devices.offset_first[axes], devices.offset_first[axes + 1]):
        found = zeroed + devices.offsets[place]
        if devices.present[other, found]:
            out[count] = base + found
            count += 1
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
    stages, classes, out = state.progress[0].stages, devices.present.shape[1], state.tasks_after
    slot = task // (stages * classes)
    stage = task // classes - slot * stages
    path = state.path[slot]
    inside = stage + 1 < graph.pool[path]
    first, end = graph.slots[slot].after_first, graph.slots[slot].after_end
    if classes == 1:
        if inside:
            out[0] = ~(task + 1)
            return 1
        for entry in range(first, end):
            after = state.after[entry]
            out[entry - first] = after * stages if after >= 0 else ~(~after * stages)
        return int(end - first)
    count = 0
    for entry in range(first, first + 1 if inside else end):
        after = slot if inside else state.after[entry]
        after = after if after >= 0 else ~after
        beside = stage + 1 if inside else 0
        signature = graph.pool[path + 2 + 2 * stage]
        count = _collect(graph, devices, state, after, beside, signature, task % classes, out, count)
    return count


@inlined
def tasks_before(graph: Graph, devices: DeviceClasses, state: State, task: int) -> int:
    """The tasks that a task waits for: how many are written to ``state.tasks_before``."""
    stages, classes, out = state.progress[0].stages, devices.present.shape[1], state.tasks_before
    slot = task // (stages * classes)
    stage = task // classes - slot * stages
    first, end = graph.slots[slot].before_first, graph.slots[slot].before_end
    if classes == 1:
        if stage > 0:
            out[0] = task - 1
            return 1
        for entry in range(first, end):
            before = state.before[entry]
            out[entry - first] = before * stages + graph.pool[state.path[before]] - 1
        return int(end - first)
    count = 0
    for entry in range(first, first + 1 if stage > 0 else end):
        before = slot if stage > 0 else state.before[entry]
        beside = stage - 1 if stage > 0 else graph.pool[state.path[before]] - 1
        signature = graph.pool[state.path[slot] + 2 + 2 * stage]
        count = _collect(graph, devices, state, before, beside, signature, task % classes, out, count)
    return count
