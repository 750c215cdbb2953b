"""Back-pointers: where each point of a table came from, and unrolling them into strategies (section 3.2).

An origin is kept for every table, the table itself only while it is in use. Origins form a tree whose leaves
are the problem's own tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensoropt.problem.problem import IntArray

__all__ = ["Choice", "Fold", "Join", "Leaf", "Origin", "Select", "Sum", "copy_of", "unroll"]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A table of the problem, which several nodes or edges may have: each takes the same point of it.

    Attributes:
        terms: the nodes *i*, or N + *e* for edges *e*.
        configuration: for each point its configuration of the node; None for an edge.
        alternative: for each point its alternative; None where there is only one.
    """

    terms: tuple[int, ...]
    configuration: IntArray | None
    alternative: IntArray | None


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """Each point is the sum of a point of each of two tables."""

    left: Origin
    right: Origin
    left_points: IntArray
    right_points: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Each point is the sum of a point of each of many tables."""

    children: tuple[Origin, ...]
    points: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Each point is the sum of points of tables that are equal: of the first few the next point, of the others this.

    Attributes:
        children: of the tables.
        copies: how many tables each child stands for. Several are nodes or edges of the problem.
        points: for each point the one that the last tables take.
        second: how many of the first ones take the point after it.
    """

    children: tuple[Origin, ...]
    copies: tuple[int, ...]
    points: IntArray
    second: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Each point is a point of another table."""

    child: Origin
    points: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Each point is a point of one of several tables."""

    children: tuple[Origin, ...]
    child: IntArray
    points: IntArray


Origin = Leaf | Join | Sum | Fold | Select | Choice


def copy_of(origin: Origin, copy: int) -> Origin:
    """The origin of one of the nodes or edges whose table it is."""
    match origin:
        case Leaf():
            return Leaf((origin.terms[copy],), origin.configuration, origin.alternative)
        case Select():
            return Select(copy_of(origin.child, copy), origin.points)
        case _:
            raise TypeError(f"{type(origin).__name__} is of one table.")


def unroll(origin: Origin, points: IntArray, nodes: int, terms: int) -> tuple[IntArray, IntArray]:
    """The strategies of chosen points of a fully decided table.

    Args:
        origin: of a table whose origins reach every node and edge of the problem once.
        points: which points.
        nodes: N.
        terms: N + E.

    Returns:
        assignments ``(points, N)`` and alternatives ``(points, N + E)``.
    """
    # A term is written for all points at once, so these lie side by side.
    assignments = np.full((nodes, len(points)), -1, np.int64)
    alternatives = np.zeros((terms, len(points)), np.int64)
    # A stack and not recursion: a chain of a thousand layers is a thousand deep.
    stack: list[tuple[Origin, IntArray, IntArray]] = [(origin, points, np.arange(len(points)))]
    while stack:
        at, where, rows = stack.pop()
        match at:
            case Leaf():
                of = np.array(at.terms)[:, None]
                if at.configuration is not None:
                    assignments[of, rows] = at.configuration[where]
                if at.alternative is not None:
                    alternatives[of, rows] = at.alternative[where]
            case Join():
                stack.append((at.left, at.left_points[where], rows))
                stack.append((at.right, at.right_points[where], rows))
            case Sum():
                stack += [(child, taken[where], rows) for child, taken in zip(at.children, at.points, strict=True)]
            case Fold():
                first, second = at.points[where], at.second[where]
                place = 0
                for child, copies in zip(at.children, at.copies, strict=True):
                    # A row for each node or edge, where the child stands for several.
                    takes_second = second > (place if copies == 1 else np.arange(place, place + copies)[:, None])
                    stack.append((child, first + takes_second, rows))
                    place += copies
            case Select():
                stack.append((at.child, at.points[where], rows))
            case Choice():
                for index, child in enumerate(at.children):
                    mine = at.child[where] == index
                    if mine.any():
                        stack.append((child, at.points[where[mine]], rows[mine]))
    return assignments.T, alternatives.T
