"""The cheapest steps from any layout to any other, by shortest path (TensorOpt section 4.2, tensor re-scheduling).

Nodes are layouts, an edge joins two layouts that one step connects, and its weight is the step's time. A layout is
held as one row of *states*: what each mesh axis does to the tensor.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout.coarsening import Coarsening
from tensoropt.layout.layout import Layout, common_prefix
from tensoropt.layout.mesh import Mesh
from tensoropt.layout.shortest import shortest_rows
from tensoropt.layout.step import Step, StepKind

__all__ = ["PARTIAL", "REPLICATED", "ReshardTable", "Resharder", "StepCost", "canonical_path", "reshard_table"]

# Seconds of one step: its kind, the axes of its group (all axes for a permute), input bytes per device.
StepCost = Callable[[StepKind, tuple[int, ...], NDArray[np.float64]], NDArray[np.float64]]

States = NDArray[np.int8]

# The state of a mesh axis along which a tensor is not split; a split one has the number of the dimension.
REPLICATED, PARTIAL = -1, -2
# Up to this many mesh axes a dimension may pass through layouts whose axes are not ascending; beyond it their
# number (axes! per dimension) would outgrow what they save.
_ALL_ORDERS_UP_TO_AXES = 3
_KINDS = tuple(StepKind)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
# So many sources are solved at a time: times to all layouts are held only for them.
_ROWS_AT_ONCE = 128
# What leads back; a permute is undone by another.
_UNDONE_BY = {
    StepKind.ALL_GATHER: StepKind.SLICE,
    StepKind.SLICE: StepKind.ALL_GATHER,
    StepKind.ALL_TO_ALL: StepKind.ALL_TO_ALL,
}
_ONE_WAY = (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER, StepKind.TO_PARTIAL)
# Source, target, number of the kind, axes as bits, of each step.
_Links = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _step_kinds() -> NDArray[np.int8]:
    """The number of the kind of step that changes one state to another, -1 if there is none, by both states."""
    dims = 64
    result = np.full((dims + 2, dims + 2), -1, np.int8)
    result[:dims, :dims] = _NUMBER[StepKind.ALL_TO_ALL]
    np.fill_diagonal(result, -1)
    result[PARTIAL, :dims] = _NUMBER[StepKind.REDUCE_SCATTER]
    result[REPLICATED, :dims] = _NUMBER[StepKind.SLICE]
    result[:dims, REPLICATED] = _NUMBER[StepKind.ALL_GATHER]
    result[PARTIAL, REPLICATED] = _NUMBER[StepKind.ALL_REDUCE]
    result[REPLICATED, PARTIAL] = _NUMBER[StepKind.TO_PARTIAL]
    return result


_STEP_KINDS = _step_kinds()


@dataclass(frozen=True, slots=True, eq=False)
class _LayoutGraph:
    """Layouts of tensors of one rank, and every step between them, sorted by target, then by source.

    Attributes:
        states: ``(L, axes)``.
        places: ``(L, axes)``, the position of the axis among those that split its dimension.
        source: ``(E,)``.
        target: ``(E,)``.
        kind: ``(E,)``, the number of the step's kind.
        moved: ``(E,)``, the axes of the step as bits.
        shards: ``(L,)``, the number of pieces that the tensor is cut into.
    """

    states: States
    places: States
    source: NDArray[np.intp]
    target: NDArray[np.intp]
    kind: NDArray[np.int8]
    moved: NDArray[np.int64]
    shards: NDArray[np.float64]

    def restricted(self, kept: NDArray[np.bool_]) -> _LayoutGraph:
        """Only the layouts that are marked."""
        if kept.all():
            return self
        number = np.cumsum(kept) - 1
        links = kept[self.source] & kept[self.target]
        return _LayoutGraph(
            self.states[kept],
            self.places[kept],
            number[self.source[links]],
            number[self.target[links]],
            self.kind[links],
            self.moved[links],
            self.shards[kept],
        )

    def undone(self) -> _LayoutGraph:
        """The steps from each link's target back to its source, in the order of the links."""
        kinds = [_NUMBER[_UNDONE_BY.get(kind, StepKind.PERMUTE)] for kind in _KINDS]
        return dataclasses.replace(
            self, source=self.target, target=self.source, kind=np.array(kinds, np.int8)[self.kind]
        )


class _Solved:
    """A layout graph with the times of its steps for tensors of one size; paths are solved when they are asked for.

    Only times between *ends*, the layouts that operators give and ask for, are kept.

    Shared by all tensors of that size whose dimensions divide alike.
    """

    def __init__(
        self, mesh: Mesh, graph: _LayoutGraph, ends: NDArray[np.bool_], size_bytes: float, cost: StepCost
    ) -> None:
        self.mesh = mesh
        self.graph = graph
        self.size_bytes = size_bytes
        self.weight = _weights(mesh, graph, size_bytes, cost)
        self._cost = cost
        self.index = {key: number for number, key in enumerate(_keys(graph.states, graph.places))}
        self.ends = np.flatnonzero(ends)
        self._end = np.cumsum(ends) - 1  # the place of each layout among the ends
        self._between = np.full((len(self.ends), len(self.ends)), np.inf)
        self._known = np.zeros(len(self.ends), dtype=bool)
        self._rows: dict[int, NDArray[np.float64]] = {}

    def between(self, sources: NDArray[np.intp], targets: NDArray[np.intp]) -> NDArray[np.float64]:
        """Times from some of the ends to others, ``(sources, targets)``."""
        if not (np.isin(sources, self.ends).all() and np.isin(targets, self.ends).all()):
            raise LayoutError(
                "Reshard: times are kept between layouts that operators may have, and others were asked for. "
                "Give them to Resharder.table."
            )
        rows, columns = self._end[sources], self._end[targets]
        missing = np.unique(rows[~self._known[rows]])
        for first in range(0, len(missing), _ROWS_AT_ONCE):
            some = missing[first : first + _ROWS_AT_ONCE]
            self._between[some] = self._solve(self.ends[some])[:, self.ends]
        self._known[missing] = True
        return self._between[np.ix_(rows, columns)]

    def row(self, start: int) -> NDArray[np.float64]:
        """Times from a layout to all."""
        if start not in self._rows:
            self._rows[start] = self._solve(np.array([start]))[0]
        return self._rows[start]

    def path(self, start: int, end: int) -> list[int]:
        """The links of the cheapest path."""
        graph, row = self.graph, self.row(start)
        links = []
        while end != start:
            first, last = np.searchsorted(graph.target, [end, end + 1])
            links.append(int(first + np.argmin(row[graph.source[first:last]] + self.weight[first:last])))
            end = int(graph.source[links[-1]])
        return links[::-1]

    def _solve(self, starts: NDArray[np.intp]) -> NDArray[np.float64]:
        graph = self.graph
        return shortest_rows(len(graph.states), graph.source, graph.target, self.weight, starts)

    @functools.cached_property
    def undo(self) -> NDArray[np.float64]:
        """The time of going back along each link, ``(E,)``; +inf where a sum would be undone."""
        undone = _weights(self.mesh, self.graph.undone(), self.size_bytes, self._cost)
        undone[np.isin(self.graph.kind, [_NUMBER[kind] for kind in _ONE_WAY])] = np.inf
        return undone

    def communication(self, start: int, end: int, *, back: bool) -> float:
        """The time of the steps of a path, or of the way back, that are not local."""
        links = self.path(start, end)
        weight, graph = (self.undo, self.graph.undone()) if back else (self.weight, self.graph)
        return sum(float(weight[link]) for link in links if not _KINDS[graph.kind[link]].is_local)

    def back(self, sources: NDArray[np.intp]) -> NDArray[np.float64]:
        """Times to go the cheapest paths from ``sources`` backwards, ``(sources, L)``."""
        graph = self.graph
        result = np.zeros((len(sources), len(graph.states)))
        for number, start in enumerate(sources.tolist()):
            if number % _ROWS_AT_ONCE == 0:
                rows = self._solve(sources[number : number + _ROWS_AT_ONCE])
            row = rows[number % _ROWS_AT_ONCE]
            best = np.flatnonzero(row[graph.source] + self.weight == row[graph.target])
            leads_to, first = np.unique(graph.target[best], return_index=True)
            last = np.full(len(row), -1, dtype=np.intp)  # the last link of the path to each layout
            last[leads_to] = best[first]
            at = np.arange(len(row))
            while np.any(going := at != start):
                links = last[at[going]]
                result[number, going] += self.undo[links]
                at[going] = graph.source[links]
        return result


class ReshardTable:
    """Times and paths between layouts of tensors of one shape.

    Attributes:
        rank: of the tensors.
        dims: the dimensions that layouts split, in the order by which the shared table numbers them.
    """

    def __init__(self, rank: int, dims: tuple[int, ...], solved: _Solved) -> None:
        """A view of a shared table; :class:`Resharder` makes them."""
        self.rank = rank
        self.dims = dims
        self._solved = solved

    def numbers(self, states: States) -> NDArray[np.intp]:
        """The rows of layouts, whose dimensions are split by ascending axes.

        Args:
            states: ``(K, axes)``, for each mesh axis the dimension that it splits, or what it does instead.

        Raises:
            LayoutError: if the tensor cannot have one of them.
        """
        number = np.full(self.rank + 2, self.rank, dtype=np.int8)  # by state; the last two are partial and replicated
        number[list(self.dims)] = np.arange(len(self.dims))
        number[[PARTIAL, REPLICATED]] = PARTIAL, REPLICATED
        states = number[states]
        found = [self._solved.index.get(key, -1) for key in _keys(states, _ascending(states))]
        if -1 in found:
            raise LayoutError(self._foreign(found.index(-1)))
        return np.array(found, dtype=np.intp)

    def between(self, sources: States, targets: States) -> NDArray[np.float64]:
        """Seconds from each of some layouts to each of others, ``(sources, targets)``; see :meth:`numbers`."""
        rows, columns = self.numbers(sources), self.numbers(targets)
        return self._solved.between(rows, columns)

    def back(self, sources: States, targets: States) -> NDArray[np.float64]:
        """Seconds to go each cheapest path backwards: to make the source again from the target, ``(sources, targets)``.

        +inf where a path sums, because the summands cannot be had again.
        """
        rows, place = np.unique(self.numbers(sources), return_inverse=True)
        return self._solved.back(rows)[np.ix_(place, self.numbers(targets))]

    def communication(self, sources: States, targets: States, *, back: bool = False) -> NDArray[np.float64]:
        """The part of the time from ``sources[i]`` to ``targets[i]`` in which devices talk to one another, ``(K,)``.

        Args:
            sources: layouts.
            targets: as many.
            back: of the way back instead, see :meth:`back`.
        """
        pairs = np.stack([self.numbers(sources), self.numbers(targets)], axis=1)
        different, place = np.unique(pairs, axis=0, return_inverse=True)
        seconds = [self._solved.communication(one, other, back=back) for one, other in different.tolist()]
        return np.array(seconds)[place.reshape(-1)]

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """All layouts, in the order of :attr:`seconds`."""
        graph = self._solved.graph
        return tuple(self._layout(number) for number in range(len(graph.states)))

    @functools.cached_property
    def index(self) -> dict[Layout, int]:
        """The place of each layout."""
        return {layout: number for number, layout in enumerate(self.layouts)}

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``(L, L)``, the time of the cheapest path from row to column."""
        every = np.arange(len(self._solved.graph.states))
        return np.array([self._solved.row(start) for start in every.tolist()])

    def path(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The steps of the cheapest path; equal costs are decided by the order of layouts.

        Raises:
            LayoutError: if the tensor cannot have one of the layouts. All that it can have reach one another.
        """
        ends = []
        for layout in (source, target):
            number = self._number(layout)
            if number is None:
                raise LayoutError(f"Reshard from {source} to {target}: {self._foreign(layout)}")
            ends.append(number)
        return tuple(self._step(link) for link in self._solved.path(ends[0], ends[1]))

    def _number(self, layout: Layout) -> int | None:
        if layout.rank != self.rank:
            return None
        states = np.full((1, len(self._solved.mesh.axes)), REPLICATED, dtype=np.int8)
        places = np.zeros_like(states)
        for dim, axes in enumerate(layout.dims):
            if axes and dim not in self.dims:
                return None
            for place, axis in enumerate(axes):
                states[0, axis], places[0, axis] = self.dims.index(dim), place
        states[0, list(layout.partial)] = PARTIAL
        return self._solved.index.get(_keys(states, places)[0])

    def _layout(self, number: int) -> Layout:
        graph = self._solved.graph
        states, places = graph.states[number].tolist(), graph.places[number].tolist()
        dims: list[tuple[int, ...]] = [()] * self.rank
        for position, dim in enumerate(self.dims):
            axes = [axis for axis, state in enumerate(states) if state == position]
            dims[dim] = tuple(sorted(axes, key=lambda axis: int(places[axis])))
        return Layout(tuple(dims), tuple(axis for axis, state in enumerate(states) if state == PARTIAL))

    def _step(self, link: int) -> Step:
        graph = self._solved.graph
        kind, before, after = (
            _KINDS[graph.kind[link]],
            self.layouts[graph.source[link]],
            self.layouts[graph.target[link]],
        )
        if kind is StepKind.PERMUTE:
            return Step(kind, target=after)
        if kind in (StepKind.ALL_REDUCE, StepKind.TO_PARTIAL):
            return Step(kind, tuple(sorted({*before.partial} ^ {*after.partial})))
        grown = [dim for dim in range(self.rank) if len(after.dims[dim]) > len(before.dims[dim])]
        shrunk = [dim for dim in range(self.rank) if len(after.dims[dim]) < len(before.dims[dim])]
        if shrunk:
            axes = before.dims[shrunk[0]][len(after.dims[shrunk[0]]) :]
            return Step(kind, axes, shrunk[0], grown[0] if grown else None)
        return Step(kind, after.dims[grown[0]][len(before.dims[grown[0]]) :], grown[0])

    def _foreign(self, layout: object) -> str:
        layouts = self.layouts
        return (
            f"{layout} cannot be a layout of this tensor. Its shape and the mesh allow {len(layouts)} layouts, such as "
            f"{', '.join(map(str, layouts[:4]))}."
        )


class Resharder:
    """Makes tables, and shares what tensors have in common.

    A table has the layouts whose axes are grouped as ``coarsening`` allows, and those that it is asked for. Dimensions
    that nobody splits are left out: tensors that are alike in the others share the graph of layouts, and its
    shortest paths too if they have as many bytes.
    """

    def __init__(self, mesh: Mesh, cost: StepCost, coarsening: Coarsening) -> None:
        self.mesh = mesh
        self.coarsening = coarsening
        self._cost = cost
        self._products = sorted({1} | {mesh.extent(subset) for subset in _subsets(mesh.axes)})
        self._solved: dict[tuple[object, ...], _Solved] = {}
        self._divided: dict[tuple[object, ...], tuple[_LayoutGraph, NDArray[np.bool_]]] = {}

    def table(self, shape: Sequence[int], itemsize: int, states: States) -> ReshardTable:
        """The table of tensors of ``shape``.

        Args:
            shape: of the tensors.
            itemsize: bytes of an element.
            states: ``(K, axes)``, layouts that it has to have, as for :meth:`ReshardTable.numbers`.
        """
        return self._table(shape, itemsize, np.unique(states[states >= 0]).tolist(), states)

    def whole_table(self, shape: Sequence[int], itemsize: int) -> ReshardTable:
        """A table that may split any dimension."""
        return self._table(shape, itemsize, range(len(shape)), np.empty((0, len(self.mesh.axes)), np.int8))

    def _table(self, shape: Sequence[int], itemsize: int, used: Sequence[int], states: States) -> ReshardTable:
        divisors = {dim: tuple(p for p in self._products if shape[dim] % p == 0) for dim in used}
        # Dimensions that divide alike come in one order, so that a tensor and its transpose share a table.
        dims = tuple(sorted((dim for dim in used if len(divisors[dim]) > 1), key=lambda dim: (divisors[dim], dim)))
        divisible = tuple(divisors[dim] for dim in dims)
        size_bytes = math.prod(shape) * itemsize
        further = self._further(states, dims)
        key = (divisible, size_bytes, further)
        if key not in self._solved:
            graph, ends = self._graph(divisible, further)
            self._solved[key] = _Solved(self.mesh, graph, ends, size_bytes, self._cost)
        return ReshardTable(len(shape), dims, self._solved[key])

    def _graph(
        self, divisible: tuple[tuple[int, ...], ...], further: tuple[tuple[int, ...], ...]
    ) -> tuple[_LayoutGraph, NDArray[np.bool_]]:
        """The layouts of tensors that divide so, and which of them are ends."""
        key = (divisible, further)
        if key not in self._divided:
            rank = len(divisible)
            graph = _layout_graph(self.mesh, self.coarsening, rank, further)
            kept = np.ones(len(graph.states), dtype=bool)
            for dim, sizes in enumerate(divisible):
                kept &= np.isin(_pieces(graph.states, self.mesh, dim), sizes)
            graph = graph.restricted(kept)
            ends = {*map(bytes, _family(self.mesh, self.coarsening, rank)), *map(bytes, np.array(further, np.int8))}
            self._divided[key] = graph, np.array([bytes(row) in ends for row in graph.states])
        return self._divided[key]

    def _further(self, states: States, dims: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Layouts outside of the coarsening that are needed, with what lies between them and a replicated tensor."""
        if len(self.mesh.axes) <= self.coarsening.free_up_to_axes or not len(states):
            return ()
        number = {dim: position for position, dim in enumerate(dims)} | {PARTIAL: PARTIAL, REPLICATED: REPLICATED}
        family = set(map(tuple, _family(self.mesh, self.coarsening, len(dims)).tolist()))
        found: set[tuple[int, ...]] = set()
        for row in np.unique(states, axis=0).tolist():
            states_of = tuple(number[state] for state in row)
            if states_of in family:
                continue
            plain = tuple(REPLICATED if state == PARTIAL else state for state in states_of)
            for cut in range(len(dims) + 1):
                found.add(tuple(state if state < cut else REPLICATED for state in plain))
                found.add(tuple(state if state >= cut else REPLICATED for state in plain))
            found.add(states_of)
        return tuple(sorted(found - family))


def reshard_table(mesh: Mesh, shape: Sequence[int], itemsize: int, cost: StepCost) -> ReshardTable:
    """All cheapest reshards of tensors of ``shape`` with elements of ``itemsize`` bytes, through all layouts.

    There are (rank + 2)^axes layouts and more: see :class:`Resharder` for what searches use.
    """
    return Resharder(mesh, cost, Coarsening(free_up_to_axes=len(mesh.axes))).whole_table(shape, itemsize)


def canonical_path(source: Layout, target: Layout) -> tuple[Step, ...]:
    """A path that needs no costs: sum, gather what differs, then slice. For tensors outside the training step."""
    steps: list[Step] = []
    layout = source
    to_sum = tuple(axis for axis in source.partial if axis not in target.partial)
    if to_sum:
        steps.append(Step(StepKind.ALL_REDUCE, to_sum))
        layout = steps[-1].apply(layout)
    for dim in range(layout.rank):
        have, want = layout.dims[dim], target.dims[dim]
        common = len(common_prefix(have, want))
        if have[common:]:
            steps.append(Step(StepKind.ALL_GATHER, have[common:], dim))
            layout = steps[-1].apply(layout)
    for dim in range(layout.rank):
        missing = target.dims[dim][len(layout.dims[dim]) :]
        if missing:
            steps.append(Step(StepKind.SLICE, missing, dim))
            layout = steps[-1].apply(layout)
    to_drop = tuple(axis for axis in target.partial if axis not in layout.partial)
    if to_drop:
        steps.append(Step(StepKind.TO_PARTIAL, to_drop))
    return tuple(steps)


def _weights(mesh: Mesh, graph: _LayoutGraph, size_bytes: float, cost: StepCost) -> NDArray[np.float64]:
    """The time of every step, asked for once per kind and group."""
    bytes_in = size_bytes / graph.shards[graph.source]
    weight = np.empty(len(graph.source))
    group = graph.moved * len(_KINDS) + graph.kind
    order = np.argsort(group, kind="stable")
    for positions in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []:
        moved, kind = divmod(int(group[positions[0]]), len(_KINDS))
        axes = tuple(axis for axis in mesh.axes if moved >> axis & 1)
        weight[positions] = cost(_KINDS[kind], axes, bytes_in[positions])
    if np.any(weight <= 0) or not np.all(np.isfinite(weight)):
        raise LayoutError("Reshard: every step needs a positive, finite time; a free one would hide its copy.")
    return weight


@functools.lru_cache(maxsize=32)
def _family(mesh: Mesh, coarsening: Coarsening, rank: int, *, between: bool = False) -> States:
    """Layouts of tensors of which every dimension divides; the replicated one comes first.

    Args:
        mesh: the factor mesh.
        coarsening: of operators.
        rank: of the tensors.
        between: also those that tensors may pass through.
    """
    axes = len(mesh.axes)
    patterns = coarsening.between().patterns(axes, 0, rank + 2) if between else coarsening.patterns(axes, rank, 2)
    patterns = patterns[::-1]
    return np.where(patterns == rank, PARTIAL, np.where(patterns > rank, REPLICATED, patterns)).astype(np.int8)


@functools.lru_cache(maxsize=32)
def _layout_graph(mesh: Mesh, coarsening: Coarsening, rank: int, further: tuple[tuple[int, ...], ...]) -> _LayoutGraph:
    states = _family(mesh, coarsening, rank, between=True)
    if further:
        known = set(map(tuple, states.tolist()))
        more = [row for row in further if row not in known]
        states = np.concatenate([states, np.array(more, dtype=np.int8).reshape(len(more), len(mesh.axes))])
    places = _ascending(states)
    if len(mesh.axes) <= _ALL_ORDERS_UP_TO_AXES:
        states, places = _all_orders(states, rank)
        found = [_links(states, places)]
    else:
        found = _ascending_links(states, rank)
    found.append(_permutes(states, mesh, rank))
    source, target, kind, moved = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((source, target))
    shards = np.prod([_pieces(states, mesh, dim) for dim in range(rank)], axis=0, dtype=np.float64)
    return _LayoutGraph(
        states,
        places,
        source[order].astype(np.intp),
        target[order].astype(np.intp),
        kind[order].astype(np.int8),
        moved[order].astype(np.int64),
        np.broadcast_to(shards, (len(states),)),
    )


def _links(states: States, places: States) -> _Links:
    """The steps, but for permutes, between few layouts whose dimensions may be split in any order.

    One step changes a set of axes alike, from one state to another. What stays in place keeps its position, so that
    only the last axes of a dimension leave it, and new ones come last.
    """
    shape = (len(states), len(states))
    before, after, shift = (np.full(shape, -9, np.int8) for _ in range(3))
    moved = np.zeros(shape, np.int64)
    alike = np.ones(shape, bool)
    for axis in range(states.shape[1]):
        start, end = np.broadcast_arrays(states[:, None, axis], states[None, :, axis])
        shifted = places[None, :, axis] - places[:, None, axis]
        differs = (start != end) | (shifted != 0)
        # Axes that go from one dimension to another keep their order.
        move = np.where((start >= 0) & (end >= 0), shifted, 0)
        first = differs & (moved == 0)
        before, after, shift = np.where(first, start, before), np.where(first, end, after), np.where(first, move, shift)
        alike &= ~differs | ((before == start) & (after == end) & (shift == move))
        moved |= differs.astype(np.int64) << axis
    kind = np.where(alike, _STEP_KINDS[before, after], -1)
    source, target = np.nonzero(kind >= 0)
    return source, target, kind[source, target], moved[source, target]


def _ascending_links(states: States, rank: int) -> list[_Links]:
    """The same between many layouts whose dimensions are split by ascending axes."""
    axes = states.shape[1]
    radix = (rank + 2) ** np.arange(axes, dtype=np.int64)
    codes = (states + 2) @ radix
    order = np.argsort(codes)
    sorted_codes = codes[order]
    of_state = {state: _bits(states, state) for state in range(PARTIAL, rank)}
    found: list[_Links] = []
    for moved in range(1, 2**axes):
        lowest = moved & -moved
        weight = int(radix[[axis for axis in range(axes) if moved >> axis & 1]].sum())
        for before in range(PARTIAL, rank):
            have = of_state[before]
            able = have & moved == moved
            if before >= 0:  # only the last axes of a dimension leave it
                able &= have & ~moved < lowest
            rows = np.flatnonzero(able)
            if not len(rows):
                continue
            for after in range(PARTIAL, rank):
                kind = _STEP_KINDS[before, after]
                if kind < 0:
                    continue
                # New axes come last.
                source = rows[of_state[after][rows] < lowest] if after >= 0 else rows
                wanted = codes[source] + (after - before) * weight
                place = np.minimum(np.searchsorted(sorted_codes, wanted), len(codes) - 1)
                hit = sorted_codes[place] == wanted
                count = int(hit.sum())
                if count:
                    target = order[place[hit]]
                    found.append((source[hit], target, np.full(count, kind), np.full(count, moved)))
    return found


def _permutes(states: States, mesh: Mesh, rank: int) -> _Links:
    """The steps between layouts that cut a tensor into the same pieces."""
    pieces = np.array([_pieces(states, mesh, dim) for dim in range(rank)], dtype=np.int64).reshape(rank, len(states)).T
    able = np.flatnonzero(~(states == PARTIAL).any(axis=1) & (states >= 0).any(axis=1))
    pairs = [np.empty((0, 2), np.int64)]
    _, group = np.unique(pieces[able], axis=0, return_inverse=True)
    for number in range(int(group.max(initial=-1)) + 1):
        alike = able[group.reshape(-1) == number]
        one, other = np.meshgrid(alike, alike, indexing="ij")
        pairs.append(np.stack([one[one != other], other[one != other]], axis=1))
    joined = np.concatenate(pairs)
    kind = np.full(len(joined), _NUMBER[StepKind.PERMUTE], np.int64)
    return joined[:, 0], joined[:, 1], kind, np.full(len(joined), 2 ** len(mesh.axes) - 1, np.int64)


def _bits(states: States, state: int) -> NDArray[np.int64]:
    """The axes of each layout in a state."""
    return np.asarray((states == state) @ (1 << np.arange(states.shape[1], dtype=np.int64)))


def _pieces(states: States, mesh: Mesh, dim: int) -> NDArray[np.int64]:
    """Into how many pieces each layout cuts a dimension."""
    extents = np.array(mesh.shape, dtype=np.int64)
    return np.asarray(np.where(states == dim, extents, 1).prod(axis=1, dtype=np.int64))


def _ascending(states: States) -> States:
    """The places of axes if every dimension is split by ascending ones."""
    places = np.zeros_like(states)
    for axis in range(states.shape[1]):
        places[:, axis] = (states[:, :axis] == states[:, axis : axis + 1]).sum(axis=1)
    return np.where(states >= 0, places, 0).astype(np.int8)


def _all_orders(states: States, rank: int) -> tuple[States, States]:
    """Each layout with its dimensions split in any order of the axes."""
    all_states, all_places = [], []
    for row in states.tolist():
        axes = [[axis for axis, state in enumerate(row) if state == dim] for dim in range(rank)]
        for orders in itertools.product(*(itertools.permutations(range(len(of))) for of in axes)):
            places = [0] * len(row)
            for of, order in zip(axes, orders, strict=True):
                for axis, place in zip(of, order, strict=True):
                    places[axis] = place
            all_states.append(row)
            all_places.append(places)
    shape = (len(all_states), states.shape[1])
    return np.array(all_states, np.int8).reshape(shape), np.array(all_places, np.int8).reshape(shape)


def _keys(states: States, places: States) -> list[bytes]:
    """A hashable key for each layout."""
    return [row.tobytes() for row in np.concatenate([states, places], axis=1)]


def _subsets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """All non-empty subsets, in the order given."""
    return [subset for size in range(1, len(axes) + 1) for subset in itertools.combinations(axes, size)]
