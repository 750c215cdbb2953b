"""Durations of a strategy's tasks: the additive cost taken apart into work of devices and of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import Topology
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import ReshardTable, StepKind, is_placed
from tensoropt.layout.axis_state import AT
from tensoropt.layout.shortest import shortest_rows
from tensoropt.space.choices import Choices, States
from tensoropt.space.space import SearchSpace
from tensoropt.space.sparse_gradient_seconds import rows_seconds
from tensoropt.space.work import TICKS_PER_S, Ints, Route, Signature, Tables, Way, Work

__all__ = ["Breakdown", "levels_of"]

_KINDS = tuple(StepKind)
_LOCAL = np.array([kind.is_local for kind in _KINDS])
_DROP, _SEND = _KINDS.index(StepKind.DROP), _KINDS.index(StepKind.SEND)

Row = tuple[Ints, Ints, Ints, list[Signature]]


class Breakdown:
    """The stages of every operator and every edge of a search space.

    An operator computes on the devices that its configuration has it on, forward and backward; what it communicates
    itself (softmax, batch statistics, rims of images) follows as a stage of its own. A variable's backward work is its
    update, which the ways of its gradients lead to: these are the synchronisation. The seconds of all stages of a
    strategy add up to the time that the space's tables give it, where all copies are kept.

    A step of a reshard that exchanges data keeps its devices busy: a rank runs its operators one after another, and is
    inside a collective for as long as that lasts. With ``overlap`` it is work of links instead, of the outermost level
    that its group spans, which FlexFlow's simulator has as devices of their own that work while devices compute. Times
    of steps hold for all groups at once, and so does the step's task on a link that several groups share.

    Routes of reshards are found from one layout to all others, when a search first needs one of them.
    """

    def __init__(self, space: SearchSpace, *, overlap: bool = False) -> None:
        """Lists what there is; takes no table of pairs of configurations."""
        self.space = space
        self._overlap = overlap
        self.extents = space.mesh.shape
        self._levels = [space.cost.topology.axis_level(axis) for axis in space.mesh.axes]
        self._index = {op.name: number for number, op in enumerate(space.operators)}
        self._works: dict[int, tuple[list[Route], list[Route]]] = {}
        self._tables: list[_Paths | _Rows] = []
        self._table_numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[object, ...], Ints] = {}

    def tables(self) -> Tables:
        """The stages of operators, and which routes edges take."""
        space = self.space
        forward, backward = [], []
        for op in space.operators:
            ahead, back = self.operator(op.name)
            forward.append(ahead)
            backward.append(back if self._goes_back(op) else None)
        found = [self._ways(edge) for edge in space.edges]
        compact = [table.compact() for table in self._tables]
        ways, back_ways = [], []
        shared: dict[tuple[int, int], Ints] = {}

        def local(table: int, numbers: Ints) -> Ints:
            # Edges of equal ends share their arrays.
            return shared.setdefault((table, id(numbers)), compact[table][numbers])

        def place(way: Way) -> Way:
            return Way(way.table, local(way.table, way.starts), local(way.table, way.ends))

        for ahead_way, back_way in found:
            ways.append(place(ahead_way))
            back_ways.append(None if back_way is None else place(back_way))
        return Tables(
            forward,
            backward,
            [(self._index[edge.tensor.op], self._index[edge.consumer]) for edge in space.edges],
            ways,
            back_ways,
            [edge in space.graph.differentiable for edge in space.edges],
            [len(table) for table in self._tables],
        )

    def row(self, table: int, start: int) -> Row:
        """See :class:`tensoropt.space.work.Routes`."""
        return self._tables[table].row(start)

    def operator(self, name: str) -> tuple[list[Route], list[Route]]:
        """An operator's stages in each of its configurations, forward and backward."""
        space = self.space
        op = space.graph[name]
        total, _ = space.node_tables(name)  # the same array for equal operators
        if id(total) not in self._works:
            self._works[id(total)] = self._operator(op, total)
        ahead, back = self._works[id(total)]
        constant_s = space.cost.iteration_seconds
        if op is space.operators[0] and constant_s:
            # What every step takes, as work of all devices at its beginning.
            every = Work(constant_s, Signature(0))
            ahead = [(every, *(work for work in stages if work.signature.lane >= 0)) for stages in ahead]
        return ahead, back

    def lane(self, axes: int) -> int:
        """Returns the lane that an exchange over mesh axes occupies: devices, or its outermost level of links."""
        if not self._overlap:
            return 0
        return 1 + min((level for axis, level in enumerate(self._levels) if axes >> axis & 1), default=0)

    def _goes_back(self, op: Operator) -> bool:
        """Tells whether an operator takes part in the backward pass: it has work to do or gradients to pass on."""
        graph = self.space.graph
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        for index in range(len(op.outputs)):
            edges += graph.consumers(TensorId(op.name, index))
        return any(edge in graph.differentiable for edge in edges)

    def _operator(self, op: Operator, own: NDArray[np.float64]) -> tuple[list[Route], list[Route]]:
        space = self.space
        choices = space.choices_of(op.name)
        places = [Signature(0, 0, _places(configuration.at)) for configuration in choices.configurations]
        nowhere = [(Work(0.0, Signature(-1, 0, place.at)),) for place in places]
        ahead: list[Route]
        back: list[Route]
        if traits(op).is_variable or traits(op).is_fanout:
            ahead = [*nowhere]
            back = [
                (Work(float(seconds), place),) if seconds > 0 else nothing
                for seconds, place, nothing in zip(own, places, nowhere, strict=True)
            ]
            return ahead, back
        gradients = sum(Edge(tensor, op.name, i) in space.graph.differentiable for i, tensor in enumerate(op.inputs))
        first, group = choices.alike()
        parts = np.zeros((len(first), 3))  # forward, of which communication; communication in all
        if own.any():
            for number, call in enumerate(space.calls(op, first, gradients)):
                parts[number, 2] = space.cost.internal_seconds(call)
                if gradients:
                    forward = replace(call, gradients=0)
                    parts[number, 0] = space.cost.op_seconds(forward)
                    parts[number, 1] = space.cost.internal_seconds(forward)
        axes = _internal_axes(choices)
        ahead, back = [], []
        for index, seconds in enumerate(own.tolist()):
            forward_s, inside_s, all_inside_s = parts[group[index]].tolist()
            if not gradients:
                forward_s, inside_s = seconds, all_inside_s
            # What is measured apart need not fit exactly; the sum is what counts.
            forward_s = min(forward_s, seconds)
            inside_s = min(inside_s, forward_s)
            backward_s = seconds - forward_s
            back_inside_s = min(max(0.0, all_inside_s - inside_s), backward_s)
            link = Signature(self.lane(int(axes[index])), int(axes[index]), places[index].at)
            ahead.append(self._stages(forward_s, inside_s, places[index], link) or nowhere[index])
            back.append(self._stages(backward_s, back_inside_s, places[index], link) or nowhere[index])
        return ahead, back

    @staticmethod
    def _stages(seconds: float, inside_s: float, place: Signature, link: Signature) -> Route:
        works = (Work(seconds - inside_s, place), Work(inside_s, link))
        return tuple(work for work in works if work.seconds > 0)

    def _ways(self, edge: Edge) -> tuple[Way, Way | None]:
        space = self.space
        table = space.reshard_table(edge)
        given, wanted = space.choices_of(edge.tensor.op), space.choices_of(edge.consumer)
        produced, read = given.outputs[edge.tensor.index], wanted.inputs[edge.position]
        pinned = edge.position in space.rules[edge.consumer].pinned
        number = self._table(("pinned" if pinned else "paths", *table.key), lambda: _Paths(self, table, pinned))
        way = Way(number, self._numbers(table, produced.value), self._numbers(table, read.value))
        self._tables[number].use(way.starts, way.ends)
        if edge not in space.graph.differentiable:
            return way, None
        if (elements := space.row_elements(edge)) is not None:
            spec = space.graph.spec(edge.tensor)
            made, need = read.gradient, produced.gradient
            key = ("rows", spec, elements, made.tobytes(), need.tobytes())
            number = self._table(key, lambda: _Rows(self, spec, elements, made, need))
            return way, Way(number, np.arange(len(made)), np.arange(len(need)))
        number = self._table(("paths", *table.key), lambda: _Paths(self, table, False))
        back = Way(number, self._numbers(table, read.gradient), self._numbers(table, produced.gradient))
        self._tables[number].use(back.starts, back.ends)
        return way, back

    def _table(self, key: tuple[object, ...], make: Callable[[], _Paths | _Rows]) -> int:
        if key not in self._table_numbers:
            self._table_numbers[key] = len(self._tables)
            self._tables.append(make())
        return self._table_numbers[key]

    def _numbers(self, table: ReshardTable, states: States) -> Ints:
        """The layouts of a table by number; equal ones are one array."""
        key = (*table.key, table.dims, states.shape, states.tobytes())
        if key not in self._known:
            self._known[key] = table.numbers(states).astype(np.int64)
        return self._known[key]


class _Paths:
    """Routes along the cheapest steps of a reshard."""

    def __init__(self, breakdown: Breakdown, table: ReshardTable, pinned: bool) -> None:
        """Takes a table that others may share.

        Args:
            breakdown: for the links of steps.
            table: of reshards.
            pinned: whether a tensor must stay as it is.
        """
        self._breakdown = breakdown
        self._table = table
        self._pinned = pinned
        self._used: set[int] = set()
        self._layouts: Ints = np.zeros(0, np.int64)
        self._signatures: dict[int, Signature] = {}

    def __len__(self) -> int:
        return len(self._layouts)

    def use(self, *numbers: Ints) -> None:
        """Notes the layouts that operators have."""
        for some in numbers:
            self._used.update(some.tolist())

    def compact(self) -> Ints:
        """The place of each layout among those that are used."""
        self._layouts = np.array(sorted(self._used), np.int64)
        result = np.full(len(self._table.solved.graph.states), -1, np.int64)
        result[self._layouts] = np.arange(len(self._layouts))
        return result

    def row(self, start: int) -> Row:
        """See :class:`tensoropt.space.work.Routes`."""
        here = int(self._layouts[start])
        if self._pinned:
            nothing = np.zeros(0, np.int64)
            return np.where(np.arange(len(self)) == start, 0, -1), nothing, nothing, []
        links = self._links(here)
        lengths = (links >= 0).sum(axis=1)
        flat = links[links >= 0]
        signs, signatures = self._signs(flat)
        seconds = self._table.solved.weight[flat]
        used = np.array([signature.lane >= 0 for signature in signatures], bool)
        return lengths, np.where(used[signs], np.rint(seconds * TICKS_PER_S), 0).astype(np.int64), signs, signatures

    def _links(self, here: int) -> Ints:
        """The links of the cheapest path to each layout that is used, ``(layouts, steps)``, -1 before the first."""
        graph, weight = self._table.solved.graph, self._table.solved.weight
        row = shortest_rows(len(graph.states), graph.source, graph.target, weight, np.array([here]))[0]
        best = np.flatnonzero(row[graph.source] + weight == row[graph.target])[::-1]
        last = np.full(len(row), -1, np.int64)
        last[graph.target[best]] = best  # the first of equal ones stays, as in the table's own paths
        at = self._layouts.copy()
        columns = []
        while np.any(at != here):
            links = np.where(at == here, -1, last[at])
            columns.append(links)
            at = np.where(links < 0, at, graph.source[links])
        return np.stack(columns[::-1], axis=1) if columns else np.zeros((len(at), 0), np.int64)

    def _signs(self, links: Ints) -> tuple[Ints, list[Signature]]:
        """Returns the signatures of links' steps: a place in a list for each step, and the list."""
        graph = self._table.solved.graph
        kind, moved = graph.kind[links].astype(np.int64), graph.moved[links]
        code = kind + len(_KINDS) * moved
        before, after = self._table.states(graph.source[links]), self._table.states(graph.target[links])
        if is_placed(before).any() or is_placed(after).any():
            # Mixed radix over the places before and after along each axis; 0 is everywhere.
            unit = len(_KINDS) << before.shape[1]
            for states in (before, after):
                for axis, extent in enumerate(self._breakdown.extents):
                    code = code + unit * np.where(states[:, axis] <= AT, AT - states[:, axis].astype(np.int64) + 1, 0)
                    unit *= extent + 1
        different, first, signs = np.unique(code, return_index=True, return_inverse=True)
        for value, place in zip(different.tolist(), first.tolist(), strict=True):
            if value not in self._signatures:
                self._signatures[value] = self._signature(
                    int(kind[place]), int(moved[place]), before[place].tolist(), after[place].tolist()
                )
        return signs.reshape(-1), [self._signatures[value] for value in different.tolist()]

    def _signature(self, kind: int, moved: int, before: list[int], after: list[int]) -> Signature:
        at: list[tuple[int, tuple[int, ...]]] = []
        for axis, (here, there) in enumerate(zip(before, after, strict=True)):
            places = {AT - state for state in (here, there) if state <= AT}
            if places and (not moved >> axis & 1 or kind in (_DROP, _SEND)):
                at.append((axis, tuple(sorted(places))))
        if kind == _DROP:
            return Signature(-1, 0, tuple(at))  # memory is given back, nothing runs
        if _LOCAL[kind]:
            return Signature(0, 0, tuple(at))
        return Signature(self._breakdown.lane(moved), moved, tuple(at))


class _Rows:
    """Ways of gradients that travel as rows: gathered in one stage over the axes along which layouts differ."""

    def __init__(self, breakdown: Breakdown, spec: TensorSpec, elements: int, made: States, need: States) -> None:
        """Takes the layouts that lookups make and that the table needs; see :func:`rows_seconds`."""
        self._breakdown = breakdown
        self._made, self._need = made, need
        self._seconds = rows_seconds(breakdown.space.cost, spec, elements, made, need)

    def __len__(self) -> int:
        return max(len(self._made), len(self._need))

    def use(self, *numbers: Ints) -> None:
        """All are used."""

    def compact(self) -> Ints:
        """All stay where they are."""
        return np.arange(len(self))

    def row(self, start: int) -> Row:
        """See :class:`tensoropt.space.work.Routes`."""
        lengths = np.zeros(len(self), np.int64)
        if start >= len(self._made):
            return lengths, lengths[:0], lengths[:0], []
        seconds, made = self._seconds[start], self._made[start]
        lengths[: len(seconds)] = seconds > 0
        signatures: dict[Signature, int] = {}
        signs = []
        for index in np.flatnonzero(seconds > 0).tolist():
            need = self._need[index]
            axes = sum(1 << axis for axis in range(len(made)) if made[axis] != need[axis])
            at = tuple(
                (axis, (AT - int(state),))
                for axis, state in enumerate(made.tolist())
                if state <= AT and not axes >> axis & 1
            )
            signs.append(signatures.setdefault(Signature(self._breakdown.lane(axes), axes, at), len(signatures)))
        spent = np.rint(seconds[seconds > 0] * TICKS_PER_S).astype(np.int64)
        return lengths, spent, np.array(signs, np.int64), list(signatures)


def levels_of(topology: Topology) -> tuple[tuple[int, bool], ...]:
    """The levels of links, outermost first: how many mesh axes each has, and whether its units share a link."""
    axes = [topology.axis_level(axis) for axis in range(len(topology.factor_mesh()))]
    return tuple((axes.count(number), level.shared) for number, level in enumerate(topology.levels))


def _places(at: Sequence[tuple[int, int]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((axis, (place,)) for axis, place in at)


def _internal_axes(choices: Choices) -> Ints:
    """For each configuration the mesh axes over which the op communicates itself, as bits."""
    inside = choices.rule.communicates_over
    return np.array(
        [
            sum(1 << axis for axis, action in enumerate(configuration.actions) if action in inside)
            for configuration in choices.configurations
        ],
        np.int64,
    )
