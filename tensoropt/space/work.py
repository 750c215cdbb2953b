"""The tasks of a strategy: stages of work on devices or links, and the tables that hold them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import ProblemError

__all__ = ["TICKS_PER_S", "Ints", "Route", "Routes", "Signature", "Tables", "Way", "Work", "ticks"]

Ints = NDArray[np.int64]

# Times are whole numbers of ticks, so that sums do not depend on their order, and a part of a timeline that comes later
# by a constant is exactly the same part. Up to 2^53 ticks (512 s) are exact as floating-point seconds, too.
TICKS_PER_S = 2.0**44
_MOST_S = 1e5  # 64 bits hold five of these


class Signature(NamedTuple):
    """Where a task of a stage runs, and with whom.

    Attributes:
        lane: -1 for no resource (a task that only joins others), 0 for the devices, 1 + l for the links of level l.
        axes: mesh axes over which the devices of a group exchange data, as bits; none for work of a device alone.
        at: mesh axes along which not all devices take part, ascending, each with the coordinates of those that do.
    """

    lane: int
    axes: int = 0
    at: tuple[tuple[int, tuple[int, ...]], ...] = ()


class Work(NamedTuple):
    """One stage of an operator's work or of a tensor's way: each device or link that takes part is busy so long."""

    seconds: float
    signature: Signature


# The stages of an operator's work or of a tensor's way, one after the other.
Route = tuple[Work, ...]


class Way(NamedTuple):
    """How a tensor gets from one operator to another.

    Attributes:
        table: of routes between layouts.
        starts: ``(K,)``, the layout in which each configuration of the operator where it starts gives it.
        ends: ``(K,)``, the layout in which each configuration of the other wants it.
    """

    table: int
    starts: Ints
    ends: Ints


class Routes(Protocol):
    """Gives the routes between layouts, all that start from one layout when one is first needed."""

    def row(self, table: int, start: int) -> tuple[Ints, Ints, Ints, list[Signature]]:
        """All routes from layout ``start`` of a table, one for each layout of the table.

        Returns:
            the number of stages of each route, -1 for one that must not be; ticks of all stages, one route after the
            other; and their signatures, as places in the list.
        """
        ...


class Tables(NamedTuple):
    """The stages of every operator and the routes of every edge, for all configurations.

    Attributes:
        forward: for each operator, for each configuration its stages, forward; never empty.
        backward: the same backward, or None for an operator that has no backward pass.
        edges: producer and consumer of each edge; producers come before consumers.
        ways: of each edge's tensor.
        ways_back: of its gradient, from the consumer to the producer, or None.
        returns: for each edge whether a gradient returns.
        table_sizes: how many layouts each table of routes has.
    """

    forward: list[list[Route]]
    backward: list[list[Route] | None]
    edges: list[tuple[int, int]]
    ways: list[Way]
    ways_back: list[Way | None]
    returns: list[bool]
    table_sizes: list[int]


def ticks(seconds: float) -> int:
    """Whole ticks of a duration.

    Raises:
        ProblemError: if it is negative, not finite, or so long that a sum of some would not fit 64 bits.
    """
    if not 0.0 <= seconds <= _MOST_S:
        raise ProblemError(
            f"Task of {seconds} s: must take between 0 and {_MOST_S:.0f} s. What is impossible must not be a choice."
        )
    return round(seconds * TICKS_PER_S)
