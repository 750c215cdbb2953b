"""Orders in which the variables of a graph are eliminated, each of them joining its neighbours."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["eliminations"]


def eliminations(
    neighbours: Mapping[int, Iterable[int]], key: Callable[[int, set[int]], tuple[Any, ...]]
) -> Iterator[tuple[int, list[int]]]:
    """Takes out variables, always the one of the least key.

    The neighbours of one that went are neighbours of one another from then on: what was decided in it depends on all.

    Args:
        neighbours: of each variable; an edge is known to both ends.
        key: of a variable beside the neighbours that it has at that point. Keys must be comparable and, if the order is
            to be always the same, all different.

    Yields:
        each variable, and its neighbours at that point, ascending.
    """
    near = {v: set(others) for v, others in neighbours.items()}
    heap = [(key(v, others), v) for v, others in sorted(near.items())]
    heapq.heapify(heap)
    while heap:
        before, v = heapq.heappop(heap)
        if v not in near or before != key(v, near[v]):
            continue
        around = sorted(near.pop(v))
        yield v, around
        for w in around:
            near[w].update(around)
            near[w] -= {v, w}
        for w in around:
            heapq.heappush(heap, (key(w, near[w]), w))
