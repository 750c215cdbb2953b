"""Lower bounds of the makespan of all strategies that begin alike: what each resource has to do at least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.optimum.bound_tables import BoundTables
from tensoropt.errors import ProblemError
from tensoropt.problem.problem import FloatArray

__all__ = ["Relaxation"]

_MOST_ENTRIES = 2**24


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """What a strategy's operators and edges give resources to do, and the least that is still to come.

    Operators that decide are chosen one after the other; those that are chosen and have an edge to one that is not are
    the *border*. What is still to come depends on the border alone, and the least of it is known for each of its
    configurations, by going backwards from the last operator, one after the other.

    Attributes:
        order: ``(L,)``, numbers of sets of one operator that decides, in which they are chosen.
        own: per place in that order ``(K, W)`` ticks, for each of several bounds.
        before: per place those before it with an edge to it, each with ``(K_before, K, W)`` ticks.
        border: per place, the places of the border once it is chosen.
        ahead: per place, the least that is still to come, ``(K_border..., W)`` ticks.
    """

    order: tuple[int, ...]
    own: tuple[FloatArray, ...]
    before: tuple[tuple[tuple[int, FloatArray], ...], ...]
    border: tuple[tuple[int, ...], ...]
    ahead: tuple[FloatArray, ...]

    @classmethod
    def of(cls, tables: BoundTables) -> Relaxation:
        """Goes backwards.

        Raises:
            ProblemError: operators are too entangled.
        """
        own, pairs = tables
        order = _order(len(own), set(pairs))
        place = {number: position for position, number in enumerate(order)}
        before: list[tuple[tuple[int, FloatArray], ...]] = []
        for position, number in enumerate(order):
            some = []
            for (one, other), table in pairs.items():
                if other == number and place[one] < position:
                    some.append((place[one], table))
                elif one == number and place[other] < position:
                    some.append((place[other], table.swapaxes(0, 1)))
            before.append(tuple(sorted(some, key=lambda pair: pair[0])))
        owns = [own[number] for number in order]
        counts = [len(table) for table in owns]
        border: list[tuple[int, ...]] = [()] * len(order)
        ahead = [np.zeros(owns[0].shape[1])] * len(order)
        for position in reversed(range(1, len(order))):
            here = tuple(sorted({*border[position], *(near for near, _ in before[position])} - {position}))
            axes = (*here, position)
            shape = [counts[axis] for axis in axes]
            if np.prod(shape, dtype=np.float64) * owns[0].shape[1] > _MOST_ENTRIES:
                raise ProblemError(
                    f"Optimum: {len(axes)} operators depend on one another at once, with {np.prod(shape)} "
                    "combinations. Give operators fewer configurations, or take a smaller model."
                )
            total = np.zeros((*shape, owns[0].shape[1]))
            total += _spread(ahead[position], border[position], axes, counts)
            total += _spread(owns[position], (position,), axes, counts)
            for near, table in before[position]:
                total += _spread(table, (near, position), axes, counts)
            border[position - 1], ahead[position - 1] = here, total.min(axis=-2)
        return cls(tuple(order), tuple(owns), tuple(before), tuple(border), tuple(ahead))

    def least(self) -> FloatArray:
        """``(W,)`` ticks that every strategy takes at least, by each bound."""
        ahead = self.ahead[0] if self.border[0] else self.ahead[0][None]
        return (self.own[0] + ahead).min(axis=0)

    def best(self) -> list[int]:
        """A configuration of each operator that decides, in the order of sets, by which the first bound is least."""
        chosen: dict[int, int] = {}
        for position, own in enumerate(self.own):
            cost = own[:, 0].copy()
            for near, table in self.before[position]:
                cost += table[chosen[near], :, 0]
            index = tuple(slice(None) if axis == position else chosen[axis] for axis in self.border[position])
            cost += self.ahead[position][..., 0][index]
            chosen[position] = int(cost.argmin())
        result = [0] * len(self.order)
        for position, number in enumerate(self.order):
            result[number] = chosen[position]
        return result


def _spread(table: FloatArray, given: tuple[int, ...], axes: tuple[int, ...], counts: list[int]) -> FloatArray:
    """A table over some places, both ascending, as one over more."""
    return table.reshape(*(counts[axis] if axis in given else 1 for axis in axes), table.shape[-1])


def _order(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """Operators so that the border stays small: always the one that leaves the smallest."""
    near: list[set[int]] = [set() for _ in range(count)]
    for one, other in sorted(edges):
        near[one].add(other)
        near[other].add(one)
    order: list[int] = []
    left = set(range(count))
    while left:

        def cost(number: int) -> tuple[int, int, int]:
            chosen = {*order, number}
            border = sum(bool(near[one] - chosen) for one in chosen)
            return border, -len(near[number] & set(order)), number

        order.append(min(sorted(left), key=cost))
        left.remove(order[-1])
    return order
