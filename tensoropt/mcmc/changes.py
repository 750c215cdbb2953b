"""What a change of configurations changes: paths, and the tasks that may differ."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BACKWARD_SLOT,
    CHANGED,
    CHANGED_PATH,
    CHANGED_SLOT,
    CLASSES,
    DIRTY,
    DIRTY_STATE,
    DIRTY_TASKS,
    EDGE_FROM,
    EDGE_SEEN,
    EDGE_TO,
    EPOCH,
    FORWARD_SLOT,
    GONE,
    GONE_TASKS,
    IN_EDGE,
    IN_FIRST,
    LANE_LEFT,
    LANE_LOAD,
    LANES,
    LOST,
    MOVED,
    MOVED_OP,
    OP_BACKWARD,
    OP_BASE,
    OP_FORWARD,
    OUT_EDGE,
    OUT_FIRST,
    PRESENT,
    SLOT_CHANGED,
    SLOT_DIRTY,
    SLOT_KIND,
    SLOT_REF,
    TRIED,
    WAY_BACK_SLOT,
    WAY_SLOT,
)
from tensoropt.mcmc.compiled import compiled, inlined
from tensoropt.mcmc.links import link
from tensoropt.mcmc.relations import lane_of, route

__all__ = ["find_changes", "mark_changes"]


@inlined
def _touch(net: Any, path: Any, work: Any, slot: int, new: int) -> bool:
    """Gives a slot another path; whether it may."""
    old = path[slot]
    if new < 0:
        return False
    if old == new:
        return True
    count = work[CHANGED]
    work[work[CHANGED_SLOT] + count], work[work[CHANGED_PATH] + count] = slot, old
    work[CHANGED] = count + 1
    path[slot] = new
    if (old == 0) != (new == 0):
        link(net, work, slot, new == 0)
    return True


@compiled
def _mark(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int, slot: int, old: int) -> None:
    """Notes the tasks of a slot as dirty: those that it has, and those that it had under the path ``old``."""
    epoch = work[EPOCH]
    if work[work[SLOT_DIRTY] + slot] == epoch:
        return
    work[work[SLOT_DIRTY] + slot] = epoch
    classes = frame[CLASSES]
    new = path[slot]
    length_old, length_new = pool[old], pool[new]
    for stage in range(max(length_old, length_new)):
        for klass in range(classes):
            had = stage < length_old and frame[frame[PRESENT] + pool[old + 2 + 2 * stage] * frame[CLASSES] + klass]
            has = stage < length_new and frame[frame[PRESENT] + pool[new + 2 + 2 * stage] * frame[CLASSES] + klass]
            task = (slot * stages + stage) * classes + klass
            if had and not has:
                work[work[GONE_TASKS] + work[GONE]] = task
                work[GONE] += 1
            if had or has:
                work[work[DIRTY_TASKS] + work[DIRTY]] = task
                work[work[DIRTY_STATE] + work[DIRTY]] = (1 if had else 0) + (2 if has else 0)
                work[DIRTY] += 1


@inlined
def _load(frame: Any, pool: Any, work: Any, path: int, sign: int) -> int:
    """Adds the ticks of all tasks of a path to what their lanes have left to do, or takes them away.

    Returns:
        the ticks of its stages.
    """
    total = 0
    for stage in range(pool[path]):
        ticks, where = pool[path + 1 + 2 * stage], pool[path + 2 + 2 * stage]
        total += ticks
        if ticks == 0:
            continue
        for klass in range(frame[CLASSES]):
            if frame[frame[PRESENT] + where * frame[CLASSES] + klass]:
                work[work[LANE_LEFT] + lane_of(frame, where, klass)] += sign * ticks
    return int(total)


@compiled
def find_changes(
    net: Any, frame: Any, pool: Any, path: Any, work: Any, rows: Any, routes: Any, assignment: Any
) -> bool:
    """Changes the paths of operators that have moved, and of the edges around them.

    Also notes what lanes have to do in all then, as what they have left, and by how much chains of tasks may become
    shorter.

    Returns:
        whether there are such paths.
    """
    work[TRIED] += 1
    tried = work[TRIED]
    for number in range(work[MOVED]):
        op = work[work[MOVED_OP] + number]
        place = net[net[OP_BASE] + op] + assignment[op]
        _touch(net, path, work, net[net[FORWARD_SLOT] + op], net[net[OP_FORWARD] + place])
        _touch(net, path, work, net[net[BACKWARD_SLOT] + op], net[net[OP_BACKWARD] + place])
        for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
            edge = net[net[IN_EDGE] + some]
            if work[work[EDGE_SEEN] + edge] != tried:
                work[work[EDGE_SEEN] + edge] = tried
                if not _touch_edge(net, path, work, rows, routes, assignment, edge):
                    return False
        for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
            edge = net[net[OUT_EDGE] + some]
            if work[work[EDGE_SEEN] + edge] != tried:
                work[work[EDGE_SEEN] + edge] = tried
                if not _touch_edge(net, path, work, rows, routes, assignment, edge):
                    return False
    for lane in range(work[LANES]):
        work[work[LANE_LEFT] + lane] = work[work[LANE_LOAD] + lane]
    lost = 0
    for number in range(work[CHANGED]):
        before = _load(frame, pool, work, work[work[CHANGED_PATH] + number], -1)
        lost += max(0, before - _load(frame, pool, work, path[work[work[CHANGED_SLOT] + number]], 1))
    work[LOST] = lost
    return True


@inlined
def _touch_edge(net: Any, path: Any, work: Any, rows: Any, routes: Any, assignment: Any, edge: int) -> bool:
    start, end = assignment[net[net[EDGE_FROM] + edge]], assignment[net[net[EDGE_TO] + edge]]
    ahead = route(net, rows, routes, edge, False, start, end)
    back = route(net, rows, routes, edge, True, start, end)
    return bool(
        _touch(net, path, work, net[net[WAY_SLOT] + edge], ahead)
        and _touch(net, path, work, net[net[WAY_BACK_SLOT] + edge], back)
    )


@compiled
def mark_changes(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int) -> None:
    """Notes what may differ from the timeline: tasks of slots that changed, and those that wait for them."""
    work[EPOCH] += 1
    work[GONE] = work[DIRTY] = 0
    changed = work[CHANGED]
    for number in range(changed):
        work[work[SLOT_CHANGED] + work[work[CHANGED_SLOT] + number]] = work[EPOCH]
        _mark(
            net,
            frame,
            pool,
            path,
            work,
            stages,
            work[work[CHANGED_SLOT] + number],
            work[work[CHANGED_PATH] + number],
        )
    for number in range(changed):
        slot = work[work[CHANGED_SLOT] + number]
        kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
        if kind == 0:
            after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + ref]]
            _mark(net, frame, pool, path, work, stages, after, path[after])
        elif kind == 3:
            after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + ref]]
            _mark(net, frame, pool, path, work, stages, after, path[after])
        elif kind == 1:
            for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
                edge = net[net[OUT_EDGE] + some]
                after = net[net[WAY_SLOT] + edge]
                _mark(net, frame, pool, path, work, stages, after, path[after])
                if path[after] == 0:
                    after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + edge]]
                    _mark(net, frame, pool, path, work, stages, after, path[after])
            after = net[net[BACKWARD_SLOT] + ref]
            _mark(net, frame, pool, path, work, stages, after, path[after])
        else:
            for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
                edge = net[net[IN_EDGE] + some]
                after = net[net[WAY_BACK_SLOT] + edge]
                _mark(net, frame, pool, path, work, stages, after, path[after])
                if path[after] == 0:
                    after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + edge]]
                    _mark(net, frame, pool, path, work, stages, after, path[after])
