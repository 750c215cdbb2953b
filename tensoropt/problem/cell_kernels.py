"""Compiled loops over the cells of frontier tables, one table at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["cell_frontiers", "fold_cells", "take_cells"]

# Read-only arrays are what problems hold; others are accepted as such.
_I = types.Array(types.int64, 1, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_FF = types.Array(types.float64, 2, "C", readonly=True)
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")


@njit(types.Tuple((_OUT_I, _OUT_I))(_FF, _FF), cache=True, nogil=True)
def cell_frontiers(time: Any, memory: Any) -> Any:
    """Algorithm 1 on each row, of alternatives; of equal ones the first stays, of infinite cost none.

    Args:
        time: ``(cells, alternatives)``.
        memory: the same shape.

    Returns:
        the number of points per cell, and for each point its flat index, in ascending memory within a cell.
    """
    cells, alternatives = time.shape
    counts = np.zeros(cells, np.int64)
    kept = np.empty(cells * alternatives, np.int64)
    done = 0
    for cell in range(cells):
        length = 0
        for p in range(alternatives):
            if not (time[cell, p] < np.inf and memory[cell, p] < np.inf):
                continue
            # Insertion into the staircase that ``kept`` holds from ``done`` on.
            start = length
            while start > 0 and memory[cell, kept[done + start - 1]] > memory[cell, p]:
                start -= 1
            if start > 0 and time[cell, kept[done + start - 1]] <= time[cell, p]:
                continue
            if start > 0 and memory[cell, kept[done + start - 1]] == memory[cell, p]:
                start -= 1
            stop = start
            while stop < length and time[cell, kept[done + stop]] >= time[cell, p]:
                stop += 1
            if stop == start:
                for q in range(length, start, -1):
                    kept[done + q] = kept[done + q - 1]
            else:
                for q in range(stop, length):
                    kept[done + q + start + 1 - stop] = kept[done + q]
            kept[done + start] = p
            length += start + 1 - stop
        for q in range(length):
            kept[done + q] += cell * alternatives
        counts[cell] = length
        done += length
    return counts, kept[:done].copy()


@njit(types.Tuple((_OUT_I, _OUT_F, _OUT_F, _OUT_I))(_I, _F, _F, _I), cache=True, nogil=True)
def take_cells(offsets: Any, time: Any, memory: Any, cells: Any) -> Any:
    """The points of some cells, cell after cell.

    Args:
        offsets: of all cells.
        time: of each point.
        memory: of each point.
        cells: which ones.

    Returns:
        the offsets of the chosen cells, then for each of their points its time, memory, and number.
    """
    chosen = np.empty(len(cells) + 1, np.int64)
    chosen[0] = 0
    for i in range(len(cells)):
        chosen[i + 1] = chosen[i] + offsets[cells[i] + 1] - offsets[cells[i]]
    points = np.empty(chosen[-1], np.int64)
    out_time, out_memory = np.empty(chosen[-1]), np.empty(chosen[-1])
    for i in range(len(cells)):
        first = offsets[cells[i]] - chosen[i]
        for point in range(chosen[i], chosen[i + 1]):
            points[point] = first + point
            out_time[point], out_memory[point] = time[first + point], memory[first + point]
    return chosen, out_time, out_memory, points


@njit(types.Tuple((_OUT_I, _OUT_F, _OUT_F, _OUT_I, _OUT_I))(_I, _F, _F, types.int64), cache=True, nogil=True)
def fold_cells(offsets: Any, time: Any, memory: Any, count: int) -> Any:
    """The sum of a table with itself, where no cell has more than two points.

    Args:
        offsets: of the cells.
        time: of each point.
        memory: of each point.
        count: how many times the table is in the sum.

    Returns:
        the number of points per cell, then for each point its time, memory, the first point of the cell, and how many
        of the tables take the second one instead.
    """
    cells = len(offsets) - 1
    counts = np.empty(cells, np.int64)
    for cell in range(cells):
        length = offsets[cell + 1] - offsets[cell]
        counts[cell] = length if length < 2 else count + 1
    most = counts.sum()
    out_time, out_memory = np.empty(most), np.empty(most)
    first, second = np.empty(most, np.int64), np.empty(most, np.int64)
    done = 0
    for cell in range(cells):
        at = offsets[cell]
        for taken in range(counts[cell]):
            total_time, total_memory = time[at] * (count - taken), memory[at] * (count - taken)
            if taken > 0:
                total_time += time[at + 1] * taken
                total_memory += memory[at + 1] * taken
                # Costs that are off the grid may round to what was there before.
                if total_time >= out_time[done - 1] or total_memory <= out_memory[done - 1]:
                    counts[cell] -= 1
                    continue
            out_time[done], out_memory[done] = total_time, total_memory
            first[done], second[done] = at, taken
            done += 1
    return counts, out_time[:done], out_memory[:done], first[:done], second[:done]
