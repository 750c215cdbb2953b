"""Strategies to execute that somebody would choose, as in FlexFlow's section 8.2 and figure 10.

Each search and each baseline of ``tensoropt.compare`` has its say: the strategy that it would take. Of the frontier of
all strategies these are the fastest one, the turning point and the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.accuracy_sample import Strategy
from tensoropt.errors import TensorOptError
from tensoropt.problem.frontier import Frontier, FrontierPoint
from tensoropt.search import finders

__all__ = ["strategies_of_methods"]

_ALIKE = 1e-4


def strategies_of_methods(frontier: Frontier, find: Callable[[str], Frontier], count: int) -> list[Strategy]:
    """What methods choose, each strategy once, under the name of the first one that chooses it.

    Strategies that are predicted to take the same time and memory, but for a ten-thousandth, are one.

    Args:
        frontier: of all strategies.
        find: what a search or a baseline finds in the same space, by name; a TensorOptError if it does not apply.
        count: where methods choose fewer, points of the frontier at even distances of memory follow.
    """
    found: dict[str, FrontierPoint] = {}

    def take(kind: str, point: FrontierPoint) -> None:
        costs = point.time_s, point.memory_bytes
        if not any(np.allclose(costs, (other.time_s, other.memory_bytes), _ALIKE, 0.0) for other in found.values()):
            found[kind] = point

    take("mini_time", frontier.best())
    take("turning_point", frontier.turning_point())
    take("mini_memory", frontier.point(0))
    for method in finders():
        if method.offers == "frontier" or method.places:
            continue
        try:
            take(method.name, find(method.name).best())
        except TensorOptError:
            continue  # it does not apply to the model
    missing = count - len(found)
    least, most = frontier.memory_bytes[[0, -1]]
    for wanted in np.linspace(least, most, max(missing, 0) + 2)[1:-1]:
        index = int(np.abs(frontier.memory_bytes - wanted).argmin())
        take(f"frontier {index}", frontier.point(index))
    return [Strategy(kind, tuple(point.assignment), tuple(point.alternatives)) for kind, point in found.items()]
