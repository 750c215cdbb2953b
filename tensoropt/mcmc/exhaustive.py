"""The best strategy of all, by branch and bound under the simulator (FlexFlow section 8.3). For small models only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.mcmc import blob
from tensoropt.mcmc.network import Network
from tensoropt.mcmc.simulator import Simulator
from tensoropt.search.stages import TICKS_PER_S, Ints

__all__ = ["Optimum", "find_optimum"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fastest strategy that there is.

    Attributes:
        time_s: its simulated time.
        assignment: a configuration of each operator.
        strategies: how many there are.
        partial: how many partial strategies were looked at.
        simulated: how many whole ones were simulated.
        seconds: of wall-clock time.
    """

    time_s: float
    assignment: tuple[int, ...]
    strategies: float
    partial: int
    simulated: int
    seconds: float


def find_optimum(network: Network, start: Sequence[int], *, most_partial: int = 2_000_000) -> Optimum:
    """Goes through all strategies, operator by operator, but for those that cannot beat the best so far.

    What is not chosen yet takes the least that it can. The longest chain of tasks, and the work of the busiest kind of
    resource, bound the makespan from below: no schedule is shorter.

    Args:
        network: the tasks.
        start: the best strategy so far, from which on others must be faster.
        most_partial: gives up after so many partial strategies.

    Raises:
        ProblemError: there are too many that cannot be ruled out, or operators may be placed.
    """
    began = time.perf_counter()
    bounds = _Bounds(network)
    simulator = Simulator(network, start)
    best, chosen = simulator.makespan, tuple(int(index) for index in start)
    operators = network.operators
    assignment = np.zeros(operators, np.int64)
    partial = simulated = 0
    stack: list[list[int]] = []  # what is left to try of each operator so far, the most promising last
    while True:
        depth = len(stack)
        if depth < operators:
            able = []
            for choice in range(int(network.choices[depth])):
                assignment[depth] = choice
                if (bound := bounds.of(assignment, depth + 1)) < best:
                    able.append((-bound, -choice))
            partial += int(network.choices[depth])
            if partial > most_partial:
                raise ProblemError(
                    f"Optimum: more than {most_partial} partial strategies of {operators} operators cannot be ruled "
                    "out. Give operators fewer configurations, or a better strategy to start from."
                )
            stack.append([-choice for _, choice in sorted(able)])
        else:
            simulated += 1
            if (makespan := simulator.reset(assignment)) < best:
                best, chosen = makespan, tuple(assignment.tolist())
        while stack and not stack[-1]:
            stack.pop()
        if not stack:
            break
        assignment[len(stack) - 1] = stack[-1].pop()
        if bounds.of(assignment, len(stack)) >= best:
            stack.append([])  # the best has improved meanwhile
            while stack and not stack[-1]:
                stack.pop()
            if not stack:
                break
            assignment[len(stack) - 1] = stack[-1].pop()
    strategies = float(np.prod(network.choices.astype(np.float64)))
    return Optimum(best / TICKS_PER_S, chosen, strategies, partial, simulated, time.perf_counter() - began)


class _Bounds:
    """Lower bounds of the makespan of all strategies that begin alike."""

    def __init__(self, network: Network) -> None:
        network.add_all_rows()
        if network.placed_axes():
            raise ProblemError(
                f"Optimum: some operators may be placed along mesh axes {network.placed_axes()}, where tasks need "
                "not wait for one another, so that chains of them say nothing. Use a space without placements."
            )
        arrays, field = network.arrays, network.field
        self.operators = network.operators
        self._ends = list(zip(field(blob.EDGE_FROM).tolist(), field(blob.EDGE_TO).tolist(), strict=True))
        self._returns = field(blob.RETURNS).tolist()
        kinds = 1 + len(network.levels)
        lanes = np.array([sign.lane for sign in network.signatures], np.int64)
        totals = np.zeros((len(arrays.pool), 1 + kinds), np.int64)  # of paths: in all, and by kind of resource
        path = 0
        while path < len(totals):
            for spent, sign in network.path(path):
                totals[path, 0] += spent
                if lanes[sign] >= 0:
                    totals[path, 1 + lanes[sign]] += spent
            path += 1 + 2 * int(arrays.pool[path])
        self._forward: list[_Least] = []
        self._backward: list[_Least] = []
        for op in range(self.operators):
            first = int(field(blob.OP_BASE)[op])
            last = first + int(network.choices[op])
            self._forward.append(_Least(totals[field(blob.OP_FORWARD)[first:last]]))
            self._backward.append(_Least(totals[field(blob.OP_BACKWARD)[first:last]]))
        self._ways = [_Pairs(network, totals, edge, False) for edge in range(len(self._ends))]
        self._back = [
            _Pairs(network, totals, edge, True) if self._returns[edge] else None for edge in range(len(self._ends))
        ]

    def of(self, assignment: Ints, depth: int) -> int:
        """No strategy whose first ``depth`` operators have these configurations is faster."""
        chosen = [int(assignment[op]) if op < depth else -1 for op in range(self.operators)]
        work: Any = 0
        ahead = [0] * self.operators
        behind = [0] * self.operators
        for op in range(self.operators):
            own = self._forward[op].of(chosen[op])
            work = work + own
            ahead[op] += int(own[0])
        incoming: list[list[int]] = [[] for _ in range(self.operators)]
        for edge, (_, end) in enumerate(self._ends):
            incoming[end].append(edge)
        own_ahead = list(ahead)
        for op in range(self.operators):
            before = 0
            for edge in incoming[op]:
                start = self._ends[edge][0]
                way = self._ways[edge].of(chosen[start], chosen[op])
                work = work + way
                before = max(before, ahead[start] + int(way[0]))
            ahead[op] = before + own_ahead[op]
        latest = list(ahead)
        for op in reversed(range(self.operators)):
            own = self._backward[op].of(chosen[op])
            work = work + own
            behind[op] = latest[op] + int(own[0])
            for edge in incoming[op]:
                back = self._back[edge]
                if back is not None:
                    start = self._ends[edge][0]
                    way = back.of(chosen[start], chosen[op])
                    work = work + way
                    latest[start] = max(latest[start], behind[op] + int(way[0]))
        return max(int(work[1:].max()), max(behind), max(ahead))


class _Least:
    """Ticks of configurations, and the least of all."""

    def __init__(self, each: Ints) -> None:
        self._each = np.vstack([each, each.min(axis=0)])

    def of(self, choice: int) -> Ints:
        return self._each[choice]  # -1, the last, is the least


class _Pairs:
    """Ticks of pairs of configurations, and the least where one is open."""

    def __init__(self, network: Network, totals: Ints, edge: int, back: bool) -> None:
        field, arrays = network.field, network.arrays
        start, end = (int(field(name)[edge]) for name in (blob.EDGE_FROM, blob.EDGE_TO))
        names = (blob.WAY_TABLE, blob.WAY_FROM, blob.WAY_TO)
        if back:
            names = (blob.BACK_TABLE, blob.BACK_FROM, blob.BACK_TO)
        table, rows, columns = (int(field(name)[edge]) for name in names)
        counts = [int(network.choices[op]) for op in ((end, start) if back else (start, end))]
        layouts = field(blob.LAYOUTS)
        places = arrays.rows[table + layouts[rows : rows + counts[0]]]
        paths = arrays.routes[places[:, None] + layouts[columns : columns + counts[1]][None, :]]
        each = np.where(paths[..., None] < 0, np.iinfo(np.int64).max >> 8, totals[np.maximum(paths, 0)])
        each = each.swapaxes(0, 1) if back else each
        each = np.concatenate([each, each.min(axis=0, keepdims=True)])
        self._each = np.concatenate([each, each.min(axis=1, keepdims=True)], axis=1)

    def of(self, start: int, end: int) -> Ints:
        return self._each[start, end]
