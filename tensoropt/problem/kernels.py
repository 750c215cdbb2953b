"""Product, union and reduce of frontier tables in one compiled loop, which never holds the candidates.

Only what searches on large tables needs this module, and it takes Numba: import it where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["join_cells", "join_single_points", "join_tables", "joint_cells"]

# Read-only arrays are what problems hold; others are accepted as such.
_I = types.Array(types.int64, 1, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_FF = types.Array(types.float64, 2, "C", readonly=True)
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_CELL, _RATIO = types.int64, types.float64


@njit(cache=True, nogil=True, inline="always")
def _beaten(stair_time: Any, stair_memory: Any, length: int, time: float, memory: float) -> bool:
    """Tells whether some point of a frontier (ascending memory) is at least as good in both costs."""
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        if stair_memory[middle] <= memory:
            low = middle + 1
        else:
            high = middle
    return low > 0 and stair_time[low - 1] <= time


@njit(cache=True, nogil=True, inline="always")
def _possible(corner_time: Any, corner_memory: Any, time: float, memory: float) -> bool:
    """Tells whether some corner (ascending memory, descending time) is neither faster nor smaller than a point."""
    low, high = 0, len(corner_memory)
    while low < high:
        middle = (low + high) >> 1
        if corner_memory[middle] < memory:
            low = middle + 1
        else:
            high = middle
    return low < len(corner_memory) and corner_time[low] >= time


@njit(_OUT_I(_I, _I), cache=True, nogil=True)
def _cell_numbers(sizes: Any, strides: Any) -> Any:
    """For every joint cell (C order over ``sizes``) the sum of its coordinates times ``strides``."""
    total = 1
    for size in sizes:
        total *= size
    out = np.zeros(total, np.int64)
    done = 1
    for axis in range(len(sizes) - 1, -1, -1):
        # The cells of the axes after this one, once for each coordinate.
        for k in range(1, sizes[axis] if total > 0 else 0):
            for i in range(done):
                out[k * done + i] = out[i] + k * strides[axis]
        done *= sizes[axis]
    return out


@njit(types.UniTuple(_OUT_I, 4)(_II, types.int64), cache=True, nogil=True)
def joint_cells(joint: Any, keep: int) -> Any:
    """The cells of two tables that joint cells lie in, as sums of two parts.

    Args:
        joint: ``(3, axes)``, of each joint axis its size, and by how much the left and the right table's cell number
            grows along it. Those that stay come first.
        keep: how many axes stay.

    Returns:
        the parts of the axes that stay, of the left and of the right table, then those of the axes that go.
    """
    sizes, left, right = joint[0], joint[1], joint[2]
    return (
        _cell_numbers(sizes[:keep], left[:keep]),
        _cell_numbers(sizes[:keep], right[:keep]),
        _cell_numbers(sizes[keep:], left[keep:]),
        _cell_numbers(sizes[keep:], right[keep:]),
    )


@njit(
    types.Tuple((_OUT_I, _OUT_F, _OUT_F, _OUT_I, _OUT_I))(
        _I, _I, _I, _I, _I, _I, _F, _F, _F, _F, _F, _F, _RATIO, _CELL, _CELL
    ),
    cache=True,
    nogil=True,
)
def join_cells(
    left_cell: Any,
    right_cell: Any,
    left_step: Any,
    right_step: Any,
    left_offsets: Any,
    right_offsets: Any,
    point_time: Any,
    point_memory: Any,
    outside_time: Any,
    outside_memory: Any,
    corner_time: Any,
    corner_memory: Any,
    ratio: float,
    first: int,
    last: int,
) -> Any:
    """The frontiers of the resulting cells ``first`` to ``last - 1``.

    Cell *c* is the union over *g* of the product of the left table's cell ``left_cell[c] + left_step[g]`` and
    the right table's ``right_cell[c] + right_step[g]``. Of equal points the first stays, in the order of *g*,
    then of the shorter frontier's points.

    Args:
        left_cell: ``(cells,)``.
        right_cell: ``(cells,)``.
        left_step: ``(gone,)``.
        right_step: ``(gone,)``.
        left_offsets: of the left table.
        right_offsets: of the right table.
        point_time: seconds, of the left table's points, then of the right table's. One array, so that the loop never
            says which it means: that would count references.
        point_memory: bytes, the same.
        outside_time: ``(cells,)``, the least time of all that is not in the cell; empty for no bounds.
        outside_memory: the same of memory.
        corner_time: a point that ends beyond all of these corners goes.
        corner_memory: ascending.
        ratio: a point goes, too, if one of no more memory is slower by at most this share of the least time that
            it can be completed to.
        first: cell.
        last: cell.

    Returns:
        the number of points per cell, then for each point its time, memory, and its points in both tables.
    """
    bounded = len(outside_time) > 0
    right_start = left_offsets[-1]
    counts = np.zeros(last - first, np.int64)
    capacity = max(16, 2 * (last - first))
    out_time = np.empty(capacity)
    out_memory = np.empty(capacity)
    out_left = np.empty(capacity, np.int64)
    out_right = np.empty(capacity, np.int64)
    done = 0
    room = 64
    # A point's number in both tables is one code: the left one's, then 32 bits of the right one's.
    stair_time, stair_memory = np.empty(room), np.empty(room)
    stair_code = np.empty(room, np.int64)
    row_time, row_memory = np.empty(room), np.empty(room)
    row_code = np.empty(room, np.int64)
    for cell in range(first, last):
        length = 0
        pivot_time, pivot_memory = np.inf, np.inf
        rest_time = outside_time[cell] if bounded else 0.0
        rest_memory = outside_memory[cell] if bounded else 0.0
        base_left, base_right = left_cell[cell], right_cell[cell]
        for g in range(len(left_step)):
            one, two = base_left + left_step[g], base_right + right_step[g]
            l0, l1 = left_offsets[one], left_offsets[one + 1]
            r0, r1 = right_start + right_offsets[two], right_start + right_offsets[two + 1]
            if l0 == l1 or r0 == r1:
                continue
            # Nothing of the product is faster or smaller than its corner.
            time = point_time[l1 - 1] + point_time[r1 - 1]
            memory = point_memory[l0] + point_memory[r0]
            slack = ratio * (time + rest_time)
            if time + slack >= pivot_time and memory >= pivot_memory:
                continue
            if length > 1 and _beaten(stair_time, stair_memory, length, time + slack, memory):
                continue
            if bounded and not _possible(corner_time, corner_memory, time + rest_time, memory + rest_memory):
                continue
            swapped = l1 - l0 > r1 - r0
            if swapped:
                a0, a1, b0, b1 = r0, r1, l0, l1
            else:
                a0, a1, b0, b1 = l0, l1, r0, r1
            need = length + b1 - b0 + 1
            if need > room:
                while room < need:
                    room *= 2
                stair_time = np.append(stair_time[:length], np.empty(room - length))
                stair_memory = np.append(stair_memory[:length], np.empty(room - length))
                stair_code = np.append(stair_code[:length], np.empty(room - length, np.int64))
                row_time, row_memory = np.empty(room), np.empty(room)
                row_code = np.empty(room, np.int64)
            for i in range(a0, a1):
                add_time, add_memory = point_time[i], point_memory[i]
                least_time, least_memory = add_time + point_time[b1 - 1], add_memory + point_memory[b0]
                if bounded and not _possible(
                    corner_time, corner_memory, least_time + rest_time, least_memory + rest_memory
                ):
                    continue
                slack = ratio * (least_time + rest_time)
                # Where the row of sums starts in the staircase.
                low, high = 0, length
                while low < high:
                    middle = (low + high) >> 1
                    if stair_memory[middle] <= least_memory:
                        low = middle + 1
                    else:
                        high = middle
                place = low
                fastest = stair_time[place - 1] if place > 0 else np.inf
                if fastest <= least_time + slack:
                    continue
                # The first sum that stays; most rows have none.
                j = b0
                while j < b1:
                    time = add_time + point_time[j]
                    memory = add_memory + point_memory[j]
                    while place < length and stair_memory[place] <= memory:
                        fastest = stair_time[place]
                        place += 1
                    if time + slack < fastest:
                        break
                    if least_time + slack >= fastest:
                        j = b1
                        break
                    # Sums get faster: jump to the next one that is faster than the staircase here.
                    step, low = 1, j
                    while low + step < b1 and add_time + point_time[low + step] + slack >= fastest:
                        low += step
                        step *= 2
                    high = min(low + step, b1 - 1)
                    while low < high:
                        middle = (low + high) >> 1
                        if add_time + point_time[middle] + slack >= fastest:
                            low = middle + 1
                        else:
                            high = middle
                    j = low
                if j >= b1:
                    continue
                # A staircase point of the same memory, no faster, is replaced.
                if place > 0 and stair_memory[place - 1] == add_memory + point_memory[j]:
                    place -= 1
                # Merge from there to the end of the row, then what is left of the staircase.
                p, n = place, 0
                fastest = stair_time[place - 1] if place > 0 else np.inf
                while j < b1:
                    time = add_time + point_time[j]
                    memory = add_memory + point_memory[j]
                    if p < length and (
                        stair_memory[p] < memory or (stair_memory[p] == memory and stair_time[p] <= time)
                    ):
                        if stair_time[p] < fastest:
                            fastest = stair_time[p]
                            row_time[n], row_memory[n] = stair_time[p], stair_memory[p]
                            row_code[n] = stair_code[p]
                            n += 1
                        p += 1
                    else:
                        if time + slack < fastest and (
                            not bounded or _possible(corner_time, corner_memory, time + rest_time, memory + rest_memory)
                        ):
                            fastest = time
                            row_time[n], row_memory[n] = time, memory
                            row_code[n] = (j << 32 | i) if swapped else (i << 32 | j)
                            n += 1
                        j += 1
                while p < length and stair_time[p] >= fastest:
                    p += 1
                shift = place + n - p
                if shift > 0:
                    for q in range(length - 1, p - 1, -1):
                        stair_time[q + shift], stair_memory[q + shift] = stair_time[q], stair_memory[q]
                        stair_code[q + shift] = stair_code[q]
                elif shift < 0:
                    for q in range(p, length):
                        stair_time[q + shift], stair_memory[q + shift] = stair_time[q], stair_memory[q]
                        stair_code[q + shift] = stair_code[q]
                for q in range(n):
                    stair_time[place + q], stair_memory[place + q] = row_time[q], row_memory[q]
                    stair_code[place + q] = row_code[q]
                length += shift
                need = length + b1 - b0 + 1
                if need > room:
                    while room < need:
                        room *= 2
                    stair_time = np.append(stair_time[:length], np.empty(room - length))
                    stair_memory = np.append(stair_memory[:length], np.empty(room - length))
                    stair_code = np.append(stair_code[:length], np.empty(room - length, np.int64))
                    row_time, row_memory = np.empty(room), np.empty(room)
                    row_code = np.empty(room, np.int64)
            if length > 0:
                pivot_time, pivot_memory = stair_time[length >> 1], stair_memory[length >> 1]
        if done + length > capacity:
            capacity = 2 * (done + length)
            out_time = np.append(out_time[:done], np.empty(capacity - done))
            out_memory = np.append(out_memory[:done], np.empty(capacity - done))
            out_left = np.append(out_left[:done], np.empty(capacity - done, np.int64))
            out_right = np.append(out_right[:done], np.empty(capacity - done, np.int64))
        for q in range(length):
            out_time[done + q], out_memory[done + q] = stair_time[q], stair_memory[q]
            out_left[done + q], out_right[done + q] = stair_code[q] >> 32, (stair_code[q] & 0xFFFFFFFF) - right_start
        counts[cell - first] = length
        done += length
    return counts, out_time[:done].copy(), out_memory[:done].copy(), out_left[:done].copy(), out_right[:done].copy()


@njit(
    types.Tuple((_OUT_I, _OUT_F, _OUT_F, _OUT_I, _OUT_I))(
        _I, _F, _F, _I, _F, _F, _II, types.int64, _F, _F, _F, _F, _RATIO
    ),
    cache=True,
    nogil=True,
)
def join_tables(
    left_offsets: Any,
    left_time: Any,
    left_memory: Any,
    right_offsets: Any,
    right_time: Any,
    right_memory: Any,
    joint: Any,
    keep: int,
    outside_time: Any,
    outside_memory: Any,
    corner_time: Any,
    corner_memory: Any,
    ratio: float,
) -> Any:
    """All cells of `join_cells` at once, from tables as they are; see there and `joint_cells`.

    Returns:
        the offsets of the cells, then for each point its time, memory, and its points in both tables.
    """
    left_cell, right_cell, left_step, right_step = joint_cells(joint, keep)
    counts, time, memory, left, right = join_cells(
        left_cell,
        right_cell,
        left_step,
        right_step,
        left_offsets,
        right_offsets,
        np.concatenate((left_time, right_time)),
        np.concatenate((left_memory, right_memory)),
        outside_time,
        outside_memory,
        corner_time,
        corner_memory,
        ratio,
        0,
        len(left_cell),
    )
    offsets = np.zeros(len(counts) + 1, np.int64)
    for cell in range(len(counts)):
        offsets[cell + 1] = offsets[cell] + counts[cell]
    return offsets, time, memory, left, right


@njit(
    types.Tuple((_OUT_I, _OUT_F, _OUT_F, _OUT_I))(_I, _I, _FF, _FF, _FF, _FF, _F, _F, _F, _F, _RATIO, _CELL, _CELL),
    cache=True,
    nogil=True,
)
def join_single_points(
    left_row: Any,
    right_row: Any,
    left_time: Any,
    left_memory: Any,
    right_time: Any,
    right_memory: Any,
    outside_time: Any,
    outside_memory: Any,
    corner_time: Any,
    corner_memory: Any,
    ratio: float,
    first: int,
    last: int,
) -> Any:
    """As `join_cells` for tables of one point per cell, laid out as rows over what goes.

    Returns:
        the number of points per cell, then for each point its time, memory, and its *g*.
    """
    bounded = len(outside_time) > 0
    gone = left_time.shape[1]
    counts = np.zeros(last - first, np.int64)
    capacity = max(16, 2 * (last - first))
    out_time, out_memory, out_gone = np.empty(capacity), np.empty(capacity), np.empty(capacity, np.int64)
    stair_time, stair_memory = np.empty(gone + 1), np.empty(gone + 1)
    stair_gone = np.empty(gone + 1, np.int64)
    done = 0
    for cell in range(first, last):
        one_time, one_memory = left_time[left_row[cell]], left_memory[left_row[cell]]
        two_time, two_memory = right_time[right_row[cell]], right_memory[right_row[cell]]
        # The first staircase point is the fastest of all: what is larger cannot stay.
        least = np.inf
        for g in range(gone):
            least = min(least, one_time[g] + two_time[g])
        length = 0
        pivot_time, pivot_memory = np.inf, np.inf
        if not bounded:
            for g in range(gone):
                if one_time[g] + two_time[g] == least:
                    pivot_memory = min(pivot_memory, one_memory[g] + two_memory[g])
        ceiling = pivot_memory
        for g in range(gone):
            memory = one_memory[g] + two_memory[g]
            if memory > ceiling:
                continue
            time = one_time[g] + two_time[g]
            slack = ratio * (time + (outside_time[cell] if bounded else 0.0))
            if length > 0 and time + slack >= pivot_time and memory >= pivot_memory:
                continue
            if length > 0 and _beaten(stair_time, stair_memory, length, time + slack, memory):
                continue
            if bounded and not _possible(
                corner_time, corner_memory, time + outside_time[cell], memory + outside_memory[cell]
            ):
                continue
            low, high = 0, length
            while low < high:
                middle = (low + high) >> 1
                if stair_memory[middle] < memory:
                    low = middle + 1
                else:
                    high = middle
            stop = low
            while stop < length and stair_time[stop] >= time:
                stop += 1
            shift = low + 1 - stop
            if shift > 0:
                for q in range(length - 1, stop - 1, -1):
                    stair_time[q + 1], stair_memory[q + 1], stair_gone[q + 1] = (
                        stair_time[q],
                        stair_memory[q],
                        stair_gone[q],
                    )
            elif shift < 0:
                for q in range(stop, length):
                    stair_time[q + shift], stair_memory[q + shift], stair_gone[q + shift] = (
                        stair_time[q],
                        stair_memory[q],
                        stair_gone[q],
                    )
            stair_time[low], stair_memory[low], stair_gone[low] = time, memory, g
            length += shift
            pivot_time, pivot_memory = stair_time[length >> 1], stair_memory[length >> 1]
        if done + length > capacity:
            capacity = 2 * (done + length)
            out_time = np.append(out_time[:done], np.empty(capacity - done))
            out_memory = np.append(out_memory[:done], np.empty(capacity - done))
            out_gone = np.append(out_gone[:done], np.empty(capacity - done, np.int64))
        for q in range(length):
            out_time[done + q], out_memory[done + q], out_gone[done + q] = stair_time[q], stair_memory[q], stair_gone[q]
        counts[cell - first] = length
        done += length
    return counts, out_time[:done].copy(), out_memory[:done].copy(), out_gone[:done].copy()
