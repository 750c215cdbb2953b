"""The slots of all operators and edges, in an order in which tasks only wait for tasks of earlier slots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.simulate.simulation_state import BACKWARD, EDGE, FORWARD, OPERATOR, SLOT, WAY, WAY_BACK, Graph, Records
from tensoropt.space.work import Ints, Route, Tables, Way

__all__ = ["lay_out"]


def lay_out(tables: Tables, table_first: Ints, add_path: Callable[[Route], int]) -> Graph:
    """The graph of all strategies, without any routes.

    Args:
        tables: of operators and edges.
        table_first: where the rows of each table of routes begin.
        add_path: gives the number of a path.

    Raises:
        ProblemError: edges do not go from earlier to later operators, a gradient returns where there is no backward
            pass, or a configuration has no stages.
    """
    operators, edges = np.zeros(len(tables.forward), OPERATOR), np.zeros(len(tables.edges), EDGE)
    ends = np.array(tables.edges, np.int64).reshape(-1, 2)
    edges["producer"], edges["consumer"], edges["returns"] = ends[:, 0], ends[:, 1], tables.returns
    operators["has_backward"] = [back is not None for back in tables.backward]
    _check_edges(operators, tables)
    incoming, outgoing = (_lists(operators, ends[:, end], name) for end, name in ((1, "in"), (0, "out")))
    kinds: list[tuple[int, int]] = []
    entering = [incoming[op["in_first"] : op["in_end"]].tolist() for op in operators]
    for number in range(len(operators)):
        for edge in entering[number]:
            edges["way_slot"][edge] = len(kinds)
            kinds.append((WAY, edge))
        operators["forward_slot"][number] = len(kinds)
        kinds.append((FORWARD, number))
    for number in reversed(range(len(operators))):
        operators["backward_slot"][number] = len(kinds)
        kinds.append((BACKWARD, number))
        for edge in entering[number]:
            edges["back_slot"][edge] = len(kinds)
            kinds.append((WAY_BACK, edge))
    slots = np.zeros(len(kinds), SLOT)
    slots["kind"], slots["subject"] = np.array(kinds, np.int64).reshape(-1, 2).T
    forward, backward = _paths(operators, tables, add_path)
    layouts = _layouts(edges, tables, table_first)
    after, before = _dependencies(operators, edges, slots)
    nothing = np.zeros(0, np.int64)
    return Graph(
        operators,
        edges,
        slots,
        incoming,
        outgoing,
        forward,
        backward,
        layouts,
        after,
        before,
        nothing,
        nothing,
        nothing,
    )


def _check_edges(operators: Records, tables: Tables) -> None:
    for number, (start, end) in enumerate(tables.edges):
        if not 0 <= start < end < len(operators):
            raise ProblemError(
                f"Network: edge {number} goes from operator {start} to {end}; it must go from an earlier to a "
                f"later one of {len(operators)}. Number operators in topological order."
            )
        if tables.returns[number] and not (operators["has_backward"][start] and operators["has_backward"][end]):
            raise ProblemError(
                f"Network: a gradient returns along edge {number}, from operator {end} to {start}, and one of them "
                "has no backward pass. Give it one, if only of no seconds."
            )


def _lists(operators: Records, ends: Ints, name: str) -> Ints:
    """Edges by the operator at one of their ends, ascending, and where those of each operator lie."""
    last = np.cumsum(np.bincount(ends, minlength=len(operators)))
    operators[f"{name}_end"] = last
    operators[f"{name}_first"][1:] = last[:-1]
    return np.argsort(ends, kind="stable").astype(np.int64)


def _paths(operators: Records, tables: Tables, add_path: Callable[[Route], int]) -> tuple[Ints, Ints]:
    """The forward and backward path of each configuration of each operator."""
    forward: list[int] = []
    backward: list[int] = []
    known: dict[Route, int] = {}
    for number, (paths, back) in enumerate(zip(tables.forward, tables.backward, strict=True)):
        operators["choice_first"][number] = len(forward)
        for index, path in enumerate(paths):
            pair = path, () if back is None else back[index]
            if not path or (back is not None and not pair[1]):
                raise ProblemError(
                    f"Network: configuration {index} of operator {number} has no stages. Give it one, of no seconds."
                )
            for side, found in zip(pair, (forward, backward), strict=True):
                if side not in known:
                    known[side] = add_path(side)
                found.append(known[side])
    return np.array(forward, np.int64), np.array(backward, np.int64)


def _layouts(edges: Records, tables: Tables, table_first: Ints) -> Ints:
    """The layouts of configurations at ends of edges; arrays that several ways have are there once."""
    layouts: list[Ints] = [np.zeros(0, np.int64)]
    placed: dict[int, int] = {}
    total = 0

    def place(indices: Ints) -> int:
        nonlocal total
        if id(indices) not in placed:
            placed[id(indices)] = total
            layouts.append(np.asarray(indices, np.int64))
            total += len(indices)
        return placed[id(indices)]

    def columns(way: Way | None) -> tuple[int, int, int]:
        return (-1, 0, 0) if way is None else (int(table_first[way.table]), place(way.starts), place(way.ends))

    for side, ways in (("way", tables.ways), ("back", tables.ways_back)):
        found = np.array([columns(way) for way in ways], np.int64).reshape(-1, 3).T
        edges[f"{side}_table"], edges[f"{side}_from"], edges[f"{side}_to"] = found
    return np.concatenate(layouts)


def _dependencies(operators: Records, edges: Records, slots: Records) -> tuple[Ints, Ints]:
    """Returns the dependencies if no way is empty: an entry per operator with a backward pass, and per way.

    Returns:
        the slots after each slot, and those before; see :class:`tensoropt.simulate.simulation_state.Graph`.
    """
    after: list[list[int]] = [[] for _ in slots]
    before: list[list[int]] = [[] for _ in slots]
    slots["source"] = slots["target"] = -1
    for op in operators[operators["has_backward"] > 0]:
        after[op["forward_slot"]].append(int(op["backward_slot"]))
        before[op["backward_slot"]].append(int(op["forward_slot"]))
    for edge in edges:
        producer, consumer = operators[edge["producer"]], operators[edge["consumer"]]
        legs = [(edge["way_slot"], producer["forward_slot"], consumer["forward_slot"])]
        if edge["returns"]:
            legs.append((edge["back_slot"], consumer["backward_slot"], producer["backward_slot"]))
        for way, source, target in legs:
            slots["source"][way], slots["target"][way] = source, target
            slots["source_entry"][way], slots["target_entry"][way] = len(after[source]), len(before[target])
            after[source].append(int(way))
            before[target].append(int(way))
    for way in np.flatnonzero(slots["source"] >= 0).tolist():
        after[way].append(int(slots["target"][way]))
        before[way].append(int(slots["source"][way]))
    for lists, name in ((after, "after"), (before, "before")):
        last = np.cumsum([0, *map(len, lists)])
        slots[f"{name}_first"], slots[f"{name}_end"] = last[:-1], last[1:]
    slots["source_entry"] += slots["after_first"][slots["source"]]
    slots["target_entry"] += slots["before_first"][slots["target"]]
    # Slots that wait for a single other one; see tensoropt.simulate.dependencies.
    marked = np.array([~slot if len(some) == 1 else slot for slot, some in enumerate(before)], np.int64)
    slots["target"] = np.where(slots["source"] >= 0, marked[slots["target"]], -1)
    flat = [np.array([slot for some in lists for slot in some], np.int64) for lists in (after, before)]
    return marked[flat[0]], flat[1]
