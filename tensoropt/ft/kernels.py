"""Compiled loops of the bounds: messages over weighted costs, and the test of partial points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["add", "possible_points", "price", "sweep", "weigh", "worst"]

_I = types.Array(types.int64, 1, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_FF = types.Array(types.float64, 2, "C", readonly=True)
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_OUT_B = types.Array(types.boolean, 1, "C")
_NUMBER, _INT = types.float64, types.int64


@njit(types.void(_I, _F, _F, _NUMBER, _NUMBER, _OUT_F), cache=True, nogil=True)
def weigh(offsets: Any, time: Any, memory: Any, time_weight: float, memory_weight: float, out: Any) -> None:
    """The least weighted cost of each cell, +inf where it is empty."""
    for cell in range(len(offsets) - 1):
        least = np.inf
        for point in range(offsets[cell], offsets[cell + 1]):
            least = min(least, time[point] * time_weight + memory[point] * memory_weight)
        out[cell] = least


@njit(types.void(_I, _I, _I, _F, _OUT_F), cache=True, nogil=True)
def add(starts: Any, part_starts: Any, parts: Any, tables: Any, out: Any) -> None:
    """Adds up tables.

    Args:
        starts: where each sum starts in ``out``, then where the last one ends.
        part_starts: where the parts of each sum start in ``parts``, then where the last one's end.
        parts: where each part starts in ``tables``.
        tables: one after another.
        out: zeros, to which the parts are added.
    """
    for number in range(len(starts) - 1):
        first, length = starts[number], starts[number + 1] - starts[number]
        for part in range(part_starts[number], part_starts[number + 1]):
            at = parts[part]
            for i in range(length):
                out[first + i] += tables[at + i]


@njit(cache=True, nogil=True, inline="always")
def _down(table: Any, start: int, rows: int, columns: int, base: Any, out: Any, at: int) -> None:
    """``out[l] = min over k of base[k] + table[k, l]``."""
    for column in range(columns):
        out[at + column] = np.inf
    for row in range(rows):
        add = base[row]
        if add < np.inf:
            line = start + row * columns
            for column in range(columns):
                value = add + table[line + column]
                out[at + column] = value if value < out[at + column] else out[at + column]


@njit(cache=True, nogil=True, inline="always", fastmath={"nnan", "nsz", "reassoc"})
def _up(table: Any, start: int, rows: int, columns: int, base: Any, out: Any, at: int) -> None:
    """``out[k] = min over l of base[l] + table[k, l]``."""
    for row in range(rows):
        line = start + row * columns
        least = 1e308
        for column in range(columns):
            value = base[column] + table[line + column]
            least = value if value < least else least
        out[at + row] = least if least < 1e307 else np.inf


@njit(
    _NUMBER(_I, _I, _I, _I, _II, _I, _F, _I, _F, _II, _OUT_F, _OUT_F, _NUMBER, _OUT_F, _OUT_F, _I, _OUT_I),
    cache=True,
    nogil=True,
)
def sweep(
    order: Any,
    sizes: Any,
    starts: Any,
    around: Any,
    ends: Any,
    table_start: Any,
    tables: Any,
    unary_start: Any,
    unary: Any,
    message_start: Any,
    messages: Any,
    shares: Any,
    bound_before: float,
    left: Any,
    least_with: Any,
    rank: Any,
    labels: Any,
) -> float:
    """One pass of sequential tree-reweighted message passing (Kolmogorov, PAMI 2006) over all variables.

    Args:
        order: the variables in the order of this pass.
        sizes: configurations of each variable.
        starts: where each variable's part of ``around`` starts.
        around: numbers of the edges at each variable.
        ends: ``(edges, 2)``.
        table_start: where each edge's weighted table starts in ``tables``.
        tables: rows are the first end's configurations.
        unary_start: where each variable's part of every array over (variable, configuration) starts.
        unary: weighted costs of each configuration.
        message_start: ``(edges, 2)``, where the messages into both ends start.
        messages: is changed.
        shares: is set: what each edge costs at least, in one part for each end.
        bound_before: of the pass before, in the other direction.
        left: is set: each variable's cost that no edge has taken.
        least_with: is raised to the least cost of a strategy with each configuration.
        rank: each variable's place in ``order``.
        labels: is set to a strategy, configuration by configuration the best after those before it.

    Returns:
        a lower bound of every strategy's cost, the sum of the minima of ``left``.
    """
    bound = 0.0
    widest = 0
    for v in range(len(sizes)):
        widest = max(widest, sizes[v])
    belief, base, choice = np.empty(widest), np.empty(widest), np.empty(widest)
    for v in order:
        size, first = sizes[v], unary_start[v]
        for k in range(size):
            belief[k] = unary[first + k]
            choice[k] = unary[first + k]
        later = earlier = 0
        for i in range(starts[v], starts[v + 1]):
            edge = around[i]
            side = 0 if ends[edge, 0] == v else 1
            other = ends[edge, 1 - side]
            at = message_start[edge, side]
            for k in range(size):
                belief[k] += messages[at + k]
            if rank[other] > rank[v]:
                later += 1
                for k in range(size):
                    choice[k] += messages[at + k]
            else:
                earlier += 1
                line = table_start[edge]
                if side == 0:
                    for k in range(size):
                        choice[k] += tables[line + k * sizes[other] + labels[other]]
                else:
                    line += labels[other] * size
                    for k in range(size):
                        choice[k] += tables[line + k]
        least, best, label = np.inf, np.inf, 0
        for k in range(size):
            least = min(least, belief[k])
            if choice[k] < best:
                best, label = choice[k], k
        labels[v] = label
        share = 1.0 / max(1, later, earlier)
        rest = 1.0 - later * share
        if rest < 1e-9:
            rest = 0.0
        bound += rest * least
        for k in range(size):
            left[first + k] = rest * belief[k] if belief[k] < np.inf else np.inf
            least_with[first + k] = max(least_with[first + k], bound_before + (belief[k] - least))
        for i in range(starts[v], starts[v + 1]):
            edge = around[i]
            side = 0 if ends[edge, 0] == v else 1
            other = ends[edge, 1 - side]
            at, to = message_start[edge, side], message_start[edge, 1 - side]
            if rank[other] < rank[v]:
                for k in range(size):
                    shares[at + k] = messages[at + k]
                continue
            for k in range(size):
                base[k] = share * belief[k] - messages[at + k] if belief[k] < np.inf else np.inf
                shares[at + k] = -base[k]
            if side == 0:
                _down(tables, table_start[edge], size, sizes[other], base, messages, to)
            else:
                _up(tables, table_start[edge], sizes[other], size, base, messages, to)
    return bound


@njit(
    types.UniTuple(_NUMBER, 2)(_II, _II, _I, _I, _F, _F, _I, _NUMBER, _NUMBER, _OUT_I),
    cache=True,
    nogil=True,
)
def price(
    scopes: Any,
    strides: Any,
    table_cell: Any,
    offsets: Any,
    time: Any,
    memory: Any,
    labels: Any,
    time_weight: float,
    memory_weight: float,
    points: Any,
) -> Any:
    """Time and memory of a strategy, of each table the point of least weighted cost; +inf if impossible.

    Args:
        scopes: ``(tables, 2)`` variables, -1 for none.
        strides: ``(tables, 2)``.
        table_cell: the first cell of each table.
        offsets: of all cells of distinct tables, one after another.
        time: of all points.
        memory: of all points.
        labels: the configuration of each variable.
        time_weight: per second.
        memory_weight: per byte.
        points: ``(tables,)``, is set to the point taken of each.
    """
    total_time = total_memory = 0.0
    for f in range(len(scopes)):
        cell = 0
        for axis in range(2):
            if scopes[f, axis] >= 0:
                cell += labels[scopes[f, axis]] * strides[f, axis]
        at = table_cell[f] + cell
        least, best = np.inf, -1
        for point in range(offsets[at], offsets[at + 1]):
            value = time[point] * time_weight + memory[point] * memory_weight
            if value < least:
                least, best = value, point
        if best < 0:
            return np.inf, np.inf
        points[f] = best - offsets[table_cell[f]]
        total_time += time[best]
        total_memory += memory[best]
    return total_time, total_memory


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


@njit(
    types.void(_FF, types.Array(types.boolean, 2, "C", readonly=True), _INT, types.Array(types.float64, 2, "C")),
    cache=True,
    nogil=True,
)
def worst(table: Any, wanted: Any, columns: int, total: Any) -> None:
    """Adds to ``total[k, j]`` the most that row *k* exceeds row *j* by, where it is wanted.

    Args:
        table: ``(rows, columns)``, +inf where impossible. What is impossible for both says nothing.
        wanted: ``(rows, rows)``.
        columns: look at so many columns only, spread evenly: the result is then at most the true one.
        total: ``(rows, rows)``, is changed.
    """
    rows, width = table.shape
    step = max(1, width // columns)
    for k in range(rows):
        for j in range(rows):
            if not wanted[k, j]:
                continue
            most = -np.inf
            for column in range(0, width, step):
                one, other = table[k, column], table[j, column]
                if one < np.inf:
                    most = max(most, one - other)
                elif other < np.inf:
                    most = np.inf
                    break
            total[k, j] += most
