"""One Markov chain over strategies, by simulated time (FlexFlow section 6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc import chain_kernels as kernels
from tensoropt.mcmc.device_memory import DeviceMemory
from tensoropt.mcmc.memory import Memory, memory_of, no_memory
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.network import Network
from tensoropt.mcmc.simulator import NO_LIMIT, Simulator
from tensoropt.search.stages import TICKS_PER_S, Ints

__all__ = ["Chain", "ChainResult", "Report", "Stop"]

# Proposals drawn at once; a time budget is looked at in between.
_PROPOSALS = 512
# A chain makes as many proposals at least before patience may end it.
_LEAST_PROPOSALS = 1000
_LEAST_PER_LEADER = 10
_DEFAULT_BETA = 2000.0


@dataclass(frozen=True, slots=True)
class Stop:
    """When a chain ends.

    Attributes:
        iterations: after so many proposals; None for no such limit.
        seconds: after so much time; None for no such limit. With it, what is found depends on the machine.
        patience: after this share of all proposals so far, the last of them, brought nothing that is better by more
            than a thousandth; 1 for never.
    """

    iterations: int | None = None
    seconds: float | None = None
    patience: float = 0.5

    def __post_init__(self) -> None:
        given: Any = self.iterations
        if given is not None and not isinstance(given, int | np.integer):
            raise ProblemError(f"MCMC: iterations must be a whole number, got {given!r}. Give the proposals to make.")
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
        cost_ticks: of the best strategy, in ticks of the network.
        assignment: the best strategy, a configuration of each operator.
        proposals: how many were made.
        accepted: how many were taken.
        best_at: the number of the last proposal that made the best better by more than a thousandth.
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


class Chain:
    """Metropolis-Hastings with proposals that change one operator's configuration, with its followers' (Eq. 1).

    Which proposals are made and taken depends on the seed alone. A proposal is taken if it costs at most
    ``cost - ln(u) / beta`` for a random u of (0, 1], which is known before it is simulated, so that a simulation may
    end as soon as it is beyond that.
    """

    def __init__(
        self,
        network: Network,
        initial: Sequence[int],
        *,
        beta: float | None = None,
        seed: np.random.SeedSequence | int = 0,
        moves: Moves | None = None,
        memory: Memory | DeviceMemory | None = None,
        delta: bool = True,
        early: bool = True,
    ) -> None:
        """Simulates the first strategy.

        Args:
            network: the tasks.
            initial: a configuration of each operator.
            beta: per second; by default 2,000 for the time of the best strategy so far, looked at every 512 proposals:
                one that is slower by a thousandth of it is taken every seventh time.
            seed: of proposals.
            moves: what a proposal changes; by default one operator.
            memory: tables and limit of the sum, or what tells the fullest device; hard. A chain that begins with what
                does not fit goes down in memory first, whatever the time.
            delta: whether to simulate only what changes; with the same results either way.
            early: whether such a simulation ends once it is beyond what is taken; with the same results either way. A
                full one never does.

        Raises:
            ProblemError: beta is not positive.
        """
        self._rng = np.random.default_rng(seed)
        self._devices = memory if isinstance(memory, DeviceMemory) else None
        if isinstance(memory, DeviceMemory):
            self._memory = no_memory()._replace(limit=memory.limit)
        else:
            self._memory = no_memory() if memory is None else memory
        self._moves = Moves.of_each(network) if moves is None else moves
        self._delta = delta
        self.simulator = Simulator(network, initial, moves=self._moves)
        self._beta = beta
        if beta is not None and not (math.isfinite(beta) and beta > 0):
            raise ProblemError(f"MCMC: beta must be positive and finite, got {beta}. The larger, the greedier.")
        limited = self._memory.limit >= 0
        if self._devices is not None:
            bytes_now = self._devices.fullest(self.simulator.assignment)
        else:
            bytes_now = int(memory_of(self._memory, self.simulator.assignment)) if limited else 0
        fits = not limited or bytes_now <= self._memory.limit
        makespan = self.simulator.makespan
        self._state: Ints = np.array(
            [0, makespan, makespan, 0, 0, bytes_now, int(fits), makespan, 0, 0, int(early)], np.int64
        )
        self._best: Ints = self.simulator.assignment.copy()
        self._made = 0

    @property
    def best_s(self) -> float:
        """Seconds of the best strategy so far."""
        return float(self._state[kernels.BEST] / TICKS_PER_S)

    def run(self, stop: Stop, report: Report | None = None) -> ChainResult:
        """Goes on until it ends; Ctrl-C ends it too, and the best so far counts.

        Raises:
            InfeasibleError: no strategy that was seen fits the memory.
            KeyboardInterrupt: Ctrl-C, before one was seen that does.
        """
        least = max(_LEAST_PROPOSALS, _LEAST_PER_LEADER * self._moves.singles)
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
                    report(self._made, int(self._state[kernels.ACCEPTED]), self.best_s)
        except KeyboardInterrupt:
            pass
        if not self._state[kernels.FEASIBLE] and why == "interrupt":
            raise KeyboardInterrupt
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
        simulator, moves, state = self.simulator, self._moves, self._state
        drawn = self._rng.random((batch, 3))
        sets, choices = moves.draw(drawn[:, 0], drawn[:, 1])
        beta = _DEFAULT_BETA / max(self.best_s, 1 / TICKS_PER_S) if self._beta is None else self._beta
        slack = np.floor(-np.log1p(-drawn[:, 2]) / beta * TICKS_PER_S)
        slack = np.minimum(slack, 2.0**60).astype(np.int64)
        simulator.require(moves, sets, choices)
        simulator.refresh()
        if self._devices is not None:
            self._propose_by_device(self._devices, sets, choices, slack)
            self._made += batch
            return
        state[kernels.NEXT] = 0
        run = kernels.run_delta if self._delta else kernels.run_full
        done = False
        while not done:
            simulator.grow()
            done = run(
                *simulator.compiled(),
                moves.blob,
                self._memory,
                simulator.room,
                simulator.assignment,
                sets,
                choices,
                slack,
                self._made,
                state,
                self._best,
            )
            simulator.makespan = int(state[kernels.COST])
        self._made += batch

    def _propose_by_device(self, devices: DeviceMemory, sets: Ints, choices: Ints, slack: Ints) -> None:
        """The same one by one, as places of operators say how much a device has: asked of what is fast enough."""
        simulator, state = self.simulator, self._state
        for number, proposal in enumerate(zip(sets.tolist(), choices.tolist(), slack.tolist(), strict=True)):
            held = int(state[kernels.MEMORY])
            fits = held <= devices.limit
            cost = simulator.try_change(*proposal[:2], int(state[kernels.COST]) + proposal[2] if fits else NO_LIMIT)
            if cost < 0 or not simulator.moved:
                simulator.reject()
                continue
            more = devices.fullest(simulator.assignment) - held
            if held + more > (devices.limit if fits else held):
                simulator.reject()
                continue
            simulator.accept()
            state[kernels.MORE] = more
            kernels.take(self._memory, state, self._made + number, cost, simulator.assignment, self._best)
