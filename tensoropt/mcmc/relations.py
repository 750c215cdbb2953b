"""Which tasks wait for which, and where each runs: followed from slots, for compiled loops."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BACK_FROM,
    BACK_TABLE,
    BACK_TO,
    BACKWARD_SLOT,
    CLASSES,
    EDGE_FROM,
    EDGE_TO,
    FIRST,
    FORWARD_SLOT,
    HAS_BACK,
    IN_EDGE,
    IN_FIRST,
    KINDS,
    LANE_OF,
    LAYOUTS,
    MASKS,
    OFFSETS,
    OUT_EDGE,
    OUT_FIRST,
    PRESENT,
    RETURNS,
    SLOT_KIND,
    SLOT_REF,
    WAY_BACK_SLOT,
    WAY_FROM,
    WAY_SLOT,
    WAY_TABLE,
    WAY_TO,
    ZEROED,
)
from tensoropt.mcmc.compiled import compiled, inlined

__all__ = ["lane_of", "predecessors", "route", "successors"]

# Forward and backward slots of operators and edges.
_WAY, _FORWARD, _BACKWARD, _WAY_BACK = 0, 1, 2, 3


@inlined
def route(net: Any, rows: Any, routes: Any, edge: int, back: bool, start: int, end: int) -> int:
    """The path of an edge between configurations of its producer and consumer; -1 if its row is not known."""
    if back:
        table = net[net[BACK_TABLE] + edge]
        if table < 0:
            return 0
        row = rows[table + net[net[LAYOUTS] + net[net[BACK_FROM] + edge] + end]]
        return -1 if row < 0 else routes[row + net[net[LAYOUTS] + net[net[BACK_TO] + edge] + start]]
    row = rows[net[net[WAY_TABLE] + edge] + net[net[LAYOUTS] + net[net[WAY_FROM] + edge] + start]]
    return -1 if row < 0 else routes[row + net[net[LAYOUTS] + net[net[WAY_TO] + edge] + end]]


@inlined
def _collect(
    frame: Any,
    pool: Any,
    path: Any,
    stages: int,
    slot: int,
    last: bool,
    sign: int,
    klass: int,
    out: Any,
    at: int,
    count: int,
) -> int:
    """Adds the tasks of the first or last stage of a slot that a task of another stage waits for, or they for it."""
    stage = pool[path[slot]] - 1 if last else 0
    return _collect_stage(frame, pool, path, stages, slot, stage, sign, klass, out, at, count)


@inlined
def _collect_stage(
    frame: Any,
    pool: Any,
    path: Any,
    stages: int,
    slot: int,
    stage: int,
    sign: int,
    klass: int,
    out: Any,
    at: int,
    count: int,
) -> int:
    other = pool[path[slot] + 2 + 2 * stage]
    classes = frame[CLASSES]
    base = (slot * stages + stage) * classes
    if classes == 1:
        out[at + count] = base
        return count + 1
    mask = frame[frame[MASKS] + sign] | frame[frame[MASKS] + other]
    zeroed = frame[frame[ZEROED] + mask * classes + klass]
    for place in range(frame[frame[FIRST] + mask], frame[frame[FIRST] + mask + 1]):
        found = zeroed + frame[frame[OFFSETS] + place]
        if frame[frame[PRESENT] + other * frame[CLASSES] + found]:
            out[at + count] = base + found
            count += 1
    return count


@inlined
def _some(path: Any, slot: int) -> bool:
    return bool(path[slot] != 0)


@compiled
def predecessors(net: Any, frame: Any, pool: Any, path: Any, stages: int, task: int, out: Any, at: int) -> int:
    """The tasks that a task waits for: how many are written to ``out`` from ``at`` on."""
    classes = frame[CLASSES]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    sign = pool[path[slot] + 2 + 2 * stage]
    if stage > 0:
        return _collect_stage(frame, pool, path, stages, slot, stage - 1, sign, klass, out, at, 0)
    kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
    if kind == _WAY:
        before = net[net[FORWARD_SLOT] + net[net[EDGE_FROM] + ref]]
        return _collect(frame, pool, path, stages, before, True, sign, klass, out, at, 0)
    if kind == _WAY_BACK:
        before = net[net[BACKWARD_SLOT] + net[net[EDGE_TO] + ref]]
        return _collect(frame, pool, path, stages, before, True, sign, klass, out, at, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
            edge = net[net[IN_EDGE] + some]
            before = net[net[WAY_SLOT] + edge]
            if not _some(path, before):
                before = net[net[FORWARD_SLOT] + net[net[EDGE_FROM] + edge]]
            count = _collect(frame, pool, path, stages, before, True, sign, klass, out, at, count)
        return count
    count = _collect(frame, pool, path, stages, net[net[FORWARD_SLOT] + ref], True, sign, klass, out, at, 0)
    for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
        edge = net[net[OUT_EDGE] + some]
        if net[net[RETURNS] + edge]:
            before = net[net[WAY_BACK_SLOT] + edge]
            if not _some(path, before):
                before = net[net[BACKWARD_SLOT] + net[net[EDGE_TO] + edge]]
            count = _collect(frame, pool, path, stages, before, True, sign, klass, out, at, count)
    return count


@compiled
def successors(net: Any, frame: Any, pool: Any, path: Any, stages: int, task: int, out: Any, at: int) -> int:
    """The tasks that wait for a task, as :func:`predecessors` gives those that it waits for."""
    classes = frame[CLASSES]
    klass, rest = task % classes, task // classes
    stage, slot = rest % stages, rest // stages
    sign = pool[path[slot] + 2 + 2 * stage]
    if stage + 1 < pool[path[slot]]:
        return _collect_stage(frame, pool, path, stages, slot, stage + 1, sign, klass, out, at, 0)
    kind, ref = net[net[SLOT_KIND] + slot], net[net[SLOT_REF] + slot]
    if kind == _WAY:
        after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + ref]]
        return _collect(frame, pool, path, stages, after, False, sign, klass, out, at, 0)
    if kind == _WAY_BACK:
        after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + ref]]
        return _collect(frame, pool, path, stages, after, False, sign, klass, out, at, 0)
    count = 0
    if kind == _FORWARD:
        for some in range(net[net[OUT_FIRST] + ref], net[net[OUT_FIRST] + ref + 1]):
            edge = net[net[OUT_EDGE] + some]
            after = net[net[WAY_SLOT] + edge]
            if not _some(path, after):
                after = net[net[FORWARD_SLOT] + net[net[EDGE_TO] + edge]]
            count = _collect(frame, pool, path, stages, after, False, sign, klass, out, at, count)
        if net[net[HAS_BACK] + ref]:
            count = _collect(
                frame, pool, path, stages, net[net[BACKWARD_SLOT] + ref], False, sign, klass, out, at, count
            )
        return count
    for some in range(net[net[IN_FIRST] + ref], net[net[IN_FIRST] + ref + 1]):
        edge = net[net[IN_EDGE] + some]
        if net[net[RETURNS] + edge]:
            after = net[net[WAY_BACK_SLOT] + edge]
            if not _some(path, after):
                after = net[net[BACKWARD_SLOT] + net[net[EDGE_FROM] + edge]]
            count = _collect(frame, pool, path, stages, after, False, sign, klass, out, at, count)
    return count


@inlined
def lane_of(frame: Any, sign: int, klass: int) -> int:
    """The resource of a task, -1 for none: devices first, then the links of each level."""
    kind = frame[frame[KINDS] + sign]
    return -1 if kind < 0 else kind * frame[CLASSES] + frame[frame[LANE_OF] + kind * frame[CLASSES] + klass]
