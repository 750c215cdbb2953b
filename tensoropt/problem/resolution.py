"""The resolution of costs: the steps to which they are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensoropt.problem.arrays import FloatArray, sum_over
from tensoropt.problem.problem import Problem
from tensoropt.problem.units import on_grid

__all__ = ["Resolution"]

_TIME_PARTS = 2**14
_MEMORY_PARTS = 2**11


@dataclass(frozen=True, slots=True)
class Resolution:
    """Steps of which all costs are multiples.

    Frontiers of real models have tens of thousands of points that differ by less than any cost model knows. In steps
    of some ten-thousandths of the whole they have some hundreds, and are found exactly.

    Attributes:
        time_s: a power of two; 0.0 for costs as they are.
        memory_bytes: the same.
    """

    time_s: float = 0.0
    memory_bytes: float = 0.0

    @classmethod
    def of(cls, problem: Problem) -> Resolution:
        """Steps of at most a 16,384th of the time, and a 2,048th of the memory, that any strategy takes at least.

        A table's costs are off by half a step at most, and a strategy's by as many halves as there are tables.
        """
        return cls(
            _step((*problem.node_time_s, *problem.edge_time_s), problem.constant_time_s, _TIME_PARTS),
            _step(
                (*problem.node_memory_bytes, *problem.edge_memory_bytes), problem.constant_memory_bytes, _MEMORY_PARTS
            ),
        )

    def rounded(self, problem: Problem) -> Problem:
        """The problem with costs to the nearest multiples."""
        return problem.with_tables(
            lambda time_s, memory_bytes, _: (on_grid(time_s, self.time_s), on_grid(memory_bytes, self.memory_bytes))
        )


def _step(tables: tuple[FloatArray, ...], constant: float, parts: int) -> float:
    least = constant + sum_over(tables, lambda table: float(table.min()))
    return math.ldexp(1.0, math.frexp(least / parts)[1] - 1) if 0.0 < least < np.inf else 0.0
