"""Random strategies to execute.

Configurations that are drawn evenly for each operator give strategies that do little but move tensors, many times
slower than anything that anybody would run. So a sample has three kinds of strategies, in turn:

- *frontier*: any point of the frontier;
- *distorted*: the best strategy after every cost was multiplied by a random number, whose logarithm has a standard
  deviation between 0.5 and 2: sensible throughout, but for another machine;
- *changed*: a point of the frontier, some operators of which (a share between a fiftieth and a fifth) have another
  configuration, any of those that are possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.ft import track_frontier
from tensoropt.problem.problem import Problem

__all__ = ["SAMPLES", "Strategy", "sample_strategies", "told_apart"]

SAMPLES = ("random", "methods", "both")
"""Which strategies are executed: these ones, those of :mod:`benchmarks.accuracy_methods`, or those and then these."""

_KINDS = ("frontier", "distorted", "changed")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy to execute.

    Attributes:
        kind: where it comes from.
        assignment: the configuration index of each node of a problem.
        alternatives: the alternative of each node, then of each edge; None where all copies are kept.
    """

    kind: str
    assignment: tuple[int, ...]
    alternatives: tuple[int, ...] | None = None


def sample_strategies(problem: Problem, count: int, seed: int) -> list[Strategy]:
    """``count`` different strategies (fewer if there are not so many), each with its kind; possible ones only."""
    rng = np.random.default_rng(seed)
    frontier = track_frontier(problem)
    found: dict[tuple[int, ...], str] = {}
    for attempt in range(20 * count):
        kind = _KINDS[attempt % len(_KINDS)]
        point = tuple(int(index) for index in frontier.assignments[rng.integers(len(frontier))])
        if kind == "distorted":
            point = _distorted(problem, rng)
        elif kind == "changed":
            point = _changed(problem, point, rng)
        if np.isfinite(problem.costs(np.array(point))[0][0]):
            found.setdefault(point, kind)
        if len(found) == count:
            break
    return [Strategy(kind, point) for point, kind in found.items()]


def told_apart(problem: Problem, strategies: Sequence[Strategy], share: float) -> list[Strategy]:
    """Those that are predicted to take more or less time than each before them, by more than a share of it.

    Strategies that take the same time have an order of prediction, but none that could be measured.
    """
    result: list[Strategy] = []
    times: list[float] = []
    for strategy in strategies:
        time_s = float(problem.costs(strategy.assignment, strategy.alternatives)[0][0])
        if all(abs(time_s - other) > share * min(time_s, other) for other in times):
            result.append(strategy)
            times.append(time_s)
    return result


def _distorted(problem: Problem, rng: np.random.Generator) -> tuple[int, ...]:
    spread = rng.uniform(0.5, 2.0)

    def distort(tables: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [table * np.exp(spread * rng.standard_normal(table.shape)) for table in tables]

    # Without memory the frontier is one point, the fastest, and is found in a moment.
    other = Problem(
        problem.names,
        distort(problem.node_time_s),
        [np.zeros(table.shape) for table in problem.node_time_s],
        problem.edges,
        distort(problem.edge_time_s),
        groups=problem.groups,
    )
    return track_frontier(other).best().assignment


def _changed(problem: Problem, point: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
    result = list(point)
    share = np.exp(rng.uniform(np.log(0.02), np.log(0.2)))
    for node in np.flatnonzero(rng.random(len(result)) < share):
        result[node] = int(rng.integers(len(problem.node_time_s[node])))
    return tuple(result)
