"""Tables of cost frontiers, and the three operations on them (TensorOpt, section 3.2): product, union,
reduce.

A table has one axis per node that is still undecided and, in each cell, the frontier of everything decided so
far. Frontiers differ in length, so points lie flat, cell after cell in C order, with offsets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tensoropt.problem.pareto import offsets_of
from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["Folded", "FrontierTable", "Joined", "fold", "join", "table_from_costs"]

_CHUNK = 200_000
"""Candidate tuples that a thread looks at before it takes more: a millisecond's work or so, which keeps all busy."""

_ROWS_FROM = 1 << 10
"""Joint cells from which tables of single points are worth laying out as rows (measured)."""

Prune = Callable[[IntArray, FloatArray, FloatArray], np.ndarray]
"""(cell of each point, time, memory) -> a mask of the points to keep."""

Box = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""Least time and least memory of all that is not in a cell, per cell; times and memories of corners in ascending
memory. A point goes that ends beyond every corner."""


@dataclass(frozen=True, slots=True, eq=False)
class FrontierTable:
    """One frontier per cell.

    Invariants: within a cell, memory strictly ascends and time strictly descends; all costs are finite; an
    empty cell is an impossible combination.

    Attributes:
        shape: the sizes of the axes; ``()`` for a single frontier.
        offsets: ``(cells + 1,)``, cells in C order.
        time_s: ``(points,)``.
        memory_bytes: ``(points,)``.
    """

    shape: tuple[int, ...]
    offsets: IntArray
    time_s: FloatArray
    memory_bytes: FloatArray

    @property
    def cells(self) -> int:
        """The number of cells."""
        return len(self.offsets) - 1

    @property
    def points(self) -> int:
        """The number of points in all cells."""
        return len(self.time_s)

    @property
    def mean_points(self) -> float:
        """Points of a cell, on average; below 1.0 where cells are empty."""
        return len(self.time_s) / max(1, len(self.offsets) - 1)

    @property
    def is_single(self) -> bool:
        """True if every cell has exactly one point."""
        return self.points == self.cells and bool((self.offsets[1:] > self.offsets[:-1]).all())

    @property
    def counts(self) -> IntArray:
        """``(cells,)``, the points in each cell."""
        counts: IntArray = np.diff(self.offsets)
        return counts

    def cell_of(self, points: IntArray) -> IntArray:
        """The cell in which each point lies."""
        cell: IntArray = np.searchsorted(self.offsets, points, side="right") - 1
        return cell

    def take(self, cells: IntArray, shape: tuple[int, ...]) -> tuple[FrontierTable, IntArray]:
        """A table of the chosen cells, and for each of its points the point it was here."""
        from tensoropt.problem.cell_kernels import take_cells

        offsets, time, memory, points = take_cells(self.offsets, self.time_s, self.memory_bytes, cells)
        return FrontierTable(shape, offsets, time, memory), points


def table_from_costs(time_s: FloatArray, memory_bytes: FloatArray) -> tuple[FrontierTable, IntArray]:
    """The table of cost arrays whose last axis is alternatives.

    Args:
        time_s: shape ``(*cells, P)``; +inf where nothing exists.
        memory_bytes: the same shape.

    Returns:
        the table, and the flat index into the cost arrays of each of its points.
    """
    from tensoropt.problem.cell_kernels import cell_frontiers

    several = time_s.shape[-1]
    time, memory = (np.ascontiguousarray(costs).reshape(-1, several) for costs in (time_s, memory_bytes))
    counts, kept = cell_frontiers(time, memory)
    table = FrontierTable(time_s.shape[:-1], offsets_of(counts), time.reshape(-1)[kept], memory.reshape(-1)[kept])
    return table, kept


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A table made of two, with back-pointers for unrolling.

    Attributes:
        table: the result.
        left: for each of its points, the point of the left table in it.
        right: the same for the right table.
    """

    table: FrontierTable
    left: IntArray
    right: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A table made of one that is several times in a sum, with back-pointers for unrolling.

    Attributes:
        table: the result.
        points: for each of its points, the first point of the same cell.
        second: how many of the tables take the second point instead.
    """

    table: FrontierTable
    points: IntArray
    second: IntArray


def fold(table: FrontierTable, count: int) -> Folded:
    """The product of ``count`` equal tables of at most two points a cell, as `join` would make it, again and again."""
    from tensoropt.problem.cell_kernels import fold_cells

    counts, time, memory, points, second = fold_cells(table.offsets, table.time_s, table.memory_bytes, count)
    return Folded(FrontierTable(table.shape, offsets_of(counts), time, memory), points, second)


def _strides(axes: Sequence[int], shape: Sequence[int], count: int) -> list[int]:
    """Returns by how much a table's cell number grows along each of ``count`` joint axes."""
    strides = [0] * count
    stride = 1
    for axis, size in zip(reversed(axes), reversed(shape), strict=True):
        strides[axis] = stride
        stride *= size
    return strides


def join(
    left: FrontierTable,
    left_axes: Sequence[int],
    right: FrontierTable,
    right_axes: Sequence[int],
    sizes: Sequence[int],
    keep: int,
    *,
    ratio: float = 0.0,
    prune: Prune | None = None,
    box: Box | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Joined:
    """Product of two tables over their joint cells, then union over the axes that go, each followed by
    reduce.

    This is Eq. 4 for one node (``sizes`` = its two neighbours' and its own configurations, ``keep`` = 2), Eq.
    5 (``keep`` = 2 of 2), and a step of Algorithm 3 (``keep`` = 1 of 2).

    Args:
        left: a table.
        left_axes: which joint axis each of its axes is.
        right: a table.
        right_axes: the same.
        sizes: the sizes of the joint axes; those that stay come first.
        keep: how many axes stay.
        ratio: > 0 thins every resulting frontier: for each point that goes, one stays that takes no more memory and
            at most this share more time, of the least time that ``box`` says the point can be completed to.
        prune: drops resulting points that cannot be part of any frontier that is looked for.
        box: the same from least costs alone, before points are compared.
        pool: threads to share the cells among. The result does not depend on it.

    Returns:
        a table of shape ``sizes[:keep]`` with back-pointers.
    """
    # Imported here because it takes Numba.
    from tensoropt.problem import kernels

    shape, gone = tuple(sizes[:keep]), math.prod(sizes[keep:])
    cells = math.prod(shape)
    # A joint cell's number in a table is a sum: a part from the axes that stay, and one from those that go.
    strides = [_strides(axes, t.shape, len(sizes)) for t, axes in ((left, left_axes), (right, right_axes))]
    joint = np.array([sizes, *strides], np.int64).reshape(3, -1)
    bounds = _NO_BOUNDS if box is None else box
    cuts = _cuts(left, right, cells, gone)
    single = cells * gone >= _ROWS_FROM and left.is_single and right.is_single
    if len(cuts) <= 2 and prune is None and not single:
        # Most products are so small that a second call would take as long as they do.
        tables = (left.offsets, left.time_s, left.memory_bytes, right.offsets, right.time_s, right.memory_bytes)
        offsets, time, memory, a, b = kernels.join_tables(*tables, joint, keep, *bounds, ratio)
        return Joined(FrontierTable(shape, offsets, time, memory), a, b)
    join_cells: Callable[..., _Part] = kernels.join_cells
    join_single_points: Callable[..., tuple[IntArray, FloatArray, FloatArray, IntArray]] = kernels.join_single_points
    numbers = kernels.joint_cells(joint, keep)
    stay, rest = numbers[:2], numbers[2:]
    if single:
        rows, sides = [], []
        for side, table in enumerate((left, right)):
            starts, row = np.unique(stay[side], return_inverse=True)
            where = starts[:, None] + rest[side]
            rows.append(row)
            sides.append((where, table.time_s[where], table.memory_bytes[where]))
        tables = (*rows, *sides[0][1:], *sides[1][1:])

        def solve(first: int, last: int) -> _Part:
            counts, time, memory, g = join_single_points(*tables, *bounds, ratio, first, last)
            cell = np.repeat(np.arange(first, last), counts)
            a, b = (sides[side][0][rows[side][cell], g] for side in (0, 1))
            return _finish(first, last, (counts, time, memory, a, b), prune)
    else:
        flat = (
            *stay,
            *rest,
            *(left.offsets, right.offsets),
            np.concatenate([left.time_s, right.time_s]),
            np.concatenate([left.memory_bytes, right.memory_bytes]),
        )

        def solve(first: int, last: int) -> _Part:
            return _finish(first, last, join_cells(*flat, *bounds, ratio, first, last), prune)

    pairs = list(itertools.pairwise(cuts))
    if pool is not None and len(pairs) > 1:
        parts = list(pool.map(lambda pair: solve(*pair), pairs))
    else:
        parts = [solve(*pair) for pair in pairs]
    counts, time, memory, a, b = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return Joined(FrontierTable(shape, offsets_of(counts), time, memory), a, b)


_Part = tuple[IntArray, FloatArray, FloatArray, IntArray, IntArray]
"""Points per cell, then of each point its time, memory, and its points in both tables."""

_NO_BOUNDS = (np.empty(0), np.empty(0), np.empty(0), np.empty(0))


def _finish(first: int, last: int, part: _Part, prune: Prune | None) -> _Part:
    """Prunes the points of cells ``first`` to ``last - 1``, which are frontiers, and returns the rest."""
    counts, time, memory, a, b = part
    if prune is not None and len(time):
        cell = np.repeat(np.arange(first, last), counts)
        alive = prune(cell, time, memory)
        counts = np.bincount(cell[alive] - first, minlength=last - first)
        time, memory, a, b = time[alive], memory[alive], a[alive], b[alive]
    return counts, time, memory, a, b


def _cuts(left: FrontierTable, right: FrontierTable, cells: int, gone: int) -> list[int]:
    """Cell numbers at which to cut the work, from estimates that do not depend on the number of threads."""
    work = gone * max(1.0, left.mean_points) * max(1.0, right.mean_points)
    rows = max(1, int(_CHUNK / work))
    return [*range(0, cells, rows), cells] if cells else [0, 0]
