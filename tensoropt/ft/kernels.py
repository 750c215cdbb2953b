"""Compiled loops of the bounds' test of partial points, and of comparing configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["equal_rows", "possible_points", "worst_points"]

_I = types.Array(types.int64, 1, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_FF = types.Array(types.float64, 2, "C", readonly=True)
_BB = types.Array(types.boolean, 2, "C", readonly=True)
_OUT_FF = types.Array(types.float64, 2, "C")
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_OUT_B = types.Array(types.boolean, 1, "C")
_NUMBER, _INT = types.float64, types.int64


@njit(_OUT_I(_FF, _I), cache=True, nogil=True)
def equal_rows(table: Any, classes: Any) -> Any:
    """Divides classes of rows further, into those that are equal.

    Args:
        table: ``(rows, columns)``.
        classes: of each row.

    Returns:
        the classes, numbered by first rows.
    """
    rows, columns = table.shape
    found = np.empty(rows, np.int64)
    first = np.empty(rows, np.int64)
    count = 0
    for row in range(rows):
        found[row] = count
        for number in range(count):
            other = first[number]
            if classes[other] != classes[row]:
                continue
            column = 0
            while column < columns and table[row, column] == table[other, column]:
                column += 1
            if column == columns:
                found[row] = number
                break
        if found[row] == count:
            first[count] = row
            count += 1
    return found


@njit(_INT(_F, _INT, _INT, _NUMBER), cache=True, nogil=True, inline="always")
def _first_at_least(array: Any, low: int, high: int, value: float) -> int:
    """The first place of an ascending array, from ``low`` on, that is not below ``value``."""
    while low < high:
        middle = (low + high) >> 1
        if array[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(
    _OUT_B(_I, _F, _F, _II, _FF, _F, _F, _F, _F, _F, _FF, _I),
    cache=True,
    nogil=True,
)
def possible_points(
    cell: Any,
    time: Any,
    memory: Any,
    parts: Any,
    outside: Any,
    time_weights: Any,
    memory_weights: Any,
    corner_time: Any,
    corner_memory: Any,
    bases: Any,
    walls: Any,
    lowest: Any,
) -> Any:
    """A mask of the points that some completion may bring below a corner, going by all pairs of weights.

    Args:
        cell: of each point.
        time: of each point.
        memory: of each point.
        parts: per axis of the table (stride, size, where its part of ``outside`` starts).
        outside: per pair of weights, for each configuration of each axis its share of the least cost of all that
            is not in the table.
        time_weights: of each pair; first that of time alone, then of memory alone.
        memory_weights: of each pair.
        corner_time: descending.
        corner_memory: ascending.
        bases: per pair of weights, what all cells have in common of the least cost outside.
        walls: per pair of weights, the running maxima of the corners' costs from the lowest outwards: those to its
            left as they stand, those from it on to its right.
        lowest: the corner of least cost of each pair of weights.
    """
    count, corners = len(cell), len(corner_time)
    mask = np.zeros(count, np.bool_)
    weights = len(time_weights)
    rest = np.empty(weights)
    before = -1
    for point in range(count):
        if cell[point] != before:
            before = cell[point]
            for w in range(weights):
                rest[w] = bases[w]
            for axis in range(len(parts)):
                at = parts[axis, 2] + (before // parts[axis, 0]) % parts[axis, 1]
                for w in range(weights):
                    rest[w] += outside[w, at]
        end_time = time[point] * time_weights[0] + memory[point] * memory_weights[0] + rest[0]
        end_memory = time[point] * time_weights[1] + memory[point] * memory_weights[1] + rest[1]
        # By both costs apart: from the first corner that is large enough to the last that is slow enough.
        cursor = _first_at_least(corner_memory, 0, corners, end_memory)
        low, high = 0, corners
        while low < high:
            middle = (low + high) >> 1
            if corner_time[middle] >= end_time:
                low = middle + 1
            else:
                high = middle
        last = low - 1
        w = 2
        while cursor <= last and w < weights:
            bound = time[point] * time_weights[w] + memory[point] * memory_weights[w] + rest[w]
            # Corners whose cost is below the bound are out of reach, from the lowest outwards without a gap. Mostly
            # neither the first nor the last that is left is one of them.
            at = lowest[w]
            if walls[w, at] < bound:
                if walls[w, cursor] < bound:
                    low, high = max(cursor, at) + 1, last + 1
                    while low < high:  # to the right walls ascend
                        middle = (low + high) >> 1
                        if walls[w, middle] < bound:
                            low = middle + 1
                        else:
                            high = middle
                    cursor = low
                if cursor <= last and walls[w, last] < bound:
                    low, high = cursor, min(last, at)
                    while low < high:  # to the left they descend
                        middle = (low + high) >> 1
                        if walls[w, middle] < bound:
                            high = middle
                        else:
                            low = middle + 1
                    last = low - 1
            w += 1
        mask[point] = cursor <= last
    return mask


@njit(types.void(_I, _F, _F, _II, _I, _I, _BB, _INT, _OUT_FF, _OUT_FF), cache=True, nogil=True)
def worst_points(
    offsets: Any,
    time: Any,
    memory: Any,
    cells: Any,
    rows: Any,
    columns: Any,
    wanted: Any,
    sample: int,
    total_time: Any,
    total_memory: Any,
) -> None:
    """Adds to totals at ``[k, j]`` the most that row *k* exceeds row *j* by, where it is wanted.

    Each point of row *j* is compared with the largest one of row *k* that is no larger than it, or with the smallest.
    What is impossible for both says nothing.

    Args:
        offsets: of the table's cells.
        time: of each point.
        memory: of each point.
        cells: ``(all rows, all columns)``.
        rows: to be compared.
        columns: to be compared in.
        wanted: ``(rows, rows)``.
        sample: look at so many columns only, spread evenly: the result is then at most the true one.
        total_time: ``(rows, rows)``, is changed.
        total_memory: ``(rows, rows)``, is changed.
    """
    step = max(1, len(columns) // sample)
    for k in range(len(rows)):
        for j in range(len(rows)):
            if not wanted[k, j]:
                continue
            slower, larger = -np.inf, -np.inf
            for place in range(0, len(columns), step):
                one, other = cells[rows[k], columns[place]], cells[rows[j], columns[place]]
                p, last = offsets[one], offsets[one + 1]
                if offsets[other] < offsets[other + 1] and p == last:
                    slower, larger = np.inf, np.inf
                    break
                for q in range(offsets[other], offsets[other + 1]):
                    while p + 1 < last and memory[p + 1] <= memory[q]:
                        p += 1
                    slower = max(slower, time[p] - time[q])
                    larger = max(larger, memory[p] - memory[q])
            total_time[k, j] += slower
            total_memory[k, j] += larger
