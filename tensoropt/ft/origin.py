"""Back-pointers: where each point of a table came from, and unrolling them into strategies (section 3.2).

An origin is kept for every table, the table itself only while it is in use. Origins form a tree whose leaves
are the problem's own tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensoropt.search.problem import IntArray

__all__ = ["Choice", "Fold", "Join", "Leaf", "Origin", "Select", "Sum", "unroll"]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A table of the problem.

    Attributes:
        term: the node *i*, or N + *e* for edge *e*.
        configuration: for each point its configuration of the node; None for an edge.
        alternative: for each point its alternative; None where there is only one.
    """

    term: int
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
        points: for each point the one that the last tables take.
        second: how many of the first ones take the point after it.
    """

    children: tuple[Origin, ...]
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
                if at.configuration is not None:
                    assignments[at.term, rows] = at.configuration[where]
                if at.alternative is not None:
                    alternatives[at.term, rows] = at.alternative[where]
            case Join():
                stack.append((at.left, at.left_points[where], rows))
                stack.append((at.right, at.right_points[where], rows))
            case Sum():
                stack += [(child, of[where], rows) for child, of in zip(at.children, at.points, strict=True)]
            case Fold():
                first, second = at.points[where], at.second[where]
                stack += [(child, first + (second > i), rows) for i, child in enumerate(at.children)]
            case Select():
                stack.append((at.child, at.points[where], rows))
            case Choice():
                for index, child in enumerate(at.children):
                    mine = at.child[where] == index
                    if mine.any():
                        stack.append((child, at.points[where[mine]], rows[mine]))
    return assignments.T, alternatives.T
