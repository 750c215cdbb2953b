"""Random task graph problems, and their simulation written down plainly."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensoropt.simulate import Network
from tensoropt.space.work import Ints, Signature, Tables, Way, Work, ticks

MESHES: tuple[tuple[tuple[int, ...], tuple[tuple[int, bool], ...]], ...] = (
    ((), ((0, False),)),
    ((2,), ((1, False),)),
    ((2, 2), ((1, True), (1, False))),
    ((2, 2), ((1, True), (1, True))),
    ((3, 2), ((2, False),)),
    ((2, 2, 2), ((1, True), (2, False))),
)


class Given:
    """Ways that are given as lists."""

    def __init__(self, rows: list[list[list[tuple[Work, ...]]]]) -> None:
        self.rows = rows

    def row(self, table: int, start: int) -> tuple[Ints, Ints, Ints, list[Signature]]:
        paths = self.rows[table][start]
        works = [work for path in paths for work in path]
        return (
            np.array([len(path) for path in paths]),
            np.array([ticks(work.seconds) for work in works], np.int64),
            np.arange(len(works)),
            [work.signature for work in works],
        )


def random_network(seed: int, *, operators: int = 8) -> Network:
    """A small network, with durations that are often equal or zero, and operators at places."""
    rng = np.random.default_rng(seed)
    mesh, levels = MESHES[int(rng.integers(len(MESHES)))]
    placed = bool(rng.integers(2))
    coarse = bool(rng.integers(2))

    def seconds() -> float:
        if coarse:
            return float(rng.integers(0, 4))
        return float(rng.exponential()) if rng.random() < 0.9 else 0.0

    def signature(lane: int) -> Signature:
        at: tuple[tuple[int, tuple[int, ...]], ...] = ()
        if placed and rng.random() < 0.4:
            at = tuple(
                (axis, tuple(sorted(rng.choice(extent, size=int(rng.integers(1, extent)), replace=False).tolist())))
                for axis, extent in enumerate(mesh)
                if rng.random() < 0.5
            )
        axes = int(rng.integers(1 << len(mesh))) if lane > 0 else 0
        return Signature(lane, axes, at)

    def path(most: int, least: int = 0) -> tuple[Work, ...]:
        stages = []
        for _ in range(int(rng.integers(least, most + 1))):
            lane = int(rng.integers(-1, 1 + len(levels)))
            stages.append(Work(0.0 if lane < 0 else seconds(), signature(lane)))
        return tuple(stages)

    choices = [int(rng.integers(1, 5)) for _ in range(operators)]
    with_back = [bool(rng.random() < 0.8) for _ in range(operators)]
    forward = [[path(2, 1) for _ in range(count)] for count in choices]
    backward = [
        [path(2, 1) for _ in range(count)] if has else None for count, has in zip(choices, with_back, strict=True)
    ]
    edges = [(start, end) for end in range(operators) for start in range(end) if rng.random() < 2.5 / operators]
    edges += [edges[int(rng.integers(len(edges)))]] if edges else []
    returns = [with_back[a] and with_back[b] and bool(rng.random() < 0.8) for a, b in edges]
    sizes = [4, 3]
    rows = [[[path(3) for _ in range(size)] for _ in range(size)] for size in sizes]

    def ends(table: int, edge: tuple[int, int]) -> Way:
        one, other = (rng.integers(sizes[table], size=choices[op]) for op in edge)
        return Way(table, one, other)

    ways = [ends(int(rng.integers(2)), edge) for edge in edges]
    back = [
        ends(int(rng.integers(2)), (edge[1], edge[0])) if some else None
        for edge, some in zip(edges, returns, strict=True)
    ]
    return Network(Tables(forward, backward, edges, ways, back, returns, sizes), Given(rows), mesh, levels)


Name = tuple[int, int, tuple[int, ...]]
"""A task: its slot, its stage, and its device's coordinates."""


class PlainTask(NamedTuple):
    """A task of one device: where it runs (nowhere: None), how long, and what it waits for."""

    resource: tuple[int, tuple[int, ...]] | None
    duration: int
    needs: set[Name]


def plain_tasks(network: Network, assignment: Sequence[int]) -> dict[Name, PlainTask]:
    """The task graph of a strategy as a graph of objects, for every device (section 5.1)."""
    network.add_all_rows()
    graph = network.graph
    operators, edges, layouts = graph.operators, graph.edges, graph.layouts
    mesh, levels = network.mesh, network.levels
    devices = list(np.ndindex(*mesh))

    def route(edge: int, back: bool) -> tuple[tuple[int, int], ...]:
        ends = edges[edge]
        start, end = assignment[ends["producer"]], assignment[ends["consumer"]]
        if not back:
            row, column = ends["way_table"] + layouts[ends["way_from"] + start], layouts[ends["way_to"] + end]
        elif ends["back_table"] < 0:
            return ()
        else:
            row, column = ends["back_table"] + layouts[ends["back_from"] + end], layouts[ends["back_to"] + start]
        return network.path(int(graph.routes[graph.rows[row] + column]))

    def shared_axes(lane: int) -> set[int]:
        if lane < 1 or not levels[lane - 1][1]:
            return set()
        before = sum(count for count, _ in levels[: lane - 1])
        inner = before if lane == len(levels) else before + levels[lane - 1][0]
        return set(range(inner, len(mesh)))

    class Stage:
        def __init__(self, slot: int, number: int, duration: int, sign: int) -> None:
            self.slot, self.number, self.duration = slot, number, duration
            lane, axes, at = network.signatures[sign]
            self.lane = lane
            unit = shared_axes(lane)
            self.axes = {axis for axis in range(len(mesh)) if axes >> axis & 1} | unit
            fixed = dict(at)
            self.devices = [
                device
                for device in devices
                if all(device[axis] in places[: 1 if axis in unit else None] for axis, places in fixed.items())
                and all(device[axis] == 0 for axis in unit if axis not in fixed)
            ]
            self.unit = unit

        def resource(self, device: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
            if self.lane < 0:
                return None
            return self.lane, tuple(0 if axis in self.unit else place for axis, place in enumerate(device))

    slots: dict[int, list[Stage]] = {}

    def put(slot: int, path: tuple[tuple[int, int], ...]) -> None:
        slots[slot] = [Stage(slot, number, time, sign) for number, (time, sign) in enumerate(path)]

    for number, op in enumerate(operators):
        place = op["choice_first"] + assignment[number]
        put(int(op["forward_slot"]), network.path(int(graph.forward[place])))
        if op["has_backward"]:
            put(int(op["backward_slot"]), network.path(int(graph.backward[place])))
    for number in range(len(edges)):
        put(int(edges["way_slot"][number]), route(number, False))
        put(int(edges["back_slot"][number]), route(number, True))
    before: dict[tuple[int, int], list[Stage]] = {}

    def wait(slot: int, *others: int) -> None:
        if slots.get(slot):
            before.setdefault((slot, 0), [])
            for other in others:
                if slots.get(other):
                    before[slot, 0].append(slots[other][-1])

    for edge in edges:
        producer, consumer = operators[edge["producer"]], operators[edge["consumer"]]
        forward, way = int(producer["forward_slot"]), int(edge["way_slot"])
        wait(way, forward)
        wait(int(consumer["forward_slot"]), way if slots[way] else forward)
        if edge["returns"]:
            backward, way = int(consumer["backward_slot"]), int(edge["back_slot"])
            wait(way, backward)
            wait(int(producer["backward_slot"]), way if slots[way] else backward)
    for op in operators:
        wait(int(op["backward_slot"]), int(op["forward_slot"]))
    for stages in slots.values():
        for one, two in itertools.pairwise(stages):
            before[two.slot, two.number] = [one]
    tasks = {
        (stage.slot, stage.number, device): stage
        for some in slots.values()
        for stage in some
        for device in stage.devices
    }
    needs: dict[tuple[int, int, tuple[int, ...]], set[tuple[int, int, tuple[int, ...]]]] = {}
    for (slot, number, device), stage in tasks.items():
        needs[slot, number, device] = {
            (other.slot, other.number, far)
            for other in before.get((slot, number), [])
            for far in other.devices
            if all(far[axis] == device[axis] for axis in range(len(mesh)) if axis not in stage.axes | other.axes)
        }
    return {task: PlainTask(stage.resource(task[2]), stage.duration, needs[task]) for task, stage in tasks.items()}


def plain_simulation(network: Network, assignment: Sequence[int]) -> list[tuple[Any, ...]]:
    """Algorithm 1 over that graph: (identity, resource, ready, start, end) in ticks."""
    tasks = plain_tasks(network, assignment)
    devices = list(np.ndindex(*network.mesh))
    followers: dict[Name, list[Name]] = {}
    for task, (_, _, some) in tasks.items():
        for other in some:
            followers.setdefault(other, []).append(task)
    left = {task: len(some) for task, (_, _, some) in tasks.items()}
    ready = dict.fromkeys(tasks, 0)
    queue = [(0, task) for task, count in left.items() if not count]
    heapq.heapify(queue)
    free: dict[object, int] = {}
    result: list[tuple[Any, ...]] = []
    while queue:
        at, task = heapq.heappop(queue)
        resource, duration, _ = tasks[task]
        start = at if resource is None else max(at, free.get(resource, 0))
        finish = start + duration
        if resource is not None:
            free[resource] = finish
            number = devices.index(resource[1])
            result.append(((task[0], task[1], devices.index(task[2])), (resource[0], number), at, start, finish))
        for after in followers.get(task, []):
            ready[after] = max(ready[after], finish)
            left[after] -= 1
            if not left[after]:
                heapq.heappush(queue, (ready[after], after))
    return result
