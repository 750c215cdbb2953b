"""`VertexOrder`: in which order the recurrence decides vertices, and over which others its tables are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensoropt.errors import ProblemError
from tensoropt.problem.elimination import eliminations

__all__ = ["VertexOrder", "breadth_first", "connected_parts", "generate_seq", "least_tables"]

Neighbours = Sequence[frozenset[int]]
"""Per vertex the others that it shares an edge with; edges have no direction here."""


@dataclass(frozen=True, slots=True)
class VertexOrder:
    """A sequence of vertices with what the recurrence needs of it (PaSE, section III-B).

    The *connected set* of a vertex is what it reaches through vertices that are not after it. Its *dependent set* is
    the neighbours of that set that are after it: the table of its least costs has an axis for each of them. Without the
    vertex itself the connected set falls apart into its *connected subsets*, each of which has a table already.

    Attributes:
        vertices: all vertices, in the order in which they are decided.
        dependent_sets: for each position in that order the dependent set, ascending.
        connected_subsets: for each position the last vertices of the connected subsets, ascending: it is their tables
            that the recurrence adds.
    """

    vertices: tuple[int, ...]
    dependent_sets: tuple[tuple[int, ...], ...]
    connected_subsets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, neighbours: Neighbours, vertices: Sequence[int]) -> VertexOrder:
        """The order that is given.

        Raises:
            ProblemError: it has not every vertex once, or the neighbours are those of no graph.
        """
        near = _checked(neighbours)
        if sorted(vertices) != list(range(len(near))):
            raise ProblemError(
                f"VertexOrder: must have each of the {len(near)} vertices once, got {list(vertices)[:8]}"
                f"{' …' if len(vertices) > 8 else ''}. Give a permutation of 0..{len(near) - 1}."
            )
        place = {v: i for i, v in enumerate(vertices)}
        return cls._with_subsets(eliminations(near, lambda v, _: (place[v],)))

    def table_entries(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """For each position how many entries its table has, with so many configurations of each vertex."""
        return tuple(math.prod(sizes[w] for w in members) for members in self.dependent_sets)

    @classmethod
    def _with_subsets(cls, eliminated: Iterable[tuple[int, Sequence[int]]]) -> VertexOrder:
        vertices, dependent = zip(*eliminated, strict=True)
        place = {v: i for i, v in enumerate(vertices)}
        # A table is read by the first vertex, in the order, that it has an axis for.
        subsets: list[list[int]] = [[] for _ in vertices]
        for v, others in zip(vertices, dependent, strict=True):
            if others:
                subsets[min(place[w] for w in others)].append(v)
        return cls(
            tuple(vertices),
            tuple(tuple(others) for others in dependent),
            tuple(tuple(sorted(several)) for several in subsets),
        )


def generate_seq(neighbours: Neighbours, sizes: Sequence[int]) -> VertexOrder:
    """GenerateSeq (PaSE, figure 3): always the vertex with the smallest dependent set, as it is at that point.

    A chosen vertex's set is joined into that of each of its members, which keeps them right (Theorem 2). Of vertices
    with equally many, the one that makes the smallest table goes first, then the one with the lowest number.

    Args:
        neighbours: of each vertex.
        sizes: configurations of each vertex.

    Raises:
        ProblemError: the neighbours are those of no graph, or the sizes are not one for each vertex.

    Complexity: O(N · M² · log N) for N vertices and dependent sets of up to M.
    """
    near = _checked(neighbours)
    if len(sizes) != len(near):
        raise ProblemError(
            f"generate_seq: needs the number of configurations of each of {len(near)} vertices, got {len(sizes)}. "
            "Give one for each."
        )

    def key(v: int, others: set[int]) -> tuple[int, int, int]:
        return (len(others), math.prod(sizes[w] for w in others), v)

    return VertexOrder._with_subsets(eliminations(near, key))


def least_tables(
    neighbours: Neighbours, sizes: Sequence[int], vertices: Iterable[int]
) -> tuple[list[int], list[list[int]]]:
    """Some vertices, and the dependent set of each: always the vertex next that makes the smallest table.

    Where bounds have left a few configurations of some vertices and all of others, this is a better order than that by
    how many vertices a set has: work was a hundredth for a decoder of 32 layers (measured).
    """

    def key(v: int, others: set[int]) -> tuple[int, int]:
        return (math.prod(sizes[w] for w in others), v)

    order = list(eliminations({v: neighbours[v] for v in vertices}, key))
    return [v for v, _ in order], [others for _, others in order]


def breadth_first(neighbours: Neighbours) -> VertexOrder:
    """The order that the paper compares with (section III-A): breadth first from vertex 0, part after part.

    Raises:
        ProblemError: the neighbours are those of no graph.
    """
    return VertexOrder.of(neighbours, [v for part in connected_parts(neighbours) for v in part])


def connected_parts(neighbours: Neighbours) -> list[list[int]]:
    """The parts of a graph that nothing joins, by their first vertices, each breadth first from there.

    Raises:
        ProblemError: the neighbours are those of no graph.
    """
    _checked(neighbours)
    reached = [False] * len(neighbours)
    parts: list[list[int]] = []
    for first in range(len(neighbours)):
        if reached[first]:
            continue
        reached[first] = True
        queue = [first]
        for v in queue:
            for w in sorted(neighbours[v]):
                if not reached[w]:
                    reached[w] = True
                    queue.append(w)
        parts.append(queue)
    return parts


def _checked(neighbours: Neighbours) -> dict[int, frozenset[int]]:
    """The neighbours of a graph whose edges have two different ends and no direction.

    A graph need not be connected: its parts are solved one after another.
    """
    for v, others in enumerate(neighbours):
        for w in sorted(others):
            if not 0 <= w < len(neighbours) or w == v or v not in neighbours[w]:
                raise ProblemError(
                    f"Graph of {len(neighbours)} vertices: an edge joins two of them and is known to both, but vertex "
                    f"{v} has the neighbour {w}, which does not have it. Give each edge's ends as neighbours of one "
                    "another."
                )
    return dict(enumerate(neighbours))
