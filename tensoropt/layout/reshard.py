"""The cheapest steps from any layout to any other, by shortest path (TensorOpt section 4.2, tensor re-scheduling).

Nodes are layouts, an edge joins two layouts that one step connects, and its weight is the step's time. A layout is
held as one row of *states*: what each mesh axis does to the tensor.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout.axis_state import AT, PARTIAL, REPLICATED, States, at_state, is_placed
from tensoropt.layout.coarsening import Coarsening
from tensoropt.layout.layout import Layout, common_prefix
from tensoropt.layout.layout_graph import (
    KINDS,
    LayoutGraph,
    PlaceStates,
    ascending,
    at_places,
    family,
    layout_graph,
    pieces,
)
from tensoropt.layout.mesh import Mesh
from tensoropt.layout.reshard_step import Step, StepKind
from tensoropt.layout.shortest import shortest_rows

__all__ = ["PackingCost", "ReshardTable", "Resharder", "StepCost", "canonical_path", "reshard_table"]

IntRow = NDArray[np.int64]
# Seconds of one step: its kind, the axes of its group (all axes for a permute), input bytes per device, and, if there
# are any, the axes along which only one device takes part.
StepCost = Callable[..., NDArray[np.float64]]
# Seconds that packing and unpacking add to steps of a kind: input bytes per device, the number of devices in a group,
# and for each step along how many of its dimensions pieces are strided: those that are not the outermost.
PackingCost = Callable[[StepKind, NDArray[np.float64], int, NDArray[np.int64]], NDArray[np.float64]]

# Where an operator is placed that nothing says how to coarsen.
_PLACED_BLOCKS = 2
# So many sources are solved at a time: times to all layouts are held only for them.
_ROWS_AT_ONCE = 128
# Steps that take sums, or make summands: what was before cannot be had again.
_ONE_WAY = (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER, StepKind.TO_PARTIAL, StepKind.REDUCE, StepKind.FILL)


class Solved:
    """A layout graph with the times of its steps for tensors of one size; paths are solved when they are asked for.

    Only times between *ends*, the layouts that operators give and ask for, are kept.

    Shared by all tensors of that size whose dimensions divide alike.
    """

    def __init__(
        self,
        mesh: Mesh,
        graph: LayoutGraph,
        ends: NDArray[np.bool_],
        size_bytes: float,
        cost: StepCost,
        packing: tuple[PackingCost, int] | None = None,
        widening: float = 1.0,
    ) -> None:
        self.mesh = mesh
        self.graph = graph
        self.size_bytes = size_bytes
        self.widening = widening
        self.weight = _weights(mesh, graph, size_bytes, widening, cost, packing)
        self._cost = cost
        self._packing = packing
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
        if len(missing) == 1:  # asked for by itself: its path is likely to be asked for, too
            self._between[missing] = self.row(int(self.ends[missing[0]]))[self.ends]
        else:
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
        undone = _weights(self.mesh, self.graph.undone(), self.size_bytes, self.widening, self._cost, self._packing)
        undone[np.isin(self.graph.kind, [KINDS.index(kind) for kind in _ONE_WAY])] = np.inf
        return undone

    def communication(self, start: int, end: int, *, back: bool) -> float:
        """The time of the steps of a path, or of the way back, that are not local."""
        links = self.path(start, end)
        weight, graph = (self.undo, self.graph.undone()) if back else (self.weight, self.graph)
        return sum(float(weight[link]) for link in links if not KINDS[graph.kind[link]].is_local)

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
        solved: the shared table: its graph of layouts, with times and cheapest paths.
        key: equal for tables whose layouts at places have equal numbers.
    """

    def __init__(
        self, rank: int, dims: tuple[int, ...], solved: Solved, renamed: Mapping[int, IntRow] = MappingProxyType({})
    ) -> None:
        """A view of a shared table; :class:`Resharder` makes them.

        Args:
            rank: of the tensors.
            dims: the dimensions that layouts split.
            solved: the shared table.
            renamed: by mesh axis the coordinates by which the shared table has places along the axis, ``(extent,)``.
        """
        self.rank = rank
        self.dims = dims
        self.solved = solved
        self._renamed = renamed
        self._named = {axis: np.argsort(coordinates) for axis, coordinates in renamed.items()}
        self.key = id(solved), tuple((axis, tuple(new.tolist())) for axis, new in sorted(renamed.items()))

    def numbers(self, states: States) -> NDArray[np.intp]:
        """The rows of layouts, whose dimensions are split by ascending axes.

        Args:
            states: ``(K, axes)``, for each mesh axis the dimension that it splits, or what it does instead.

        Raises:
            LayoutError: if the tensor cannot have one of them.
        """
        # By state: dimensions from the start, the others, which are negative, from the end.
        others = np.arange(at_state(max(self.solved.mesh.shape, default=1) - 1), 0, dtype=np.int8)
        number = np.full(self.rank + len(others), self.rank, dtype=np.int8)
        number[list(self.dims)] = np.arange(len(self.dims))
        number[others] = others
        states = _renamed(number[states], self._renamed)
        found = [self.solved.index.get(key, -1) for key in _keys(states, ascending(states))]
        if -1 in found:
            raise LayoutError(self._foreign(found.index(-1)))
        return np.array(found, dtype=np.intp)

    def between(self, sources: States, targets: States) -> NDArray[np.float64]:
        """Seconds from each of some layouts to each of others, ``(sources, targets)``; see :meth:`numbers`."""
        rows, columns = self.numbers(sources), self.numbers(targets)
        return self.solved.between(rows, columns)

    def back(self, sources: States, targets: States) -> NDArray[np.float64]:
        """Seconds to go each cheapest path backwards: to make the source again from the target, ``(sources, targets)``.

        +inf where a path sums, because the summands cannot be had again.
        """
        rows, place = np.unique(self.numbers(sources), return_inverse=True)
        return self.solved.back(rows)[np.ix_(place, self.numbers(targets))]

    def communication(self, sources: States, targets: States, *, back: bool = False) -> NDArray[np.float64]:
        """The part of the time from ``sources[i]`` to ``targets[i]`` in which devices talk to one another, ``(K,)``.

        Args:
            sources: layouts.
            targets: as many.
            back: of the way back instead, see :meth:`back`.
        """
        pairs = np.stack([self.numbers(sources), self.numbers(targets)], axis=1)
        different, place = np.unique(pairs, axis=0, return_inverse=True)
        seconds = [self.solved.communication(one, other, back=back) for one, other in different.tolist()]
        return np.array(seconds)[place.reshape(-1)]

    def states(self, numbers: NDArray[np.intp]) -> States:
        """The states of layouts by number, ``(K, axes)``, whose dimensions are numbered as in the shared table."""
        return _renamed(self.solved.graph.states[numbers], self._named)

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """All layouts, in the order of :attr:`seconds`."""
        graph = self.solved.graph
        return tuple(self._layout(number) for number in range(len(graph.states)))

    @functools.cached_property
    def index(self) -> dict[Layout, int]:
        """The place of each layout."""
        return {layout: number for number, layout in enumerate(self.layouts)}

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``(L, L)``, the time of the cheapest path from row to column."""
        every = np.arange(len(self.solved.graph.states))
        return np.array([self.solved.row(start) for start in every.tolist()])

    def path(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The steps of the cheapest path; equal costs are decided by the order of layouts.

        Raises:
            LayoutError: if the tensor cannot have one of the layouts. All that it can have reach one another.
        """
        return tuple(self._step(link) for link in self._links(source, target))

    def step_seconds(self, source: Layout, target: Layout, *, back: bool = False) -> tuple[float, ...]:
        """Seconds of each of the steps of :meth:`path`; of going back along each of them, if asked for."""
        weight = self.solved.undo if back else self.solved.weight
        return tuple(float(weight[link]) for link in self._links(source, target))

    def _links(self, source: Layout, target: Layout) -> list[int]:
        ends = []
        for layout in (source, target):
            number = self._number(layout)
            if number is None:
                raise LayoutError(f"Reshard from {source} to {target}: {self._foreign(layout)}")
            ends.append(number)
        return self.solved.path(ends[0], ends[1])

    def _number(self, layout: Layout) -> int | None:
        if layout.rank != self.rank:
            return None
        states = np.full((1, len(self.solved.mesh.axes)), REPLICATED, dtype=np.int8)
        places = np.zeros_like(states)
        for dim, axes in enumerate(layout.dims):
            if axes and dim not in self.dims:
                return None
            for place, axis in enumerate(axes):
                states[0, axis], places[0, axis] = self.dims.index(dim), place
        states[0, list(layout.partial)] = PARTIAL
        for axis, place in layout.at:
            states[0, axis] = at_state(place)
        states = _renamed(states, self._renamed)
        return self.solved.index.get(_keys(states, places)[0])

    def _layout(self, number: int) -> Layout:
        graph = self.solved.graph
        states = self.states(np.array([number]))[0].tolist()
        places = graph.places[number].tolist()
        dims: list[tuple[int, ...]] = [()] * self.rank
        for position, dim in enumerate(self.dims):
            axes = [axis for axis, state in enumerate(states) if state == position]
            dims[dim] = tuple(sorted(axes, key=lambda axis: int(places[axis])))
        partial = tuple(axis for axis, state in enumerate(states) if state == PARTIAL)
        return Layout(
            tuple(dims), partial, tuple((axis, AT - state) for axis, state in enumerate(states) if state <= AT)
        )

    def _step(self, link: int) -> Step:
        graph = self.solved.graph
        kind = KINDS[graph.kind[link]]
        before, after = (self._layout(int(end[link])) for end in (graph.source, graph.target))
        if kind is StepKind.PERMUTE:
            return Step(kind, target=after)
        if kind in (StepKind.ALL_REDUCE, StepKind.TO_PARTIAL):
            return Step(kind, tuple(sorted({*before.partial} ^ {*after.partial})))
        if kind.leaves or kind.arrives:
            moved = tuple(axis for axis in self.solved.mesh.axes if int(graph.moved[link]) >> axis & 1)
            return _placed_step(kind, moved, before, after)
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


def _placed_step(kind: StepKind, axes: tuple[int, ...], before: Layout, after: Layout) -> Step:
    """The step from or to a place that leads from one layout to another.

    Args:
        kind: of the step.
        axes: the mesh axes that it changes, ascending.
        before: where it starts.
        after: where it leads.
    """
    dim: int | None = None
    if kind in (StepKind.SCATTER, StepKind.GATHER):
        split = after if kind is StepKind.SCATTER else before
        dim = next(dim for dim, of in enumerate(split.dims) if axes[0] in of)
        axes = split.dims[dim][-len(axes) :]
    start, end = dict(before.at), dict(after.at)
    return Step(
        kind,
        axes,
        dim,
        at=tuple(start[axis] for axis in axes) if kind.leaves else None,
        to_at=tuple(end[axis] for axis in axes) if kind.arrives else None,
    )


class Resharder:
    """Makes tables, and shares what tensors have in common.

    A table has the layouts whose axes are grouped as ``coarsening`` allows, and those that it is asked for. Dimensions
    that nobody splits are left out: tensors that are alike in the others share the graph of layouts, and its
    shortest paths too if they have as many bytes. Where packing has a cost, the same dimension must be the outermost.
    Links between places cost by the mesh axes along which these differ, so all pairs of places that differ along the
    same axes share a graph: the stages of a pipeline, and their borders.
    """

    def __init__(self, mesh: Mesh, cost: StepCost, coarsening: Coarsening, packing: PackingCost | None = None) -> None:
        self.mesh = mesh
        self._packing = packing
        self.coarsening = coarsening
        # Only tensors that some device may lack have layouts at places.
        self._everywhere = dataclasses.replace(coarsening, placed_blocks=0)
        self._anywhere = dataclasses.replace(coarsening, placed_blocks=coarsening.placed_blocks or _PLACED_BLOCKS)
        self._cost = cost
        self._products = sorted({1} | {mesh.extent(subset) for subset in _subsets(mesh.axes)})
        self._solved: dict[tuple[object, ...], Solved] = {}
        self._found: dict[tuple[object, ...], tuple[tuple[int, ...], ...]] = {}
        self._divided: dict[tuple[object, ...], tuple[LayoutGraph, NDArray[np.bool_]]] = {}

    def table(
        self, shape: Sequence[int], itemsize: int, states: States, sum_itemsize: int | None = None
    ) -> ReshardTable:
        """The table of tensors of ``shape``.

        Args:
            shape: of the tensors.
            itemsize: bytes of an element.
            states: ``(K, axes)``, layouts that it has to have, as for :meth:`ReshardTable.numbers`.
            sum_itemsize: bytes of an element of a part of a sum; the same by default.
        """
        coarsening = self._anywhere if is_placed(states).any() else self._everywhere
        used, widening = np.unique(states[states >= 0]).tolist(), (sum_itemsize or itemsize) / itemsize
        renamed = _first_places_first(states, self.mesh)
        states = _renamed(states, renamed)
        places = self._places(states, coarsening)
        return self._table(shape, itemsize, used, states, coarsening, places, widening, renamed)

    def whole_table(self, shape: Sequence[int], itemsize: int) -> ReshardTable:
        """A table that may split any dimension."""
        none = np.empty((0, len(self.mesh.axes)), np.int8)
        return self._table(shape, itemsize, range(len(shape)), none, self.coarsening)

    def _table(
        self,
        shape: Sequence[int],
        itemsize: int,
        used: Sequence[int],
        states: States,
        coarsening: Coarsening,
        places: PlaceStates | None = None,
        widening: float = 1.0,
        renamed: Mapping[int, IntRow] = MappingProxyType({}),
    ) -> ReshardTable:
        divisors = {dim: tuple(p for p in self._products if shape[dim] % p == 0) for dim in used}
        # Dimensions that divide alike come in one order, so that a tensor and its transpose share a table.
        dims = tuple(sorted((dim for dim in used if len(divisors[dim]) > 1), key=lambda dim: (divisors[dim], dim)))
        divisible = tuple(divisors[dim] for dim in dims)
        size_bytes = math.prod(shape) * itemsize
        further = self._further(states, dims, coarsening, places)
        outermost = next((dim for dim, extent in enumerate(shape) if extent > 1), 0)
        place = dims.index(outermost) if self._packing is not None and outermost in dims else -1
        key = (divisible, size_bytes, widening, further, places, coarsening.placed_blocks, place)
        if key not in self._solved:
            graph, ends = self._graph(divisible, further, coarsening, places)
            packing = None if self._packing is None else (self._packing, place)
            self._solved[key] = Solved(self.mesh, graph, ends, size_bytes, self._cost, packing, widening)
        return ReshardTable(len(shape), dims, self._solved[key], renamed)

    def _graph(
        self,
        divisible: tuple[tuple[int, ...], ...],
        further: tuple[tuple[int, ...], ...],
        coarsening: Coarsening,
        places: PlaceStates | None,
    ) -> tuple[LayoutGraph, NDArray[np.bool_]]:
        """The layouts of tensors that divide so, and which of them are ends."""
        key = (divisible, further, places, coarsening.placed_blocks)
        if key not in self._divided:
            rank = len(divisible)
            graph = layout_graph(self.mesh, coarsening, rank, further, places)
            kept = np.ones(len(graph.states), dtype=bool)
            for dim, sizes in enumerate(divisible):
                kept &= np.isin(pieces(graph.states, self.mesh, dim), sizes)
            graph = graph.restricted(kept)
            usual = at_places(family(self.mesh, coarsening, rank), places)
            ends = {*map(bytes, usual), *map(bytes, np.array(further, np.int8))}
            self._divided[key] = graph, np.array([bytes(row) in ends for row in graph.states])
        return self._divided[key]

    def _places(self, states: States, coarsening: Coarsening) -> PlaceStates | None:
        """The places of layouts, and those that they are a part of; None on a small mesh, where all places count.

        The places of a large mesh are as many as its devices and more, of which a pipeline's edge has two.
        """
        if not coarsening.placed_blocks or len(self.mesh.axes) <= coarsening.free_up_to_axes:
            return None
        found: set[tuple[int, ...]] = set()
        for row in np.unique(np.where(is_placed(states), states, 0), axis=0).tolist():
            for end in range(len(row)):
                found.add((*row[: end + 1], *[0] * (len(row) - end - 1)))
                found.add((*[0] * end, *row[end:]))
        return tuple(sorted(found))

    def _further(
        self, states: States, dims: tuple[int, ...], coarsening: Coarsening, places: PlaceStates | None
    ) -> tuple[tuple[int, ...], ...]:
        """Layouts outside of the coarsening that are needed, with what lies between them and a replicated tensor."""
        if len(self.mesh.axes) <= coarsening.free_up_to_axes or not len(states):
            return ()
        different = np.unique(states, axis=0)
        key = (different.tobytes(), dims, coarsening.placed_blocks, places)
        if key not in self._found:
            self._found[key] = self._layouts_beyond(different, dims, coarsening, places)
        return self._found[key]

    def _layouts_beyond(
        self, states: States, dims: tuple[int, ...], coarsening: Coarsening, places: PlaceStates | None
    ) -> tuple[tuple[int, ...], ...]:
        number = {dim: position for position, dim in enumerate(dims)} | {PARTIAL: PARTIAL, REPLICATED: REPLICATED}
        known = set(map(tuple, at_places(family(self.mesh, coarsening, len(dims)), places).tolist()))
        found: set[tuple[int, ...]] = set()
        for row in states.tolist():
            states_of = tuple(number.get(state, state) for state in row)
            if states_of in known:
                continue
            plain = tuple(REPLICATED if state == PARTIAL else state for state in states_of)
            for cut in range(len(dims) + 1):
                found.add(tuple(state if state < cut else REPLICATED for state in plain))
                found.add(tuple(state if state >= cut or state <= AT else REPLICATED for state in plain))
            found.add(states_of)
        return tuple(sorted(found - known))


def reshard_table(mesh: Mesh, shape: Sequence[int], itemsize: int, cost: StepCost) -> ReshardTable:
    """All cheapest reshards of tensors of ``shape`` with elements of ``itemsize`` bytes, through all layouts.

    There are (rank + 2)^axes layouts and more: see :class:`Resharder` for what searches use.
    """
    return Resharder(mesh, cost, Coarsening(free_up_to_axes=len(mesh.axes))).whole_table(shape, itemsize)


def canonical_path(source: Layout, target: Layout) -> tuple[Step, ...]:
    """A path that needs no costs: sum, gather what differs, then slice. For tensors outside the training step."""
    steps: list[Step] = []
    layout = source
    if source.at and source.at != target.at:
        axes, places = zip(*source.at, strict=True)
        steps.append(Step(StepKind.BROADCAST, axes, at=places))
        layout = steps[-1].apply(layout)
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
    if target.at and source.at != target.at:
        axes, places = zip(*target.at, strict=True)
        steps.append(Step(StepKind.DROP, axes, to_at=places))
    return tuple(steps)


def _weights(
    mesh: Mesh,
    graph: LayoutGraph,
    size_bytes: float,
    widening: float,
    cost: StepCost,
    packing: tuple[PackingCost, int] | None,
) -> NDArray[np.float64]:
    """The time of every step, asked for once per kind and group; parts of sums are ``widening`` times as large."""
    strided = None if packing is None else _strided(graph, packing[1])
    summed = (graph.states == PARTIAL).any(axis=1)
    bytes_in = (size_bytes * np.where(summed, widening, 1.0) / graph.shards)[graph.source]
    weight = np.empty(len(graph.source))
    group = graph.moved * len(KINDS) + graph.kind
    idle = _idle_axes(mesh, graph)
    group += (idle << len(mesh.axes)) * len(KINDS)
    order = np.argsort(group, kind="stable")
    for positions in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []:
        moved, kind = divmod(int(group[positions[0]]), len(KINDS))
        axes = tuple(axis for axis in mesh.axes if moved >> axis & 1)
        waiting = tuple(axis for axis in mesh.axes if moved >> len(mesh.axes) + axis & 1)
        if waiting:
            weight[positions] = cost(KINDS[kind], axes, bytes_in[positions], waiting)
        else:
            weight[positions] = cost(KINDS[kind], axes, bytes_in[positions])
        if packing is not None and strided is not None:
            extent = mesh.extent(axes)
            weight[positions] += packing[0](KINDS[kind], bytes_in[positions], extent, strided[positions])
    if np.any(weight <= 0) or not np.all(np.isfinite(weight)):
        raise LayoutError("Reshard: every step needs a positive, finite time; a free one would hide its copy.")
    return weight


def _first_places_first(states: States, mesh: Mesh) -> dict[int, IntRow]:
    """New coordinates of places along mesh axes, in the order in which they come; those of other places follow.

    Returns:
        by mesh axis ``(extent,)``, without the axes whose coordinates stay.
    """
    result: dict[int, IntRow] = {}
    for axis in mesh.axes:
        placed = states[:, axis][is_placed(states[:, axis])]
        found, first = np.unique(AT - placed.astype(np.int64), return_index=True)
        come = found[np.argsort(first)]
        order = np.concatenate([come, np.setdiff1d(np.arange(mesh.shape[axis]), come)])
        if not np.array_equal(order, np.arange(mesh.shape[axis])):
            result[axis] = np.argsort(order)
    return result


def _renamed(states: States, coordinates: Mapping[int, IntRow]) -> States:
    """Layouts at places of other coordinates along some axes."""
    result = states.copy() if coordinates else states
    for axis, new in coordinates.items():
        placed = is_placed(states[:, axis])
        result[placed, axis] = AT - new[AT - states[placed, axis].astype(np.int64)]
    return result


def _strided(graph: LayoutGraph, outermost: int) -> NDArray[np.int64]:
    """Along how many dimensions each step gathers or cuts pieces that are strided."""
    axis = np.zeros(len(graph.moved), np.int64)  # the first that moves; the others move alike
    for number in reversed(range(graph.states.shape[1])):
        axis[graph.moved >> number & 1 == 1] = number
    before, after = graph.states[graph.source, axis], graph.states[graph.target, axis]
    dims = [np.where((state >= 0) & (state != outermost), 1, 0) for state in (before, after)]
    return np.asarray(dims[0] + dims[1], dtype=np.int64)


def _idle_axes(mesh: Mesh, graph: LayoutGraph) -> NDArray[np.int64]:
    """The mesh axes along which only one device takes part in each step, as bits: see :meth:`Step.idle_axes`."""
    placed = is_placed(graph.states)
    if not placed.any():
        return np.zeros(len(graph.source), np.int64)
    at = (placed @ (1 << np.arange(len(mesh.axes), dtype=np.int64)))[graph.source]
    permutes, sends = (graph.kind == KINDS.index(kind) for kind in (StepKind.PERMUTE, StepKind.SEND))
    return np.asarray(np.where(permutes | sends, at, at & ~graph.moved))


def _keys(states: States, places: States) -> list[bytes]:
    """A hashable key for each layout."""
    return [row.tobytes() for row in np.concatenate([states, places], axis=1)]


def _subsets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """All non-empty subsets, in the order given."""
    return [subset for size in range(1, len(axes) + 1) for subset in itertools.combinations(axes, size)]
