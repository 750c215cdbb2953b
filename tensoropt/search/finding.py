"""The interface of finders, which find strategies: ``find(space, limit, start) -> Found``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.frontier import Frontier, FrontierPoint, frontier_of
from tensoropt.search.options import MemoryLimit, choose
from tensoropt.space.space import SearchSpace

__all__ = ["NO_LIMIT", "Found", "Known", "Start"]

NO_LIMIT = MemoryLimit(math.inf, "no limit")


@dataclass(frozen=True, slots=True)
class Known:
    """A strategy that was found before, and that fits in the memory.

    Attributes:
        simulated_s: what its step takes.
        space: that it is of.
        assignment: a configuration index for each operator.
    """

    simulated_s: float
    space: SearchSpace
    assignment: tuple[int, ...]


Start = Sequence[Known]
"""The strategies that are known before a search begins."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search or a baseline.

    Attributes:
        space: the search space of its strategies.
        frontier: on the space's problem, of one point or more.
        notes: further notes on the search, which plans carry.
        interrupted: whether Ctrl-C ended the search; this is the best so far.
    """

    space: SearchSpace
    frontier: Frontier
    notes: Mapping[str, object] = field(default_factory=dict)
    interrupted: bool = False

    @classmethod
    def of_one_strategy(cls, space: SearchSpace, configurations: Mapping[str, Configuration], seconds: float) -> Found:
        """A strategy that ``space`` may not have, in a space of nothing else, whose tables are small.

        Args:
            space: of the graph.
            configurations: of every operator of training.
            seconds: what finding it took.
        """
        alone = space.of_one_strategy(configurations)
        assignment = np.zeros(len(alone.operators), np.int64)
        return cls(alone, frontier_of(alone.problem, assignment, exact=False, eliminations=(), seconds=seconds))

    @property
    def devices_differ(self) -> bool:
        """True if devices hold different amounts of memory, as some operators are placed on a part of them."""
        return bool(self.space.coarsening.placed_blocks)

    def fullest_bytes(self, point: FrontierPoint) -> float:
        """Returns the memory of the fullest device in a strategy of the frontier."""
        if not self.devices_differ:
            return point.memory_bytes
        return float(self.space.device_memory(point.assignment, point.alternatives).max())

    def fastest(self, limit: MemoryLimit) -> FrontierPoint:
        """The fastest strategy that fits; where none does, the smallest."""
        fits = float(self.frontier.memory_bytes[0]) <= limit.limit_bytes
        return self.frontier.best(limit.limit_bytes) if fits else self.frontier.point(0)

    def choose(self, option: str, limit: MemoryLimit) -> FrontierPoint:
        """The strategy that an option asks for.

        Raises:
            ProblemError: an unknown option.
            InfeasibleError: it does not fit; the message begins with what it takes, and how much is missing.
        """
        try:
            # Where devices differ, memory by the tables is a bound; what the fullest holds counts.
            point = choose(self.frontier, option, None if self.devices_differ else limit.limit_bytes)
            least_bytes = self.fullest_bytes(point)
        except InfeasibleError:
            point, least_bytes = None, float(self.frontier.memory_bytes[0])
        if point is None or least_bytes > limit.limit_bytes:
            raise InfeasibleError(
                f"what it found takes {least_bytes:,.0f} bytes per device, the limit is {limit}: "
                f"{least_bytes - limit.limit_bytes:,.0f} bytes are missing."
            )
        return point
