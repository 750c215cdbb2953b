"""The graph of a tensor's layouts: all layouts that it can have, and every step between two of them, as arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.layout.axis_state import AT, PARTIAL, REPLICATED, States, is_placed
from tensoropt.layout.coarsening import Coarsening
from tensoropt.layout.mesh import Mesh
from tensoropt.layout.reshard_step import UNDONE_BY, StepKind

__all__ = ["KINDS", "LayoutGraph", "PlaceStates", "ascending", "at_places", "family", "layout_graph", "pieces"]

KINDS = tuple(StepKind)
_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
# Up to this many mesh axes a dimension may pass through layouts whose axes are not ascending; beyond it their
# number (axes! per dimension) would outgrow what they save.
_ALL_ORDERS_UP_TO_AXES = 3
PlaceStates = tuple[tuple[int, ...], ...]
"""Places, each by the states of all axes, 0 where an axis is not placed."""
# Source, target, number of the kind, axes as bits, of each step.
_Links = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _step_kinds() -> NDArray[np.int8]:
    """The number of the kind of step that changes one state to another, -1 if there is none, by both states.

    AT stands for any place, and for another one where it is both of them.
    """
    dims = 64
    result = np.full((dims + 3, dims + 3), -1, np.int8)
    result[:dims, :dims] = _NUMBER[StepKind.ALL_TO_ALL]
    np.fill_diagonal(result, -1)
    result[PARTIAL, :dims] = _NUMBER[StepKind.REDUCE_SCATTER]
    result[REPLICATED, :dims] = _NUMBER[StepKind.SLICE]
    result[:dims, REPLICATED] = _NUMBER[StepKind.ALL_GATHER]
    result[PARTIAL, REPLICATED] = _NUMBER[StepKind.ALL_REDUCE]
    result[REPLICATED, PARTIAL] = _NUMBER[StepKind.TO_PARTIAL]
    result[AT, :dims] = _NUMBER[StepKind.SCATTER]
    result[:dims, AT] = _NUMBER[StepKind.GATHER]
    result[AT, REPLICATED] = _NUMBER[StepKind.BROADCAST]
    result[REPLICATED, AT] = _NUMBER[StepKind.DROP]
    result[AT, PARTIAL] = _NUMBER[StepKind.FILL]
    result[PARTIAL, AT] = _NUMBER[StepKind.REDUCE]
    result[AT, AT] = _NUMBER[StepKind.SEND]  # of other coordinates
    return result


_STEP_KINDS = _step_kinds()


@dataclass(frozen=True, slots=True, eq=False)
class LayoutGraph:
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

    def restricted(self, kept: NDArray[np.bool_]) -> LayoutGraph:
        """Only the layouts that are marked."""
        if kept.all():
            return self
        number = np.cumsum(kept) - 1
        links = kept[self.source] & kept[self.target]
        return LayoutGraph(
            self.states[kept],
            self.places[kept],
            number[self.source[links]],
            number[self.target[links]],
            self.kind[links],
            self.moved[links],
            self.shards[kept],
        )

    def undone(self) -> LayoutGraph:
        """The steps from each link's target back to its source, in the order of the links."""
        kinds = [_NUMBER[UNDONE_BY.get(kind, StepKind.PERMUTE)] for kind in KINDS]
        return dataclasses.replace(
            self, source=self.target, target=self.source, kind=np.array(kinds, np.int8)[self.kind]
        )


@functools.lru_cache(maxsize=32)
def family(mesh: Mesh, coarsening: Coarsening, rank: int, *, between: bool = False) -> States:
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
    if coarsening.placed_blocks:
        placed = (
            coarsening.between().placed_patterns(mesh.shape, 0, rank + 2)
            if between
            else coarsening.placed_patterns(mesh.shape, rank, 2)
        )
        patterns = np.concatenate([patterns, placed[::-1]])
    return np.where(patterns == rank, PARTIAL, np.where(patterns > rank, REPLICATED, patterns)).astype(np.int8)


def at_places(states: States, places: PlaceStates | None) -> States:
    """Those layouts that are everywhere or at one of some places.

    Args:
        states: ``(L, axes)``.
        places: None for all.
    """
    if places is None:
        return states
    known = {bytes(len(row)) for row in states[:1]} | {np.array(place, np.int8).tobytes() for place in places}
    return states[[row.tobytes() in known for row in np.where(is_placed(states), states, 0).astype(np.int8)]]


@functools.lru_cache(maxsize=32)
def layout_graph(
    mesh: Mesh,
    coarsening: Coarsening,
    rank: int,
    further: tuple[tuple[int, ...], ...],
    at: PlaceStates | None = None,
) -> LayoutGraph:
    """The layouts of tensors of which every dimension divides, and the steps between them.

    Args:
        mesh: the factor mesh.
        coarsening: of operators.
        rank: of the tensors.
        further: layouts that are needed beside those of the coarsening.
        at: the places of the coarsening's layouts, see :func:`at_places`.
    """
    states = at_places(family(mesh, coarsening, rank, between=True), at)
    if further:
        known = set(map(tuple, states.tolist()))
        more = [row for row in further if row not in known]
        states = np.concatenate([states, np.array(more, dtype=np.int8).reshape(len(more), len(mesh.axes))])
    places = ascending(states)
    if len(mesh.axes) <= _ALL_ORDERS_UP_TO_AXES:
        states, places = _all_orders(states, rank)
        found = [_links(states, places)]
    else:
        found = [*_ascending_links(states, rank), *_placed_links(states, rank)]
    found.append(_permutes(states, mesh, rank))
    source, target, kind, moved = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((source, target))
    shards = np.prod([pieces(states, mesh, dim) for dim in range(rank)], axis=0, dtype=np.float64)
    return LayoutGraph(
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
        start, end = np.maximum(start, AT), np.maximum(end, AT)  # all places alike
        before, after, shift = np.where(first, start, before), np.where(first, end, after), np.where(first, move, shift)
        alike &= ~differs | ((before == start) & (after == end) & (shift == move))
        moved |= differs.astype(np.int64) << axis
    kind = np.where(alike, _STEP_KINDS[before, after], -1)
    source, target = np.nonzero(kind >= 0)
    return source, target, kind[source, target], moved[source, target]


def _ascending_links(states: States, rank: int) -> list[_Links]:
    """The same between many layouts whose dimensions are split by ascending axes, but for those from or to a place."""
    axes = states.shape[1]
    codes, radix = _codes(states, rank)
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


def _placed_links(states: States, rank: int) -> list[_Links]:
    """The steps from or to a place, between many layouts whose dimensions are split by ascending axes."""
    placed = _bits(is_placed(states), True)
    if not placed.any():
        return []
    axes = states.shape[1]
    lowest_state = int(states.min())
    codes, radix = _codes(states, rank)
    order = np.argsort(codes)
    sorted_codes = codes[order]
    of_state = {state: _bits(states, state) for state in range(PARTIAL, rank)}
    found: list[_Links] = []

    def add(before: int, after: int, moved: int, source: NDArray[np.int64], wanted: NDArray[np.int64]) -> None:
        where = np.minimum(np.searchsorted(sorted_codes, wanted), len(codes) - 1)
        hit = sorted_codes[where] == wanted
        count = int(hit.sum())
        if count:
            kind = _STEP_KINDS[before, after]
            found.append((source[hit], order[where[hit]], np.full(count, kind), np.full(count, moved)))

    for moved in range(1, 2**axes):
        lowest = moved & -moved
        group = [axis for axis in range(axes) if moved >> axis & 1]
        weight = int(radix[group].sum())
        rows = np.flatnonzero(placed & moved == moved)
        if not len(rows):
            continue
        places = np.unique(states[rows][:, group], axis=0).astype(np.int64)
        # What the code of a layout has for these axes if they are at a place.
        at_codes = [int((at - lowest_state) @ radix[group]) for at in places]
        without = codes[rows] - (states[rows][:, group].astype(np.int64) - lowest_state) @ radix[group]
        for after in range(PARTIAL, rank):
            # New axes of a dimension come last.
            fits = of_state[after][rows] < lowest if after >= 0 else np.ones(len(rows), dtype=bool)
            add(AT, after, moved, rows[fits], without[fits] + (after - lowest_state) * weight)
        for at, code in zip(places, at_codes, strict=True):
            elsewhere = (states[rows][:, group] != at).all(axis=1)
            add(AT, AT, moved, rows[elsewhere], without[elsewhere] + code)
        for before in range(PARTIAL, rank):
            have = of_state[before]
            able = have & moved == moved
            if before >= 0:  # only the last axes of a dimension leave it
                able &= have & ~moved < lowest
            rows = np.flatnonzero(able)
            for code in at_codes:
                add(before, AT, moved, rows, codes[rows] - (before - lowest_state) * weight + code)
    return found


def _codes(states: States, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each layout, and what one more of each axis's state adds to it."""
    lowest = min(PARTIAL, int(states.min(initial=PARTIAL)))
    radix = (rank - lowest) ** np.arange(states.shape[1], dtype=np.int64)
    return (states.astype(np.int64) - lowest) @ radix, radix


def _permutes(states: States, mesh: Mesh, rank: int) -> _Links:
    """The steps between layouts that cut a tensor into the same pieces, on the same devices."""
    counts = np.array([pieces(states, mesh, dim) for dim in range(rank)], dtype=np.int64).reshape(rank, len(states)).T
    counts = np.concatenate([counts, np.where(is_placed(states), states, 0)], axis=1)
    able = np.flatnonzero(~(states == PARTIAL).any(axis=1) & (states >= 0).any(axis=1))
    pairs = [np.empty((0, 2), np.int64)]
    _, group = np.unique(counts[able], axis=0, return_inverse=True)
    for number in range(int(group.max(initial=-1)) + 1):
        alike = able[group.reshape(-1) == number]
        one, other = np.meshgrid(alike, alike, indexing="ij")
        pairs.append(np.stack([one[one != other], other[one != other]], axis=1))
    joined = np.concatenate(pairs)
    kind = np.full(len(joined), _NUMBER[StepKind.PERMUTE], np.int64)
    return joined[:, 0], joined[:, 1], kind, np.full(len(joined), 2 ** len(mesh.axes) - 1, np.int64)


def _bits(states: States | NDArray[np.bool_], state: int) -> NDArray[np.int64]:
    """The axes of each layout in a state."""
    return np.asarray((states == state) @ (1 << np.arange(states.shape[1], dtype=np.int64)))


def pieces(states: States, mesh: Mesh, dim: int) -> NDArray[np.int64]:
    """Returns the number of pieces into which each layout cuts a dimension."""
    extents = np.array(mesh.shape, dtype=np.int64)
    return np.asarray(np.where(states == dim, extents, 1).prod(axis=1, dtype=np.int64))


def ascending(states: States) -> States:
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
