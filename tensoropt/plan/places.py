"""Places: the parts of a step that different devices compute, and the order in which micro-batches go through them.

Operators at one place, on the same devices, form *parts*: within a part nothing comes back from another place, so that
a part is computed at once, and its backward pass, too. Tensors go from part to part, gradients back. All devices know
all parts in one order, of which each has the parts that it computes; so messages between them are in one order as well,
and no two devices wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import is_counted
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.in_time import InTime

if TYPE_CHECKING:
    from tensoropt.plan.plan import Plan

__all__ = [
    "At",
    "Load",
    "Part",
    "Places",
    "Schedule",
    "Task",
    "is_everywhere",
    "load_of",
    "parted",
    "places_of",
    "schedule",
    "share_of_pass",
    "why_not_apart",
]

At = tuple[tuple[int, int], ...]
"""A place: mesh axes, and the coordinate of its devices along each."""


@dataclass(frozen=True, eq=False)
class Part:
    """Operators at one place that are computed together; equal to no other.

    Attributes:
        number: among all parts of a step; tensors go from lower to higher ones.
        level: how many times a tensor has changed its place on the longest way to it.
        at: the place.
        operators: in the order of the graph.
    """

    number: int
    level: int
    at: At
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Task:
    """A part of one micro-batch, forward or backward; or, with a source, the messages that it gets from another part.

    Attributes:
        part: that computes, or gets messages.
        time: the micro-batch, from 0.
        backward: whether gradients are computed, or sent.
        source: the part that sends; None of what is computed.
    """

    part: Part
    time: int
    backward: bool
    source: Part | None = None


@dataclass(frozen=True, eq=False)
class Places:
    """Where the operators of a plan are computed.

    Attributes:
        graph: the logical graph.
        at: of each operator its place: axes and coordinates; all devices compute what has none.
        part: of each operator.
    """

    graph: Graph
    at: Mapping[str, At]
    part: Mapping[str, Part]
    _moving: frozenset[Edge] = field(repr=False)

    def apart(self, edge: Edge) -> bool:
        """Tells whether an edge brings its tensor from other devices, which must be there for that."""
        return self.at[edge.tensor.op] != self.at[edge.consumer] or edge in self._moving

    def crosses(self, edge: Edge) -> bool:
        """Tells whether an edge leads from one part to another."""
        return self.part[edge.tensor.op].number != self.part[edge.consumer].number or edge in self._moving

    def parts(self, names: Sequence[str]) -> list[Part]:
        """The parts of some operators, in their order."""
        found = {self.part[name].number: self.part[name] for name in names}
        return [found[number] for number in sorted(found)]

    def ways(self, losses: Sequence[str], sources: Sequence[str], stopped: Sequence[str] = ()) -> frozenset[Edge]:
        """The edges over which gradients flow from losses to sources.

        Args:
            losses: operators that are differentiated.
            sources: operators by whose outputs.
            stopped: tensors through which none flows.
        """
        graph, cut = self.graph, set(stopped)
        behind, ahead = set(losses), set(sources)
        edges = [edge for op in graph.operators for edge in _edges_into(op) if edge in graph.differentiable]
        edges = [edge for edge in edges if str(edge.tensor) not in cut]
        for edge in reversed(edges):
            if edge.consumer in behind:
                behind.add(edge.tensor.op)
        for edge in edges:
            if edge.tensor.op in ahead:
                ahead.add(edge.consumer)
        return frozenset(edge for edge in edges if edge.consumer in behind and edge.tensor.op in ahead)


def is_everywhere(graph: Graph, op: Operator) -> bool:
    """Tells whether all devices are to compute an operator: what it gives cannot be sent to those that do not.

    Outputs beyond the first that nothing reads are TensorFlow's own gradient's. Counted draws move a state that is the
    same on all devices.
    """
    if is_counted(op):
        return True
    given = [spec for index, spec in enumerate(op.outputs) if not index or graph.consumers(TensorId(op.name, index))]
    return not all(spec.is_movable for spec in given)


def places_of(graph: Graph, plan: Plan, steps: InTime | None = None) -> Places | None:
    """Where the operators of a plan are computed; None if all devices compute all of them.

    Args:
        graph: the logical graph.
        plan: for it.
        steps: how a step is split in time, if it is; what is made once is in parts of its own.
    """
    at = {op.name: plan.configuration(op.name).at for op in graph.operators}
    if not any(at.values()):
        return None
    moving = frozenset(
        edge
        for edge, entry in plan.edges.items()
        if any(step.kind.leaves or step.kind.arrives for step in (*entry.forward, *entry.backward))
    )
    return parted(graph, at, moving, steps)


def parted(graph: Graph, at: Mapping[str, At], moving: frozenset[Edge], steps: InTime | None) -> Places:
    """The parts of operators whose places are known.

    Args:
        graph: the logical graph.
        at: the place of each operator.
        moving: edges that bring their tensors from other devices although both ends are at one place.
        steps: how a step is split in time, if it is.
    """
    phase = {op.name: 0 if steps is None or not steps.is_each(op.name) else 1 for op in graph.operators}
    level: dict[str, int] = {}
    members: dict[tuple[int, int, At], list[Operator]] = {}
    for op in graph.operators:
        before = [edge for edge in _edges_into(op) if phase[edge.tensor.op] == phase[op.name]]
        changes = (level[e.tensor.op] + (at[e.tensor.op] != at[op.name] or e in moving) for e in before)
        level[op.name] = max(changes, default=0)
        members.setdefault((phase[op.name], level[op.name], at[op.name]), []).append(op)
    part: dict[str, Part] = {}
    for number, (key, operators) in enumerate(sorted(members.items(), key=lambda item: item[0])):
        made = Part(number, key[1], key[2], tuple(operators))
        part |= dict.fromkeys((op.name for op in operators), made)
    return Places(graph, at, part, moving)


def why_not_apart(graph: Graph, plan: Plan, places: Places, rows: Collection[Edge]) -> str | None:
    """The reason why operators cannot be at the places that a plan gives them, as a sentence; None if they can."""
    if graph.is_differentiated_twice:
        return "The graph has a gradient of a gradient, which is one of operators that all devices compute."
    for edge in graph.edges():
        if not places.apart(edge):
            continue
        spec = graph.spec(edge.tensor)
        if edge in rows:
            return f"The rows of a gradient come back on edge {edge}, from another place than the table's."
        if not spec.is_movable and (places.at[edge.tensor.op] or edge in graph.differentiable):
            return f"Edge {edge} brings {spec} to another place, whose bytes are known in a run only."
        if plan.edge(edge).keep != "both":
            return f"Edge {edge} leads to another place, which cannot have what it brings made again."
        if plan.edge(edge).back_each:
            return f"Edge {edge} leads to another place, to which gradients cannot go back in each micro-batch."
    return None


@dataclass(frozen=True)
class Load:
    """What parts have to do in a step.

    Attributes:
        seconds: of each part, by number, for all micro-batches, forward and backward.
        moved: seconds of the messages from one part to another, of one micro-batch in one direction.
        returns: the pairs of parts between which gradients go back.
        learnt: the parts that run backward.
    """

    seconds: dict[int, float]
    moved: dict[tuple[int, int], float]
    returns: set[tuple[int, int]]
    learnt: set[int]


def load_of(
    places: Places,
    each: Sequence[str],
    times: int,
    op_seconds: Callable[[str], float],
    edge_seconds: Callable[[Edge], float],
    *,
    learns: bool = True,
) -> Load:
    """What parts have to do, by what operators and edges take for all micro-batches.

    Args:
        places: of the operators.
        each: the operators that run for each micro-batch.
        times: how many micro-batches there are.
        op_seconds: of an operator, by name.
        edge_seconds: of an edge.
        learns: whether parts run backward, too.
    """
    inside, differentiable = set(each), places.graph.differentiable
    load = Load({}, {}, set(), set())
    for part in places.parts(each):
        own = [op for op in part.operators if op.name in inside]
        load.seconds[part.number] = max(1e-9, sum(op_seconds(op.name) for op in own))
        for edge in (edge for op in own for edge in _edges_into(op)):
            is_back = learns and edge in differentiable
            if is_back:
                load.learnt.add(part.number)
            if edge.tensor.op not in inside:
                continue
            if not places.crosses(edge):
                load.seconds[part.number] += edge_seconds(edge)
                continue
            pair = places.part[edge.tensor.op].number, part.number
            share = edge_seconds(edge) / times / (2 if edge in differentiable else 1)
            load.moved[pair] = load.moved.get(pair, 0.0) + share
            if is_back:
                load.returns.add(pair)
    return load


def share_of_pass(is_learnt: bool, backward: bool) -> float:
    """The part of what a part takes that is its forward, or its backward pass, which takes twice as long."""
    return (2 if backward else 1) / 3 if is_learnt else float(not backward)


@dataclass(frozen=True)
class Schedule:
    """The tasks of all micro-batches in one order.

    Attributes:
        tasks: in the order of the simulated times of their starts.
        seconds: when the last one ends.
        flying: of each part, by number, how many micro-batches' activations it holds at most.
    """

    tasks: tuple[Task, ...]
    seconds: float
    flying: Mapping[int, int]


def schedule(places: Places, plan: Plan, each: Sequence[str], times: int, *, learns: bool = True) -> Schedule:
    """The parts of all micro-batches, and the messages between them, in one order, forward and backward.

    A part runs backward as soon as it can, and forward otherwise, for no more micro-batches at once than there are
    levels from it to the last one: of a chain of stages this is one forward, one backward (PipeDream-Flush, 1F1B).
    Messages go as soon as the devices of both ends have nothing else to do, which are taken until they are there.

    Args:
        places: of the operators.
        plan: whose predicted times these are.
        each: the operators that run for each micro-batch.
        times: how many micro-batches there are.
        learns: whether parts run backward, too.
    """
    parts = places.parts(each)
    deepest = max((part.level for part in parts), default=0)
    flying = {part.number: min(times, deepest - part.level + 1) for part in parts}
    devices = {part.number: plan.mesh.devices_at(part.at) for part in parts}
    load = load_of(
        places,
        each,
        times,
        lambda name: plan.operators[name].time_s,
        lambda edge: plan.edge(edge).time_s,
        learns=learns,
    )
    numbered = {part.number: part for part in parts}
    # What each task comes after; a message comes after what is sent.
    lanes: list[tuple[Part, bool, Part | None]] = [(part, False, None) for part in parts]
    lanes += [(part, True, None) for part in parts if part.number in load.learnt]
    lanes += [(numbered[target], False, numbered[source]) for source, target in sorted(load.moved)]
    lanes += [(numbered[source], True, numbered[target]) for source, target in sorted(load.returns)]
    after: dict[tuple[Part, bool, Part | None], list[tuple[Part, bool, Part | None]]] = {}
    for part, backward, origin in lanes:
        if origin is not None:
            after[part, backward, origin] = [(origin, backward, None)]
        else:
            own = [lane for lane in lanes if lane[0] is part and lane[1] == backward and lane[2] is not None]
            after[part, backward, origin] = [*own, *([(part, False, None)] if backward else [])]
    taken = {
        lane: sorted({*devices[lane[0].number], *(devices[lane[2].number] if lane[2] is not None else ())})
        for lane in lanes
    }
    free = [0.0] * plan.mesh.size
    ended: dict[tuple[Part, bool, Part | None], list[float]] = {lane: [] for lane in lanes}
    result: list[Task] = []
    while True:
        best = None
        for number, lane in enumerate(lanes):
            part, backward, origin = lane
            time = len(ended[lane])
            if time == times or any(len(ended[other]) <= time for other in after[lane]):
                continue
            if origin is None and not backward and part.number in load.learnt:
                if time - len(ended[part, True, None]) >= flying[part.number]:
                    continue
            begin = max([free[device] for device in taken[lane]] + [ended[other][time] for other in after[lane]])
            rank = begin, origin is None, -part.level, not backward, number
            best = min(best, rank) if best is not None else rank
        if best is None:
            return Schedule(tuple(result), max(free), flying)
        begin, lane = best[0], lanes[best[-1]]
        part, backward, origin = lane
        if origin is not None:
            pair = (part.number, origin.number) if backward else (origin.number, part.number)
            end = begin + load.moved[pair]
        else:
            whole = load.seconds[part.number] / times
            end = begin + whole * share_of_pass(part.number in load.learnt, backward)
        for device in taken[lane]:
            free[device] = end
        result.append(Task(part, len(ended[lane]), backward, origin))
        ended[lane].append(end)


def _edges_into(op: Operator) -> list[Edge]:
    """The edges over which a part gets what an operator reads; a gradient is of other operators' backward passes."""
    return [] if traits(op).is_gradient else [Edge(tensor, op.name, place) for place, tensor in enumerate(op.inputs)]
