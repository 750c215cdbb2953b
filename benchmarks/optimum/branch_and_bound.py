"""The best strategy of all, by branch and bound under the simulator (FlexFlow section 8.3). For small models only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.optimum.bounds import best_bounds
from benchmarks.optimum.descent import Terms, descend
from benchmarks.optimum.relaxation import Relaxation
from tensoropt.errors import ProblemError
from tensoropt.mcmc.moves import Moves
from tensoropt.problem.problem import FloatArray
from tensoropt.simulate import Network, Simulator
from tensoropt.space.work import TICKS_PER_S, Ints

__all__ = ["Optimum", "find_optimum"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The fastest strategy that there is.

    Attributes:
        time_s: its simulated time.
        assignment: a configuration of each operator.
        strategies: how many there are.
        least_s: what the bound says that all take at least.
        partial: how many partial strategies were looked at.
        simulated: how many whole ones were simulated.
        seconds: of wall-clock time.
    """

    time_s: float
    assignment: tuple[int, ...]
    strategies: float
    least_s: float
    partial: int
    simulated: int
    seconds: float


def find_optimum(
    network: Network, start: Sequence[int], *, moves: Moves | None = None, most_partial: int = 50_000_000
) -> Optimum:
    """Goes through all strategies, operator by operator, but for those that cannot beat the best so far.

    No schedule is shorter than what one kind of resource has to do, nor than a mean of what two have. Such a mean adds
    up over operators and edges, so the least that what is not chosen yet takes is known exactly
    (`benchmarks.optimum.relaxation`), which is a bound as in A*.

    Args:
        network: the tasks.
        start: the best strategy so far, from which on others must be faster.
        moves: operators that decide for others, whose strategies are gone through; by default each for itself.
        most_partial: gives up after so many partial strategies.

    Raises:
        ProblemError: there are too many that cannot be ruled out, or operators may be placed.
    """
    began = time.perf_counter()
    moves = Moves.of_each(network.choices) if moves is None else moves
    simulator = Simulator(network, start, together=moves.members)
    relaxed = best_bounds(network, moves, simulator.assignment)
    best: Ints = simulator.assignment.copy()
    makespan, partial, simulated = descend(
        *simulator.compiled(),
        moves.sets,
        _packed(relaxed),
        most_partial,
        simulator.makespan,
        best,
    )
    if partial > most_partial:
        raise ProblemError(
            f"Optimum: more than {most_partial} partial strategies of {len(relaxed.order)} operators cannot be ruled "
            "out. Give operators fewer configurations, or a better strategy to start from."
        )
    return Optimum(
        int(makespan) / TICKS_PER_S,
        tuple(best.tolist()),
        float(np.prod(moves.choices[: moves.singles].astype(np.float64))),
        float(relaxed.least().max()) / TICKS_PER_S,
        int(partial),
        int(simulated),
        time.perf_counter() - began,
    )


def _packed(relaxed: Relaxation) -> Terms:
    """A relaxation as flat arrays."""
    counts = [len(table) for table in relaxed.own]
    numbers: list[int] = [0] * len(counts)
    tables: list[FloatArray] = []
    size = 0

    def put(table: FloatArray) -> int:
        nonlocal size
        tables.append(np.ascontiguousarray(table).reshape(-1))
        size += table.size
        return size - table.size

    for position in range(len(counts)):
        border = relaxed.border[position]
        numbers[position] = len(numbers)
        numbers += [counts[position], put(relaxed.own[position]), put(relaxed.ahead[position])]
        numbers += [len(relaxed.before[position]), len(border)]
        for near, table in relaxed.before[position]:
            numbers += [near, put(table), counts[position]]
        for number, place in enumerate(border):
            numbers += [place, int(np.prod([counts[other] for other in border[number + 1 :]], dtype=np.int64))]
    order = np.array(relaxed.order, np.int64)
    return Terms(order, np.array(numbers, np.int64), np.concatenate(tables), relaxed.own[0].shape[1])
