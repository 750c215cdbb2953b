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

from tensoropt.search.frontier import offsets_of, ranges, reduce_segments, thin_segments
from tensoropt.search.problem import FloatArray, IntArray

__all__ = ["FrontierTable", "Joined", "join", "table_from_costs"]

_CHUNK = 2_000_000
"""Candidate tuples made at once: about 100 MB of temporaries, and small enough to keep two threads busy."""

Prune = Callable[[IntArray, FloatArray, FloatArray], np.ndarray]
"""(cell of each point, time, memory) -> a mask of the points to keep."""


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
        return math.prod(self.shape)

    @property
    def points(self) -> int:
        """The number of points in all cells."""
        return len(self.time_s)

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
        counts = self.counts[cells]
        points = ranges(self.offsets[cells], counts)
        return FrontierTable(shape, offsets_of(counts), self.time_s[points], self.memory_bytes[points]), points


def table_from_costs(
    time_s: FloatArray,
    memory_bytes: FloatArray,
    segment: IntArray | None = None,
    shape: tuple[int, ...] | None = None,
) -> tuple[FrontierTable, IntArray]:
    """The table of cost arrays whose last axis is alternatives.

    Args:
        time_s: shape ``(*cells, P)``; +inf where nothing exists.
        memory_bytes: the same shape.
        segment: ``(K,)``, only for arrays of shape ``(K, P)``: the cell into which each configuration goes,
            when several share one (union). Cells are ``0..max(segment)``.
        shape: the table's shape; by default that of the arrays without alternatives.

    Returns:
        the table, and the flat index into the cost arrays of each of its points.
    """
    alternatives = time_s.shape[-1]
    flat_time, flat_memory = time_s.reshape(-1), memory_bytes.reshape(-1)
    if segment is None:
        order = np.arange(flat_time.size)
        offsets = np.arange(0, flat_time.size + 1, alternatives)
        shape = time_s.shape[:-1] if shape is None else shape
    else:
        order = (np.argsort(segment, kind="stable")[:, None] * alternatives + np.arange(alternatives)).reshape(-1)
        counts = np.bincount(segment) * alternatives
        offsets = offsets_of(counts)
        shape = (len(counts),) if shape is None else shape
    kept, offsets = reduce_segments(offsets, flat_time[order], flat_memory[order])
    source = order[kept]
    return FrontierTable(shape, offsets, flat_time[source], flat_memory[source]), source


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


def _cell_index(sizes: Sequence[int], axes: Sequence[int], shape: Sequence[int]) -> IntArray:
    """For every joint cell (C order over ``sizes``) its share of the cell number in a table that has
    ``axes``."""
    total = np.zeros((1,) * len(sizes), np.int64)
    stride = 1
    for axis, size in zip(reversed(axes), reversed(shape), strict=True):
        if 0 <= axis < len(sizes):
            along = [1] * len(sizes)
            along[axis] = size
            total = total + (np.arange(size) * stride).reshape(along)
        stride *= size
    return np.broadcast_to(total, tuple(sizes)).reshape(-1)


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
        ratio: > 0 thins every resulting frontier; see `thin_segments`.
        prune: drops resulting points that cannot be part of any frontier that is looked for.
        pool: threads to share the cells among. The result does not depend on it.

    Returns:
        a table of shape ``sizes[:keep]`` with back-pointers.
    """
    shape, gone = tuple(sizes[:keep]), math.prod(sizes[keep:])
    cells = math.prod(shape)
    # A joint cell's number in a table is a sum: a part from the axes that stay, and one from those that go.
    stay = [_cell_index(shape, axes, table.shape) for table, axes in ((left, left_axes), (right, right_axes))]
    rest = [
        _cell_index(sizes[keep:], [axis - keep for axis in axes], table.shape)
        for table, axes in ((left, left_axes), (right, right_axes))
    ]
    left_counts, right_counts = left.counts, right.counts
    work = np.zeros(cells, np.int64)
    rows = max(1, _CHUNK // max(1, gone))
    for start in range(0, cells, rows):
        one, two = (stay[side][start : start + rows, None] + rest[side] for side in (0, 1))
        work[start : start + rows] = (left_counts[one] * right_counts[two]).sum(axis=1)

    def solve(first: int, last: int) -> tuple[IntArray, FloatArray, FloatArray, IntArray, IntArray]:
        one, two = ((stay[side][first:last, None] + rest[side]).reshape(-1) for side in (0, 1))
        a, b, offsets = _candidates(left, one, right, two, work[first:last])
        time, memory = left.time_s[a] + right.time_s[b], left.memory_bytes[a] + right.memory_bytes[b]
        kept, offsets = reduce_segments(offsets, time, memory)
        time, memory = time[kept], memory[kept]
        if prune is not None:
            cell = np.repeat(np.arange(first, last), np.diff(offsets))
            alive = prune(cell, time, memory)
            kept, time, memory = kept[alive], time[alive], memory[alive]
            offsets = offsets_of(np.bincount(cell[alive] - first, minlength=last - first))
        if ratio > 0.0:
            thin, offsets = thin_segments(offsets, time, ratio)
            kept, time, memory = kept[thin], time[thin], memory[thin]
        return np.diff(offsets), time, memory, a[kept], b[kept]

    bounds = _chunks(work)
    pairs = list(itertools.pairwise(bounds))
    if pool is not None and len(pairs) > 1:
        parts = list(pool.map(lambda pair: solve(*pair), pairs))
    else:
        parts = [solve(*pair) for pair in pairs]
    counts, time, memory, a, b = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Joined(FrontierTable(shape, offsets_of(counts), time, memory), a, b)


def _chunks(work: IntArray) -> list[int]:
    """Cell numbers at which to cut, so that each piece has about `_CHUNK` candidates (a cell is never
    cut)."""
    total = np.cumsum(work)
    bounds, done = [0], 0
    while bounds[-1] < len(work):
        cut = int(np.searchsorted(total, done + _CHUNK, side="right"))
        cut = min(max(cut, bounds[-1] + 1), len(work))
        done = int(total[cut - 1])
        bounds.append(cut)
    return bounds


def _candidates(
    left: FrontierTable, one: IntArray, right: FrontierTable, two: IntArray, work: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """All pairs of points: indices into both tables and the offsets of each resulting cell."""
    n, m = left.counts[one], right.counts[two]
    offsets = offsets_of(work)
    if n.size and n.min() == n.max() == 1 == m.min() == m.max():
        return left.offsets[one], right.offsets[two], offsets
    if m.size == 0 or m.max() <= 1:
        n = np.where(m > 0, n, 0)
        return ranges(left.offsets[one], n), np.repeat(right.offsets[two], n), offsets
    if n.max() <= 1:
        m = np.where(n > 0, m, 0)
        return np.repeat(left.offsets[one], m), ranges(right.offsets[two], m), offsets
    # First every left point of a pair of cells, then for each of them every right point.
    n = np.where(m > 0, n, 0)
    a = ranges(left.offsets[one], n)
    times = np.repeat(m, n)
    b = ranges(np.repeat(right.offsets[two], n), times)
    return np.repeat(a, times), b, offsets
