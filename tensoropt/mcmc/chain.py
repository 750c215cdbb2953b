"""One Markov chain over strategies, by simulated time (FlexFlow section 6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc import chain_kernels as kernels
from tensoropt.mcmc.network import Network
from tensoropt.mcmc.simulator import Simulator
from tensoropt.search.problem import Problem
from tensoropt.search.stages import TICKS_PER_S, Ints

__all__ = ["Chain", "ChainResult", "Memory", "Stop", "no_memory"]

# Proposals drawn at once; a time budget is looked at in between.
_PROPOSALS = 512
# A chain makes as many proposals at least before patience may end it.
_LEAST_PROPOSALS = 1000
_LEAST_PER_OPERATOR = 10
_DEFAULT_BETA = 200.0


class Memory(NamedTuple):
    """Bytes by configuration and by pair of configurations, whole ones rounded up, for compiled loops.

    Attributes:
        limit: of the sum; -1 for none.
        node: all operators' tables.
        node_base: where each operator's begins.
        edge: all edges' tables, row by row.
        edge_base: where each edge's begins.
        width: columns of each edge's.
        edge_from: producers.
        edge_to: consumers.
    """

    limit: int
    node: Ints
    node_base: Ints
    edge: Ints
    edge_base: Ints
    width: Ints
    edge_from: Ints
    edge_to: Ints


@dataclass(frozen=True, slots=True)
class Stop:
    """When a chain ends.

    Attributes:
        iterations: after so many proposals; None for no such limit.
        seconds: after so much time; None for no such limit. With it, what is found depends on the machine.
        patience: after this share of all proposals so far, the last of them, brought nothing better; 1 for never.
    """

    iterations: int | None = None
    seconds: float | None = None
    patience: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (("iterations", self.iterations), ("seconds", self.seconds)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ProblemError(
                    f"MCMC: the budget of {name} must be positive and finite, got {value}. Give the search at least "
                    "a proposal to make."
                )
        if not 0.0 < self.patience <= 1.0:
            raise ProblemError(
                f"MCMC: patience is a share of the search so far, above 0 and up to 1, got {self.patience}. "
                "The paper's is 0.5."
            )


@dataclass(frozen=True, slots=True)
class ChainResult:
    """What a chain found.

    Attributes:
        cost_ticks: of the best strategy.
        assignment: the best strategy, a configuration of each operator.
        proposals: how many were made.
        accepted: how many were taken.
        best_at: the number of the proposal that gave the best.
        seconds: of wall-clock time.
        stopped_by: ``"iterations"``, ``"seconds"``, ``"patience"`` or ``"interrupt"``.
    """

    cost_ticks: int
    assignment: tuple[int, ...]
    proposals: int
    accepted: int
    best_at: int
    seconds: float
    stopped_by: str


# Called between batches of proposals: how many were made, how many taken, the best cost in seconds.
Report = Callable[[int, int, float], None]


def no_memory() -> Memory:
    """No limit."""
    nothing = np.zeros(0, np.int64)
    return Memory(-1, *[nothing] * 7)


def memory_of_problem(problem: Problem, limit_bytes: float) -> Memory:
    """The memory tables of a problem, with a limit.

    Raises:
        InfeasibleError: an operator has no configuration that alone fits.
    """

    def whole(table: np.ndarray, rank: int) -> Ints:
        first = table if table.ndim == rank else table[..., 0]
        return np.ceil(np.minimum(first, 2.0**60 / (problem.nodes + len(problem.edges) + 1))).astype(np.int64)

    nodes: list[Ints] = []
    for name, table in zip(problem.names, problem.node_memory_bytes, strict=True):
        least = float(np.min(table))
        if least > limit_bytes:
            raise InfeasibleError(
                f"MCMC: operator '{name}' has no configuration within {limit_bytes:.0f} bytes per device; the smallest of "
                f"its {len(table)} takes {least:.0f}. Allow more memory, or use more devices."
            )
        nodes.append(whole(table, 1))
    edges: dict[int, tuple[int, Ints]] = {}
    total = 0
    base = []
    for table in problem.edge_memory_bytes:
        if id(table) not in edges:
            flat = whole(table, 2).reshape(-1)
            edges[id(table)] = total, flat
            total += len(flat)
        base.append(edges[id(table)][0])
    return Memory(
        math.floor(limit_bytes),
        np.concatenate(nodes),
        np.cumsum([0, *map(len, nodes)])[:-1].astype(np.int64),
        np.concatenate([flat for _, flat in edges.values()] or [np.zeros(0, np.int64)]),
        np.array(base, np.int64),
        np.array([table.shape[1] for table in problem.edge_memory_bytes], np.int64),
        problem.edges[:, 0].copy(),
        problem.edges[:, 1].copy(),
    )


class Chain:
    """Metropolis-Hastings with proposals that change one operator's configuration (Eq. 1).

    Which proposals are made and taken depends on the seed alone. A proposal is taken if it costs at most
    ``cost - ln(u) / beta`` for a random u of (0, 1], which is known before it is simulated, so that a simulation may end
    as soon as it is beyond that.
    """

    def __init__(
        self,
        network: Network,
        initial: Sequence[int],
        *,
        beta: float | None = None,
        seed: np.random.SeedSequence | int = 0,
        memory: Memory | None = None,
        delta: bool = True,
    ) -> None:
        """Simulates the first strategy.

        Args:
            network: the tasks.
            initial: a configuration of each operator.
            beta: per second; by default 200 for the time of the first strategy: one that is 1 % slower than the current
                one is taken every seventh time.
            seed: of proposals.
            memory: tables and limit.
            delta: whether to simulate only what changes; with the same results either way.

        Raises:
            ProblemError: beta is not positive.
        """
        self._rng = np.random.default_rng(seed)
        self._memory = no_memory() if memory is None else memory
        self._delta = delta
        self.simulator = Simulator(network, initial)
        first_s = max(self.simulator.makespan_s, 1 / TICKS_PER_S)
        self.beta = _DEFAULT_BETA / first_s if beta is None else beta
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise ProblemError(f"MCMC: beta must be positive and finite, got {beta}. The larger, the greedier.")
        limited = self._memory.limit >= 0
        bytes_now = int(kernels.memory_of(self._memory, self.simulator.assignment)) if limited else 0
        fits = not limited or bytes_now <= self._memory.limit
        makespan = self.simulator.makespan
        self._state: Ints = np.array([0, makespan, makespan, 0, 0, bytes_now, int(fits)], np.int64)
        self._best: Ints = self.simulator.assignment.copy()
        self._made = 0

    def run(self, stop: Stop, report: Report | None = None) -> ChainResult:
        """Goes on until it ends; Ctrl-C ends it too, and the best so far counts.

        Raises:
            InfeasibleError: no strategy that was seen fits the memory.
        """
        operators = self.simulator.network.operators
        least = max(_LEAST_PROPOSALS, _LEAST_PER_OPERATOR * operators)
        began = time.perf_counter()
        why = "interrupt"
        try:
            while True:
                batch = _PROPOSALS if stop.iterations is None else min(_PROPOSALS, stop.iterations - self._made)
                if batch <= 0:
                    why = "iterations"
                    break
                if stop.seconds is not None and time.perf_counter() - began >= stop.seconds:
                    why = "seconds"
                    break
                quiet = self._made - int(self._state[kernels.BEST_AT])
                if self._made >= least and stop.patience < 1 and quiet >= stop.patience * self._made:
                    why = "patience"
                    break
                self._propose(batch)
                if report is not None:
                    report(self._made, int(self._state[kernels.ACCEPTED]), self._state[kernels.BEST] / TICKS_PER_S)
        except KeyboardInterrupt:
            pass
        if not self._state[kernels.FEASIBLE]:
            raise InfeasibleError(
                f"MCMC: none of the strategies that {self._made} proposals led to fits {self._memory.limit} bytes per "
                f"device; the smallest takes about {int(self._state[kernels.MEMORY])}. Allow more memory, more "
                "proposals, or give an initial strategy that fits."
            )
        return ChainResult(
            int(self._state[kernels.BEST]),
            tuple(self._best.tolist()),
            self._made,
            int(self._state[kernels.ACCEPTED]),
            int(self._state[kernels.BEST_AT]),
            time.perf_counter() - began,
            why,
        )

    def _propose(self, batch: int) -> None:
        simulator, state = self.simulator, self._state
        network = simulator.network
        drawn = self._rng.random((batch, 3))
        operators = (drawn[:, 0] * network.operators).astype(np.int64)
        choices = (drawn[:, 1] * network.choices[operators]).astype(np.int64)
        slack = np.floor(-np.log1p(-drawn[:, 2]) / self.beta * TICKS_PER_S)
        slack = np.minimum(slack, 2.0**60).astype(np.int64)
        if simulator.require(operators, choices):
            simulator.refresh()
        state[kernels.NEXT] = 0
        run = kernels.run_delta if self._delta else kernels.run_full
        done = False
        while not done:
            simulator.grow()
            done = run(
                *simulator.compiled(),
                self._memory,
                simulator.room,
                simulator.assignment,
                operators,
                choices,
                slack,
                self._made,
                state,
                self._best,
            )
            simulator.makespan = int(state[kernels.COST])
        self._made += batch
