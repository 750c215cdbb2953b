"""The compiled loops: of the recurrence, and of the bounds. They take Numba: import this module where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["least_of_sums", "sweep"]

_TILE = 256
"""Columns worked on at once: with some hundred rows they stay in a core's cache."""

_I = types.Array(types.int64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_FFF = types.Array(types.float64, 3, "C", readonly=True)
_OUT_FFF = types.Array(types.float64, 3, "C")
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _lower(
    least: Any,
    first: float,
    first_row: Any,
    second: float,
    second_row: Any,
    third: float,
    third_row: Any,
    fourth: float,
    fourth_row: Any,
) -> None:
    """Lowers ``least`` to four rows, each with a number added, where they are lower."""
    for i in range(len(least)):
        one, two = first + first_row[i], second + second_row[i]
        three, four = third + third_row[i], fourth + fourth_row[i]
        one = one if one < two else two
        three = three if three < four else four
        one = one if one < three else three
        least[i] = one if one < least[i] else least[i]


@njit(types.void(_FFF, _FFF, _OUT_FFF, types.int64, types.int64), cache=True, nogil=True)
def least_of_sums(left: Any, right: Any, out: Any, first: int, last: int) -> None:
    """``out[s, i, j] = min over k of left[s, k, i] + right[s, k, j]``, for some of the pairs of *s* and *i*.

    Args:
        left: a table.
        right: another one.
        out: is set.
        first: the pair to begin with, counted by *i*, then by *s*.
        last: the one after the last.
    """
    _, size, columns = right.shape
    rows = left.shape[2]
    pair = first
    while pair < last:
        which = pair // rows
        stop_row = min(rows, last - which * rows)
        one, two = left[which], right[which]
        for start in range(0, columns, _TILE):
            stop = min(columns, start + _TILE)
            for row in range(pair - which * rows, stop_row):
                least = out[which, row, start:stop]
                least[:] = np.inf
                # Four at a time, so that results are read and written a fourth as often.
                for k in range(0, size, 4):
                    j, m, n = min(k + 1, size - 1), min(k + 2, size - 1), min(k + 3, size - 1)
                    _lower(
                        least,
                        one[k, row],
                        two[k, start:stop],
                        one[j, row],
                        two[j, start:stop],
                        one[m, row],
                        two[m, start:stop],
                        one[n, row],
                        two[n, start:stop],
                    )
        pair = (which + 1) * rows


@njit(cache=True, nogil=True)
def _least_of_columns(tables: Any, start: int, rows: int, columns: int, taken: Any, out: Any) -> None:
    """``out[l] = min over k of table[k, l] - taken[k]``."""
    out[:] = np.inf
    for row in range(0, rows, 4):
        # As above; what is missing to four is the last one again.
        b, c, d = min(row + 1, rows - 1), min(row + 2, rows - 1), min(row + 3, rows - 1)
        _lower(
            out,
            -taken[row],
            tables[start + row * columns : start + (row + 1) * columns],
            -taken[b],
            tables[start + b * columns : start + (b + 1) * columns],
            -taken[c],
            tables[start + c * columns : start + (c + 1) * columns],
            -taken[d],
            tables[start + d * columns : start + (d + 1) * columns],
        )


@njit(
    types.void(types.boolean, _I, _I, _II, _II, _F, _I, _F, _I, _II, _OUT_F, _OUT_F, _OUT_F, _OUT_I),
    cache=True,
    nogil=True,
)
def sweep(
    backwards: bool,
    starts: Any,
    around: Any,
    ends: Any,
    table_start: Any,
    tables: Any,
    unary_start: Any,
    unary: Any,
    sizes: Any,
    message_start: Any,
    messages: Any,
    left_least: Any,
    least_with: Any,
    labels: Any,
) -> None:
    """One pass of sequential tree-reweighted message passing (Kolmogorov, PAMI 2006) over all variables.

    Each edge's table is moved, as far as it goes, into the costs of its ends, in shares that add up to at most the
    table. What is left of the costs of single variables then bounds every strategy from below. Costs are whole
    numbers, and shares are made so, therefore every figure is exact.

    Args:
        backwards: whether the pass goes from the last variable to the first.
        starts: ``(variables + 1,)``, where each variable's part of ``around`` starts.
        around: the edges at each variable.
        ends: ``(edges, 2)``, first the lower variable.
        table_start: ``(edges, 2)``, where each edge's table starts in ``tables``, with the first end's configurations
            as rows, and with the second's. Loops over rows are what a processor does many of at once.
        tables: costs.
        unary_start: ``(variables + 1,)``, where each variable's part of arrays over configurations starts.
        unary: the cost of each configuration by itself.
        sizes: configurations of each variable.
        message_start: ``(edges, 2)``, where the messages into both ends start.
        messages: what each edge can give to each configuration of an end; is changed.
        left_least: per variable, the least of its cost that no edge has taken; is changed.
        least_with: is raised to the least cost of any strategy with each configuration.
        labels: is set to a strategy, configuration by configuration the best after those before it.
    """
    count = len(sizes)
    widest = 0
    for v in range(count):
        widest = max(widest, sizes[v])
    belief, taken, choice = np.empty(widest), np.empty(widest), np.empty(widest)
    # What a variable gives each later edge at least. The other end gets that much more than it had before this pass,
    # whatever its configuration: until it is its turn, it counts here.
    promised = np.zeros(count)
    bound = 0.0
    for v in range(count):
        bound += left_least[v]
    for step in range(count):
        v = count - 1 - step if backwards else step
        size, first = sizes[v], unary_start[v]
        for k in range(size):
            belief[k] = unary[first + k]
            choice[k] = unary[first + k]
        later = earlier = 0
        for i in range(starts[v], starts[v + 1]):
            edge = around[i]
            side = 0 if ends[edge, 0] == v else 1
            at = message_start[edge, side]
            for k in range(size):
                belief[k] += messages[at + k]
            if (side == 0) != backwards:
                later += 1
                for k in range(size):
                    choice[k] += messages[at + k]
            else:
                earlier += 1
                other = ends[edge, 1 - side]
                bound -= promised[other]
                line = table_start[edge, 1 - side] + labels[other] * size
                for k in range(size):
                    choice[k] += tables[line + k]
        labels[v] = np.argmin(choice[:size])
        bound -= left_least[v]
        for k in range(size):
            least_with[first + k] = max(least_with[first + k], bound + belief[k])
        # Every later edge takes an equal share; whatever part is taken, bounds stay bounds.
        parts = max(later, earlier, 1)
        least = np.inf
        for k in range(size):
            if belief[k] < np.inf:
                taken[k] = np.floor(belief[k] / parts)
                least = min(least, belief[k] - later * taken[k])
        left_least[v] = least
        promised[v] = np.floor(np.min(belief[:size]) / parts)
        bound += least + later * promised[v]
        for i in range(starts[v], starts[v + 1]):
            edge = around[i]
            side = 0 if ends[edge, 0] == v else 1
            if (side == 0) == backwards:
                continue
            at, to = message_start[edge, side], message_start[edge, 1 - side]
            for k in range(size):
                # What the edge may give less what it takes: that much is moved here.
                choice[k] = messages[at + k] - taken[k] if belief[k] < np.inf else -np.inf
            width = sizes[ends[edge, 1 - side]]
            _least_of_columns(tables, table_start[edge, side], size, width, choice, messages[to : to + width])
