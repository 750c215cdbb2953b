"""The compiled loop of the bounds. It takes Numba: import it where it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

__all__ = ["sweep"]

_I = types.Array(types.int64, 1, "C", readonly=True)
_II = types.Array(types.int64, 2, "C", readonly=True)
_F = types.Array(types.float64, 1, "C", readonly=True)
_OUT_I, _OUT_F = types.Array(types.int64, 1, "C"), types.Array(types.float64, 1, "C")


@njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _least_of_columns(tables: Any, start: int, rows: int, columns: int, taken: Any, out: Any, at: int) -> None:
    """``out[l] = min over k of table[k, l] - taken[k]``."""
    for column in range(columns):
        out[at + column] = np.inf
    for row in range(rows):
        given = taken[row]
        if given > -np.inf:
            line = start + row * columns
            for column in range(columns):
                value = tables[line + column] - given
                out[at + column] = value if value < out[at + column] else out[at + column]


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
            _least_of_columns(tables, table_start[edge, side], size, width, choice, messages, to)
