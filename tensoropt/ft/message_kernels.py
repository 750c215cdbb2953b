"""Compiled loops of message passing over weighted costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["pass_messages"]

_I = types.Array(types.int64, 1, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")
_NUMBER, _INT = types.float64, types.int64


@njit(types.void(_I, _F, _F, _NUMBER, _NUMBER, _OUT_F), cache=True, nogil=True)
def _weigh(offsets: Any, time: Any, memory: Any, time_weight: float, memory_weight: float, out: Any) -> None:
    """The least weighted cost of each cell, +inf where it is empty."""
    for cell in range(len(offsets) - 1):
        least = np.inf
        for point in range(offsets[cell], offsets[cell + 1]):
            least = min(least, time[point] * time_weight + memory[point] * memory_weight)
        out[cell] = least


@njit(types.void(_I, _I, _I, _F, _F, _OUT_F), cache=True, nogil=True)
def _add(starts: Any, part_starts: Any, parts: Any, counts: Any, tables: Any, out: Any) -> None:
    """Adds up tables.

    Args:
        starts: where each sum starts in ``out``, then where the last one ends.
        part_starts: where the parts of each sum start in ``parts``, then where the last one's end.
        parts: where each part starts in ``tables``.
        counts: how often it is in the sum.
        tables: one after another.
        out: zeros, to which the parts are added.
    """
    for number in range(len(starts) - 1):
        first, length = starts[number], starts[number + 1] - starts[number]
        for part in range(part_starts[number], part_starts[number + 1]):
            table, total, count = tables[parts[part] :], out[first : first + length], counts[part]
            for i in range(length):
                total[i] += count * table[i]


# Slices, since an index that might be negative keeps a loop from being vectorized.


@njit(cache=True, nogil=True, inline="always")
def _down(table: Any, start: int, rows: int, columns: int, base: Any, out: Any, at: int) -> None:
    """``out[l] = min over k of base[k] + table[k, l]``."""
    least = out[at : at + columns]
    least[:] = np.inf
    for row in range(rows):
        add = base[row]
        if add < np.inf:
            line = table[start + row * columns : start + (row + 1) * columns]
            for column in range(columns):
                value = add + line[column]
                least[column] = value if value < least[column] else least[column]


@njit(cache=True, nogil=True, inline="always")
def _up(table: Any, start: int, rows: int, columns: int, base: Any, out: Any, at: int) -> None:
    """``out[k] = min over l of base[l] + table[k, l]``."""
    add, least = base[:columns], out[at : at + rows]
    row = 0
    while row + 4 <= rows:  # a minimum waits for the one before; four rows do so side by side
        line = table[start + row * columns : start + (row + 4) * columns]
        one, two, three, four = line[:columns], line[columns:], line[2 * columns :], line[3 * columns :]
        a = b = c = d = np.inf
        for column in range(columns):
            more = add[column]
            value = more + one[column]
            a = value if value < a else a
            value = more + two[column]
            b = value if value < b else b
            value = more + three[column]
            c = value if value < c else c
            value = more + four[column]
            d = value if value < d else d
        least[row], least[row + 1], least[row + 2], least[row + 3] = a, b, c, d
        row += 4
    while row < rows:
        line = table[start + row * columns : start + (row + 1) * columns]
        a = np.inf
        for column in range(columns):
            value = add[column] + line[column]
            a = value if value < a else a
        least[row] = a
        row += 1


@njit(
    _NUMBER(_I, _I, _I, _I, _II, _I, _F, _I, _F, _II, _OUT_F, _OUT_F, _NUMBER, _OUT_F, _OUT_F, _I, _OUT_I),
    cache=True,
    nogil=True,
)
def _sweep(
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
    types.UniTuple(_NUMBER, 2)(_II, _II, _I, _F, _I, _F, _F, _I, _NUMBER, _NUMBER, _OUT_I),
    cache=True,
    nogil=True,
)
def _price(
    scopes: Any,
    strides: Any,
    table_cell: Any,
    copies: Any,
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
        copies: how often each table is there.
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
        total_time += copies[f] * time[best]
        total_memory += copies[f] * memory[best]
    return total_time, total_memory


@njit(
    types.UniTuple(_NUMBER, 3)(
        *(_NUMBER, _NUMBER, _I, _F, _F),
        *(_I, _I, _I, _F),
        *(_II, _II, _I, _I, _I, _II, _I, _I, _II),
        *(_II, _II, _I, _F),
        *(_INT, _NUMBER, _NUMBER),
        *(_OUT_F, _OUT_F, _OUT_F, _OUT_F, _OUT_F, _OUT_I, _OUT_I),
    ),
    cache=True,
    nogil=True,
)
def pass_messages(
    time_weight: float,
    memory_weight: float,
    offsets: Any,
    time: Any,
    memory: Any,
    sum_starts: Any,
    part_starts: Any,
    parts: Any,
    counts: Any,
    orders: Any,
    ranks: Any,
    sizes: Any,
    starts: Any,
    around: Any,
    ends: Any,
    table_start: Any,
    unary_start: Any,
    message_start: Any,
    scopes: Any,
    strides: Any,
    table_cell: Any,
    copies: Any,
    most: int,
    close: float,
    gain: float,
    messages: Any,
    shares: Any,
    left: Any,
    least_with: Any,
    unary: Any,
    labels: Any,
    points: Any,
) -> Any:
    """Passes forth and back until they gain no more; in one loop, so that threads do it at once for several weights.

    Args:
        time_weight: per second.
        memory_weight: per byte.
        offsets: see `_price`, as are ``time``, ``memory``, ``scopes``, ``strides``, ``table_cell`` and ``copies``.
        time: of all points.
        memory: of all points.
        sum_starts: see `_add`, as are ``part_starts``, ``parts`` and ``counts``. First those of variables.
        part_starts: of sums.
        parts: of sums.
        counts: of parts.
        orders: ``(2, variables)``, those of passes forth and back.
        ranks: ``(2, variables)``, each variable's place in them.
        sizes: see `_sweep`, as are all up to ``message_start``.
        starts: of ``around``.
        around: edges at variables.
        ends: of edges.
        table_start: of edges' sums.
        unary_start: of variables.
        message_start: of edges.
        scopes: of tables.
        strides: of tables.
        table_cell: of tables.
        copies: of tables.
        most: passes.
        close: relative distance of bound and strategy at which passes end.
        gain: relative gain of the bound below which they end.
        messages: to start from; is changed.
        shares: is set, see `_sweep`; so are ``left`` and ``least_with``, which starts at -inf.
        left: per configuration.
        least_with: per configuration.
        unary: is set to the weighted costs of configurations.
        labels: is set to the best strategy that was found.
        points: is set to the point that it takes of each table.

    Returns:
        a lower bound, and time and memory of the best strategy; +inf if none was found.
    """
    tables = np.empty(len(offsets) - 1)
    _weigh(offsets, time, memory, time_weight, memory_weight, tables)
    sums = np.zeros(sum_starts[-1])
    _add(sum_starts, part_starts, parts, counts, tables, sums)
    unary[:] = sums[: len(unary)]
    tried, taken = np.zeros(len(labels), np.int64), np.zeros(len(points), np.int64)
    bound = before = -np.inf
    value = best_time = best_memory = np.inf
    reached_bound, reached_value = -np.inf, np.inf
    for number in range(most):
        way = number % 2
        before = _sweep(
            orders[way],
            sizes,
            starts,
            around,
            ends,
            table_start,
            sums,
            unary_start,
            unary,
            message_start,
            messages,
            shares,
            before,
            left,
            least_with,
            ranks[way],
            tried,
        )
        bound = max(bound, before)
        one_time, one_memory = _price(
            scopes, strides, table_cell, copies, offsets, time, memory, tried, time_weight, memory_weight, taken
        )
        if one_time < np.inf and one_time * time_weight + one_memory * memory_weight < value:
            value = one_time * time_weight + one_memory * memory_weight
            best_time, best_memory = one_time, one_memory
            labels[:] = tried
            points[:] = taken
        if number > 0 and bound >= value * (1.0 - close):
            break
        if way == 1:
            if bound - reached_bound < gain * abs(bound) and value >= reached_value:
                break
            reached_bound, reached_value = bound, value
    return bound, best_time, best_memory
