"""Sums over a strategy's operators and edges in whole numbers, and by how much a move changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensoropt.problem.problem import IntArray
from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.space.work import Ints

__all__ = ["Sums", "change_of", "sum_of"]


class Sums(NamedTuple):
    """A number for each configuration of N operators and each pair of those of E edges, for compiled loops.

    Attributes:
        own: all operators' numbers.
        own_first: ``(N,)``, where each operator's begin.
        pairs: all edges' numbers, row by row; a negative one is of a pair that must not be.
        pairs_first: ``(E,)``, where each edge's begin.
        width: ``(E,)``, columns of each edge's: the configurations of its consumer.
        producer: ``(E,)``.
        consumer: ``(E,)``.
        near: the edges at each operator.
        near_first: ``(N + 1,)``, where each operator's begin.
    """

    own: Ints
    own_first: Ints
    pairs: Ints
    pairs_first: Ints
    width: Ints
    producer: Ints
    consumer: Ints
    near: Ints
    near_first: Ints

    @classmethod
    def of(cls, own: Sequence[Ints], edges: IntArray, pairs: Sequence[Ints]) -> Sums:
        """Joins tables.

        Args:
            own: for each operator ``(K,)``.
            edges: ``(E, 2)``, producer and consumer.
            pairs: for each edge ``(K, L)``; tables that are the same array are held once.
        """
        held: dict[int, tuple[int, Ints]] = {}
        total = 0
        first = []
        for table in pairs:
            if id(table) not in held:
                held[id(table)] = total, table.reshape(-1)
                total += table.size
            first.append(held[id(table)][0])
        ends = edges.reshape(-1)
        return cls(
            np.concatenate(own),
            np.cumsum([0, *map(len, own)])[:-1].astype(np.int64),
            np.concatenate([*(part for _, part in held.values()), np.zeros(0, np.int64)]),
            np.array(first, np.int64),
            np.array([table.shape[1] for table in pairs], np.int64),
            edges[:, 0].astype(np.int64),
            edges[:, 1].astype(np.int64),
            (np.argsort(ends, kind="stable") // 2).astype(np.int64),
            np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=len(own)))]).astype(np.int64),
        )

    def of_pairs(self, assignment: Ints, edges: Ints | None = None) -> Ints:
        """The number of each edge, or of some, by a strategy."""
        some = np.arange(len(self.width)) if edges is None else edges
        place = assignment[self.producer[some]] * self.width[some] + assignment[self.consumer[some]]
        return self.pairs[self.pairs_first[some] + place]


@compiled
def sum_of(sums: Sums, assignment: Ints) -> int:
    """The sum of a strategy, which must be possible."""
    total = 0
    for op in range(len(assignment)):
        total += sums.own[sums.own_first[op] + assignment[op]]
    for edge in range(len(sums.width)):
        row = sums.pairs_first[edge] + assignment[sums.producer[edge]] * sums.width[edge]
        total += sums.pairs[row + assignment[sums.consumer[edge]]]
    return total


@inlined
def change_of(sums: Sums, assignment: Ints, op: int, choice: int) -> tuple[int, int]:
    """Returns by how much another configuration of one operator changes the sum, and the number of impossible pairs.

    The sum is of possible pairs alone, so that both add up over several changes one after the other.
    """
    now = assignment[op]
    more = sums.own[sums.own_first[op] + choice] - sums.own[sums.own_first[op] + now]
    impossible = 0
    for place in range(sums.near_first[op], sums.near_first[op + 1]):
        edge = sums.near[place]
        first, width = sums.pairs_first[edge], sums.width[edge]
        if sums.producer[edge] == op:
            other = first + assignment[sums.consumer[edge]]
            new, old = sums.pairs[other + choice * width], sums.pairs[other + now * width]
        else:
            other = first + assignment[sums.producer[edge]] * width
            new, old = sums.pairs[other + choice], sums.pairs[other + now]
        impossible += (new < 0) - (old < 0)
        more += max(new, 0) - max(old, 0)
    return more, impossible
