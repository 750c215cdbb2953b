"""Compiled loops over a task graph that is never written down: its paths, and its simulation from nothing."""

from __future__ import annotations

from typing import Any

from tensoropt.simulate.compiled import compiled
from tensoropt.simulate.dependencies import lane_of, link_all, route, tasks_after, tasks_before
from tensoropt.simulate.ready_queue import pop, push
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, State
from tensoropt.space.work import Ints

__all__ = ["count_tasks", "find_paths", "missing_rows", "simulate_full"]


@compiled
def missing_rows(graph: Graph, operators: Ints, choices: Ints, out: Ints, seen: Any) -> int:
    """Rows that configurations of operators need and that are not known.

    Args:
        graph: of all strategies.
        operators: ``(K,)`` numbers.
        choices: ``(K,)``, a configuration of each.
        out: takes the places of the rows.
        seen: for each row, 0.

    Returns:
        how many.
    """
    count = 0
    for number in range(len(operators)):
        operator, choice = graph.operators[operators[number]], choices[number]
        for some in range(operator.out_first, operator.out_end):
            edge = graph.edges[graph.outgoing[some]]
            place = edge.way_table + graph.layouts[edge.way_from + choice]
            if graph.rows[place] < 0 and seen[place] == 0:
                seen[place] = 1
                out[count] = place
                count += 1
        for some in range(operator.in_first, operator.in_end):
            edge = graph.edges[graph.incoming[some]]
            if edge.back_table >= 0:
                place = edge.back_table + graph.layouts[edge.back_from + choice]
                if graph.rows[place] < 0 and seen[place] == 0:
                    seen[place] = 1
                    out[count] = place
                    count += 1
    return count


@compiled
def find_paths(graph: Graph, assignment: Ints, path: Ints) -> bool:
    """Each slot's path under a strategy, all rows of which are known; whether there are such paths."""
    possible = True
    for number in range(len(assignment)):
        operator = graph.operators[number]
        path[operator.forward_slot] = graph.forward[operator.choice_first + assignment[number]]
        path[operator.backward_slot] = graph.backward[operator.choice_first + assignment[number]]
    for number in range(len(graph.edges)):
        edge = graph.edges[number]
        start, end = assignment[edge.producer], assignment[edge.consumer]
        ahead, back = route(graph, number, False, start, end), route(graph, number, True, start, end)
        path[edge.way_slot], path[edge.back_slot] = ahead, back
        possible = possible and ahead >= 0 and back >= 0
    return possible


@compiled
def count_tasks(graph: Graph, devices: DeviceClasses, path: Ints) -> int:
    """Returns the number of tasks of all slots."""
    total = 0
    for slot in range(len(path)):
        for stage in range(graph.pool[path[slot]]):
            for device in range(devices.present.shape[1]):
                total += devices.present[graph.pool[path[slot] + 2 + 2 * stage], device]
    return total


@compiled
def simulate_full(graph: Graph, devices: DeviceClasses, state: State) -> int:
    """The timeline of the paths in ``state.path`` from nothing (FlexFlow Algorithm 1); the end of the last task."""
    progress, path, tasks, queue = state.progress[0], state.path, state.tasks, state.queue
    stages, classes = progress.stages, devices.present.shape[1]
    line = state.lines[progress.line]
    link_all(graph, state)
    for lane in range(len(state.lanes)):
        state.lanes[lane].end = 0
    for task in range(len(path) * stages * classes):
        tasks[task].position = -1
    total = size = 0
    for slot in range(len(path)):
        for stage in range(graph.pool[path[slot]]):
            signature = graph.pool[path[slot] + 2 + 2 * stage]
            for device in range(classes):
                if devices.present[signature, device]:
                    task = (slot * stages + stage) * classes + device
                    total += 1
                    tasks[task].open = tasks_before(graph, devices, state, task)
                    tasks[task].end, tasks[task].enabler = 0, -1
                    if tasks[task].open == 0:
                        push(queue, size, 0, task)
                        size += 1
    done = makespan = 0
    while size > 0:
        ready, task = queue[0].ready, queue[0].task
        pop(queue, size)
        size -= 1
        rest = task // classes
        stage = path[rest // stages] + 1 + 2 * (rest % stages)
        lane = lane_of(devices, graph.pool[stage + 1], task % classes)
        end = ready
        if lane >= 0:
            end = max(ready, state.lanes[lane].end) + graph.pool[stage]
            state.lanes[lane].end = end
        tasks[task].position = done
        timed = line[done]
        timed.task, timed.ready, timed.end, timed.lane, timed.enabler = task, ready, end, lane, tasks[task].enabler
        done += 1
        makespan = max(makespan, end)
        for number in range(tasks_after(graph, devices, state, task)):
            other = state.tasks_after[number]
            other = other if other >= 0 else ~other
            after = tasks[other]
            after.end = max(after.end, end)
            after.open -= 1
            if after.open == 0:
                after.enabler = task
                push(queue, size, after.end, other)
                size += 1
    progress.tasks = total
    return makespan
