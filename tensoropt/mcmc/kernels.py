"""Compiled loops over a task graph that is never written down: its paths, and its simulation from nothing.

A task is numbered ``(slot * stages + stage) * classes + class``; a timeline lists tasks in the order in which they
become ready, equal ones by number.
"""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import (
    BACK_FROM,
    BACK_TABLE,
    BACKWARD_SLOT,
    BUFFER_BEFORE,
    CLASSES,
    EDGE_FROM,
    EDGE_TO,
    EDGES,
    ENABLER,
    END,
    FORWARD_SLOT,
    HEAP_READY,
    HEAP_TASK,
    IN_EDGE,
    IN_FIRST,
    LANE_END,
    LANES,
    LAYOUTS,
    LINE_ENABLER,
    LINE_END,
    LINE_LANE,
    LINE_POSITION,
    LINE_READY,
    LINE_TASK,
    MEMBER_CHOICE,
    MEMBER_FIRST,
    MEMBER_OP,
    MEMBER_TABLE,
    OP_BACKWARD,
    OP_BASE,
    OP_FORWARD,
    OPEN,
    OUT_EDGE,
    OUT_FIRST,
    PRESENT,
    TASKS,
    WAY_BACK_SLOT,
    WAY_FROM,
    WAY_SLOT,
    WAY_TABLE,
    WIDTH,
)
from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.heap import pop, push
from tensoropt.mcmc.relations import lane_of, predecessors, route, successors

__all__ = ["count_tasks", "find_paths", "missing_rows", "simulate"]


@compiled
def missing_rows(net: Any, rows: Any, moves: Any, sets: Any, choices: Any, out: Any, flags: Any) -> int:
    """Rows that changes of sets need and that are not known.

    Args:
        net: of the network.
        rows: where each row of routes begins, -1 if it is not known.
        moves: see :class:`tensoropt.mcmc.moves.Moves`.
        sets: ``(K,)``, their numbers.
        choices: ``(K,)``, a configuration of the first operator of each.
        out: takes the places of the rows.
        flags: for each row, 0.

    Returns:
        how many.
    """
    count = 0
    for number in range(len(sets)):
        one = sets[number]
        for member in range(moves[moves[MEMBER_FIRST] + one], moves[moves[MEMBER_FIRST] + one + 1]):
            op = moves[moves[MEMBER_OP] + member]
            choice = moves[moves[MEMBER_CHOICE] + moves[moves[MEMBER_TABLE] + member] + choices[number]]
            for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
                edge = net[net[OUT_EDGE] + some]
                place = net[net[WAY_TABLE] + edge] + net[net[LAYOUTS] + net[net[WAY_FROM] + edge] + choice]
                if rows[place] < 0 and flags[place] == 0:
                    flags[place] = 1
                    out[count] = place
                    count += 1
            for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
                edge = net[net[IN_EDGE] + some]
                if net[net[BACK_TABLE] + edge] >= 0:
                    place = net[net[BACK_TABLE] + edge] + net[net[LAYOUTS] + net[net[BACK_FROM] + edge] + choice]
                    if rows[place] < 0 and flags[place] == 0:
                        flags[place] = 1
                        out[count] = place
                        count += 1
    return count


@compiled
def find_paths(net: Any, rows: Any, routes: Any, assignment: Any, path: Any) -> bool:
    """Each slot's path under a strategy, all rows of which are known; whether there are such paths."""
    possible = True
    for op in range(len(assignment)):
        path[net[net[FORWARD_SLOT] + op]] = net[net[OP_FORWARD] + net[net[OP_BASE] + op] + assignment[op]]
        path[net[net[BACKWARD_SLOT] + op]] = net[net[OP_BACKWARD] + net[net[OP_BASE] + op] + assignment[op]]
    for edge in range(net[EDGES]):
        start, end = assignment[net[net[EDGE_FROM] + edge]], assignment[net[net[EDGE_TO] + edge]]
        ahead = route(net, rows, routes, edge, False, start, end)
        back = route(net, rows, routes, edge, True, start, end)
        path[net[net[WAY_SLOT] + edge]], path[net[net[WAY_BACK_SLOT] + edge]] = ahead, back
        possible = possible and ahead >= 0 and back >= 0
    return possible


@compiled
def count_tasks(frame: Any, pool: Any, path: Any) -> int:
    """How many tasks all slots have."""
    total = 0
    for slot in range(len(path)):
        for stage in range(pool[path[slot]]):
            for klass in range(frame[CLASSES]):
                total += frame[frame[PRESENT] + pool[path[slot] + 2 + 2 * stage] * frame[CLASSES] + klass]
    return total


@compiled
def simulate(net: Any, frame: Any, pool: Any, path: Any, work: Any, stages: int) -> int:
    """The timeline of a strategy from nothing (FlexFlow Algorithm 1).

    Args:
        net: of the network.
        frame: of the classes.
        pool: the stages of paths.
        path: of each slot.
        work: takes the timeline.
        stages: the most of any path.

    Returns:
        the end of the last task.
    """
    classes = frame[CLASSES]
    numbers = len(path) * stages * classes
    waiting, ready, enabler = work[OPEN], work[END], work[ENABLER]
    total = 0
    position, buffer = work[LINE_POSITION], work[BUFFER_BEFORE]
    lane_end = work[LANE_END]
    for lane in range(work[LANES]):
        work[lane_end + lane] = 0
    for task in range(numbers):
        work[position + WIDTH * task] = -1
    readies, tasks = work[HEAP_READY], work[HEAP_TASK]
    size = 0
    for slot in range(len(path)):
        begin = path[slot]
        for stage in range(pool[begin]):
            sign = pool[begin + 2 + 2 * stage]
            for klass in range(classes):
                if frame[frame[PRESENT] + sign * classes + klass]:
                    task = (slot * stages + stage) * classes + klass
                    total += 1
                    count = predecessors(net, frame, pool, path, stages, task, work, buffer)
                    work[waiting + WIDTH * task], work[ready + WIDTH * task] = count, 0
                    work[enabler + WIDTH * task] = -1
                    if count == 0:
                        push(work, readies, tasks, size, 0, task)
                        size += 1
    done = 0
    makespan = 0
    while size > 0:
        at, task = work[readies], work[tasks]
        pop(work, readies, tasks, size)
        size -= 1
        klass, rest = task % classes, task // classes
        place = path[rest // stages] + 1 + 2 * (rest % stages)
        lane = lane_of(frame, pool[place + 1], klass)
        end = at
        if lane >= 0:
            end = max(at, work[lane_end + lane]) + pool[place]
            work[lane_end + lane] = end
        work[position + WIDTH * task] = done
        work[work[LINE_TASK] + done] = task
        work[work[LINE_READY] + done] = at
        work[work[LINE_END] + done] = end
        work[work[LINE_LANE] + done] = lane
        work[work[LINE_ENABLER] + done] = work[enabler + WIDTH * task]
        done += 1
        makespan = max(makespan, end)
        for number in range(successors(net, frame, pool, path, stages, task, work, buffer)):
            after = work[buffer + number]
            work[ready + WIDTH * after] = max(work[ready + WIDTH * after], end)
            work[waiting + WIDTH * after] -= 1
            if work[waiting + WIDTH * after] == 0:
                work[enabler + WIDTH * after] = task
                push(work, readies, tasks, size, work[ready + WIDTH * after], after)
                size += 1
    work[TASKS] = total
    return makespan
