"""The cheapest steps from any layout to any other, by shortest path (TensorOpt section 4.2, tensor re-scheduling).

Nodes are layouts, an edge joins two layouts that one step connects, and its weight is the step's time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout.layout import Layout, common_prefix
from tensoropt.layout.mesh import Mesh
from tensoropt.layout.step import Step, StepKind

__all__ = ["ReshardTable", "StepCost", "canonical_path", "reshard_table"]

# Seconds of one step: its kind, the axes of its group (all axes for a permute), input bytes per device.
StepCost = Callable[[StepKind, tuple[int, ...], NDArray[np.float64]], NDArray[np.float64]]

# Up to this many mesh axes a dimension may pass through layouts whose axes are not ascending; beyond it their
# number (axes! per dimension) would outgrow what they save.
_ALL_ORDERS_UP_TO_AXES = 3
# So many sources are worked on at a time that their part of the work stays in a processor's cache.
_ROWS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _LayoutGraph:
    """Every layout of tensors with the same divisibility, and every step between them."""

    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    steps: tuple[Step, ...]  # sorted by the layout that they lead to, then by the one they start from
    source: NDArray[np.intp]
    target: NDArray[np.intp]
    shards: NDArray[np.float64]  # per layout: the number of pieces that the tensor is cut into


@dataclass(frozen=True, slots=True)
class ReshardTable:
    """Times and paths between all layouts of tensors of one shape.

    Attributes:
        seconds: ``(L, L)``, the time of the cheapest path from row to column.
    """

    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    seconds: NDArray[np.float64]
    _graph: _LayoutGraph = field(repr=False)
    _weight: NDArray[np.float64] = field(repr=False)

    def path(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The steps of the cheapest path; equal costs are decided by the order of layouts.

        Raises:
            LayoutError: if the tensor cannot have one of the layouts. All that it can have reach one another.
        """
        for layout in (source, target):
            if layout not in self.index:
                raise LayoutError(
                    f"Reshard from {source} to {target}: {layout} cannot be a layout of this tensor. Its shape and the "
                    f"mesh allow {len(self.layouts)} layouts, such as {', '.join(map(str, self.layouts[:4]))}."
                )
        start, end = self.index[source], self.index[target]
        graph = self._graph
        steps: list[Step] = []
        while end != start:
            first, last = np.searchsorted(graph.target, [end, end + 1])
            reached = self.seconds[start, graph.source[first:last]] + self._weight[first:last]
            edge = int(first + np.argmin(reached))
            steps.append(graph.steps[edge])
            end = int(graph.source[edge])
        return tuple(reversed(steps))


def reshard_table(mesh: Mesh, shape: Sequence[int], itemsize: int, cost: StepCost) -> ReshardTable:
    """All cheapest reshards of tensors of ``shape`` with elements of ``itemsize`` bytes.

    Complexity: O(rounds · L · E) vectorised, with L layouts and E steps; paths have few steps, so few rounds.
    """
    products = sorted({1} | {mesh.extent(subset) for subset in _subsets(mesh.axes)})
    divisible = tuple(tuple(p for p in products if extent % p == 0) for extent in shape)
    graph = _layout_graph(mesh, divisible)
    elements = float(np.prod(shape, dtype=np.float64))
    bytes_in = elements * itemsize / graph.shards[graph.source]
    weight = np.empty(len(graph.steps))
    by_group: dict[tuple[StepKind, tuple[int, ...]], list[int]] = {}
    for position, step in enumerate(graph.steps):
        by_group.setdefault((step.kind, step.axes or mesh.axes), []).append(position)
    for (kind, axes), positions in by_group.items():
        weight[positions] = cost(kind, axes, bytes_in[positions])
    if np.any(weight <= 0) or not np.all(np.isfinite(weight)):
        raise LayoutError("Reshard: every step needs a positive, finite time; a free one would hide its copy.")
    seconds = _all_pairs(len(graph.layouts), graph, weight)
    return ReshardTable(graph.layouts, graph.index, seconds, graph, weight)


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


def _all_pairs(count: int, graph: _LayoutGraph, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bellman-Ford from every layout at once; edges are sorted by target, so a round is one reduceat."""
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    if not len(weight):
        return seconds
    targets, starts = np.unique(graph.target, return_index=True)
    reached = np.empty((min(count, _ROWS_AT_ONCE), len(weight)))
    for first in range(0, count, _ROWS_AT_ONCE):
        rows = seconds[first : first + _ROWS_AT_ONCE]  # a view: what is written to it is written to the result
        one_more = reached[: len(rows)]
        while True:
            np.take(rows, graph.source, axis=1, out=one_more, mode="clip")  # any other mode copies first
            np.add(one_more, weight, out=one_more)
            before = rows[:, targets]
            better = np.minimum(before, np.minimum.reduceat(one_more, starts, axis=1))
            if np.array_equal(better, before):
                break
            rows[:, targets] = better
    return seconds


@functools.lru_cache(maxsize=256)
def _layout_graph(mesh: Mesh, divisible: tuple[tuple[int, ...], ...]) -> _LayoutGraph:
    layouts = _layouts(mesh, divisible)
    index = {layout: position for position, layout in enumerate(layouts)}
    edges: list[tuple[int, int, Step]] = []
    for position, layout in enumerate(layouts):
        for step in _steps_from(layout, mesh):
            target = index.get(step.apply(layout))
            if target is not None and target != position:
                edges.append((target, position, step))
    same_pieces: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for position, layout in enumerate(layouts):
        if not layout.partial and any(layout.dims):
            same_pieces.setdefault((layout.shard_counts(mesh), 0), []).append(position)
    for group in same_pieces.values():
        for source, target in itertools.permutations(group, 2):
            edges.append((target, source, Step(StepKind.PERMUTE, target=layouts[target])))
    edges.sort(key=lambda edge: (edge[0], edge[1]))
    return _LayoutGraph(
        layouts,
        index,
        tuple(step for _, _, step in edges),
        np.array([source for _, source, _ in edges], dtype=np.intp),
        np.array([target for target, _, _ in edges], dtype=np.intp),
        np.array([np.prod(layout.shard_counts(mesh), dtype=np.float64) for layout in layouts]),
    )


def _layouts(mesh: Mesh, divisible: tuple[tuple[int, ...], ...]) -> tuple[Layout, ...]:
    """Every layout whose splits divide, in a fixed order; ascending orders of axes come first."""
    replicate, partial = -1, -2
    result = []
    for states in itertools.product((replicate, partial, *range(len(divisible))), repeat=len(mesh.axes)):
        dims = [tuple(a for a in mesh.axes if states[a] == dim) for dim in range(len(divisible))]
        if any(mesh.extent(axes) not in sizes for axes, sizes in zip(dims, divisible, strict=True)):
            continue
        summed = tuple(a for a in mesh.axes if states[a] == partial)
        orders = itertools.product(*(_orders(axes, mesh) for axes in dims))
        result += [Layout(order, summed) for order in orders]
    return tuple(result)


def _steps_from(layout: Layout, mesh: Mesh) -> list[Step]:
    steps: list[Step] = []
    dims = range(layout.rank)
    free = tuple(axis for axis in mesh.axes if axis not in layout.used_axes)
    for axes in _subsets(layout.partial):
        steps.append(Step(StepKind.ALL_REDUCE, axes))
        steps += [Step(StepKind.REDUCE_SCATTER, order, dim) for dim in dims for order in _orders(axes, mesh)]
    for dim in dims:
        have = layout.dims[dim]
        for start in range(len(have)):
            axes = have[start:]
            steps.append(Step(StepKind.ALL_GATHER, axes, dim))
            steps += [Step(StepKind.ALL_TO_ALL, axes, dim, to) for to in dims if to != dim]
        steps += [Step(StepKind.SLICE, order, dim) for axes in _subsets(free) for order in _orders(axes, mesh)]
    steps += [Step(StepKind.TO_PARTIAL, axes) for axes in _subsets(free)]
    return steps


def _orders(axes: tuple[int, ...], mesh: Mesh) -> list[tuple[int, ...]]:
    """The orders in which a dimension may be split by ``axes``, which are given ascending."""
    return list(itertools.permutations(axes)) if len(mesh.axes) <= _ALL_ORDERS_UP_TO_AXES else [axes]


def _subsets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """All non-empty subsets, in the order given."""
    return [subset for size in range(1, len(axes) + 1) for subset in itertools.combinations(axes, size)]
