"""Shortest paths from some nodes of a sparse graph to all others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["shortest_rows"]

# From so many links on, loading the compiled loop pays.
_WORTH_COMPILING = 8_000
# So many sources are worked on at a time that their part of the work stays in a processor's cache.
_ROWS_AT_ONCE = 8


def shortest_rows(
    nodes: int,
    source: NDArray[np.intp],
    target: NDArray[np.intp],
    weight: NDArray[np.float64],
    starts: NDArray[np.intp],
) -> NDArray[np.float64]:
    """The least sum of weights from each start to every node, by Bellman-Ford.

    Sums are made from the start on, one link after the other, so that both ways in which this is done agree to the last
    bit.

    Args:
        nodes: how many there are.
        source: ``(E,)``, where each link starts.
        target: ``(E,)``, where it leads, ascending.
        weight: ``(E,)``, positive.
        starts: ``(S,)``.

    Returns:
        ``(S, nodes)``, +inf where no path leads.
    """
    seconds = np.full((len(starts), nodes), np.inf)
    seconds[np.arange(len(starts)), starts] = 0.0
    if not len(weight):
        return seconds
    if len(weight) < _WORTH_COMPILING:
        _by_rounds(source, target, weight, seconds)
    else:
        order = np.argsort(source, kind="stable")
        first = np.searchsorted(source[order], np.arange(nodes + 1))
        _compiled()(first, target[order], weight[order], starts, seconds)
    return seconds


def _by_rounds(
    source: NDArray[np.intp], target: NDArray[np.intp], weight: NDArray[np.float64], seconds: NDArray[np.float64]
) -> None:
    """Finds paths from all starts at once; links are sorted by target, so that a round is one ``reduceat``."""
    targets, firsts = np.unique(target, return_index=True)
    reached = np.empty((min(len(seconds), _ROWS_AT_ONCE), len(weight)))
    for first in range(0, len(seconds), _ROWS_AT_ONCE):
        rows = seconds[first : first + _ROWS_AT_ONCE]  # a view: what is written to it is written to the result
        one_more = reached[: len(rows)]
        while True:
            np.take(rows, source, axis=1, out=one_more, mode="clip")  # any other mode copies first
            np.add(one_more, weight, out=one_more)
            before = rows[:, targets]
            better = np.minimum(before, np.minimum.reduceat(one_more, firsts, axis=1))
            if np.array_equal(better, before):
                break
            rows[:, targets] = better


@functools.cache
def _compiled() -> Callable[..., None]:
    import numba

    compiled: Callable[..., None] = numba.njit(cache=True, nogil=True)(_by_queue)
    return compiled


def _by_queue(first: Any, target: Any, weight: Any, starts: Any, seconds: Any) -> None:
    """From one start after the other, with a queue of the nodes that became nearer; Numba compiles it.

    Args:
        first: ``(nodes + 1,)``, where the links of each node begin.
        target: ``(E,)``.
        weight: ``(E,)``.
        starts: ``(S,)``.
        seconds: ``(S, nodes)``, +inf but for the starts; written to.
    """
    nodes = len(first) - 1
    queue = np.empty(nodes, np.int64)
    waiting = np.zeros(nodes, np.bool_)
    for row in range(len(starts)):
        reached = seconds[row]
        queue[0] = starts[row]
        head, length = 0, 1
        while length > 0:
            node = queue[head]
            head = head + 1 if head + 1 < nodes else 0
            length -= 1
            waiting[node] = False
            so_far = reached[node]
            for link in range(first[node], first[node + 1]):
                other = target[link]
                new = so_far + weight[link]
                if new < reached[other]:
                    reached[other] = new
                    if not waiting[other]:
                        waiting[other] = True
                        place = head + length
                        queue[place if place < nodes else place - nodes] = other
                        length += 1
