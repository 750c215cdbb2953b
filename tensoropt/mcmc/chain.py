"""One Markov chain over strategies, by simulated time or by a sum (FlexFlow section 6)."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc.additive_cost import AdditiveCost
from tensoropt.mcmc.device_memory import DeviceMemory
from tensoropt.mcmc.integer_sums import sum_of
from tensoropt.mcmc.memory_limit import Memory, no_memory
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.proposals import PROGRESS, PROPOSAL, run_additive, run_delta, run_full, take
from tensoropt.simulate.network import Network
from tensoropt.simulate.simulation_state import Records
from tensoropt.simulate.simulator import NO_LIMIT, Simulator
from tensoropt.space.work import TICKS_PER_S, Ints

__all__ = ["AdditiveChain", "Chain", "ChainResult", "MarkovChain", "Report", "Stop"]

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
    """The result of a chain.

    Attributes:
        cost_ticks: of the best strategy; of simulated time, or of the additive cost's unit.
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


class MarkovChain(ABC):
    """Metropolis-Hastings with proposals that change one operator's configuration, with its followers' (Eq. 1).

    Which proposals are made and taken depends on the seed alone. A proposal is taken if it costs at most
    ``cost - ln(u) / beta`` for a random u of (0, 1], which is known before its cost is, so that a simulation may end as
    soon as it is beyond that: what is slower by Δ is taken with probability exp(-beta Δ), what is not, always.
    """

    def __init__(
        self,
        assignment: Ints,
        cost: int,
        moves: Moves,
        memory: Memory,
        held_bytes: int,
        beta: float | None,
        seed: np.random.SeedSequence | int,
        early: bool,
    ) -> None:
        """Begins with a strategy of so many ticks and bytes; for the rest see :class:`Chain`."""
        if beta is not None and not (math.isfinite(beta) and beta > 0):
            raise ProblemError(f"MCMC: beta must be positive and finite, got {beta}. The larger, the greedier.")
        self._rng = np.random.default_rng(seed)
        self._beta = beta
        self._moves = moves
        self._memory = memory
        self._state: Records = np.zeros(1, PROGRESS)
        for name in ("cost", "best", "noted"):
            self._state[name] = cost
        self._state["bytes"], self._state["early"] = held_bytes, early
        self._state["feasible"] = memory.limit < 0 or held_bytes <= memory.limit
        self._best: Ints = assignment.copy()
        self._made = 0

    @property
    def best_s(self) -> float:
        """Seconds of the best strategy so far."""
        return float(self._state["best"][0] / TICKS_PER_S)

    def run(self, stop: Stop, report: Report | None = None) -> ChainResult:
        """Goes on until it ends; Ctrl-C ends it too, and the best so far counts.

        Raises:
            InfeasibleError: no strategy that was seen fits the memory.
            KeyboardInterrupt: Ctrl-C, before one was seen that does.
        """
        least = max(_LEAST_PROPOSALS, _LEAST_PER_LEADER * self._moves.singles)
        began = time.perf_counter()
        why = "interrupt"
        state = self._state[0]
        try:
            while True:
                batch = _PROPOSALS if stop.iterations is None else min(_PROPOSALS, stop.iterations - self._made)
                if batch <= 0:
                    why = "iterations"
                    break
                if stop.seconds is not None and time.perf_counter() - began >= stop.seconds:
                    why = "seconds"
                    break
                quiet = self._made - int(state["best_at"])
                if self._made >= least and stop.patience < 1 and quiet >= stop.patience * self._made:
                    why = "patience"
                    break
                self._propose(self._drawn(batch))
                self._made += batch
                if report is not None:
                    report(self._made, int(state["accepted"]), self.best_s)
        except KeyboardInterrupt:
            pass
        if not state["feasible"] and why == "interrupt":
            raise KeyboardInterrupt
        if not state["feasible"]:
            raise InfeasibleError(
                f"MCMC: none of the strategies that {self._made} proposals led to fits {self._memory.limit} bytes per "
                f"device; the smallest takes about {int(state['bytes'])}. Allow more memory, more "
                "proposals, or give an initial strategy that fits."
            )
        return ChainResult(
            int(state["best"]),
            tuple(self._best.tolist()),
            self._made,
            int(state["accepted"]),
            int(state["best_at"]),
            time.perf_counter() - began,
            why,
        )

    def _drawn(self, batch: int) -> Records:
        """The next proposals."""
        drawn = self._rng.random((batch, 3))
        result = np.zeros(batch, PROPOSAL)
        result["set"], result["choice"] = self._moves.draw(drawn[:, 0], drawn[:, 1])
        beta = _DEFAULT_BETA / max(self.best_s, 1 / TICKS_PER_S) if self._beta is None else self._beta
        result["slack"] = np.minimum(np.floor(-np.log1p(-drawn[:, 2]) / beta * TICKS_PER_S), 2.0**60)
        return result

    @abstractmethod
    def _propose(self, proposals: Records) -> None:
        """Makes proposals, ``(K,)`` of ``PROPOSAL``, one after the other."""


class Chain(MarkovChain):
    """A chain by simulated time."""

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
        moves = Moves.of_each(network.choices) if moves is None else moves
        self.simulator = Simulator(network, initial, together=moves.members)
        self._delta = delta
        self._devices = memory if isinstance(memory, DeviceMemory) else None
        held, chosen = 0, self.simulator.assignment
        if isinstance(memory, DeviceMemory):
            held, limit = memory.fullest(chosen), no_memory()._replace(limit=memory.limit)
        else:
            limit = no_memory() if memory is None else memory
            held = _held(limit, chosen)
        super().__init__(chosen, self.simulator.makespan, moves, limit, held, beta, seed, early)

    def _propose(self, proposals: Records) -> None:
        simulator = self.simulator
        if self._devices is not None:
            self._propose_by_device(self._devices, proposals)
            return
        if not simulator.network.graph.complete:
            simulator.require(*self._moves.changed(proposals["set"], proposals["choice"]))
        self._state["next"] = 0
        run = run_delta if self._delta else run_full
        done = False
        while not done:
            simulator.refresh()
            done = run(
                *simulator.compiled(),
                self._moves.sets,
                self._memory,
                simulator.room,
                proposals,
                self._made,
                self._state,
                self._best,
            )
            simulator.makespan = int(self._state["cost"][0])

    def _propose_by_device(self, devices: DeviceMemory, proposals: Records) -> None:
        """The same one by one, as places of operators say how much a device has: asked of what is fast enough."""
        simulator, state = self.simulator, self._state[0]
        for number, (set_, choice, slack) in enumerate(proposals.tolist()):
            wanted = simulator.assignment.copy()
            self._moves.place(wanted, set_, choice)
            held = int(state["bytes"])
            fits = held <= devices.limit
            cost = simulator.try_strategy(wanted, int(state["cost"]) + slack if fits else NO_LIMIT)
            if cost < 0 or not simulator.moved:
                simulator.reject()
                continue
            more = devices.fullest(simulator.assignment) - held
            if held + more > (devices.limit if fits else held):
                simulator.reject()
                continue
            simulator.accept()
            state["more"] = more
            take(self._memory, self._state, self._made + number, cost, simulator.assignment, self._best)


class AdditiveChain(MarkovChain):
    """A chain by a cost that is a sum: a proposal takes as long as operators that it changes have edges."""

    def __init__(
        self,
        cost: AdditiveCost,
        initial: Sequence[int],
        *,
        beta: float | None = None,
        seed: np.random.SeedSequence | int = 0,
        moves: Moves | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Adds up the first strategy, which must be possible; for the arguments see :class:`Chain`."""
        self._cost = cost
        self._assignment: Ints = np.array(initial, np.int64)
        self._before: Ints = np.zeros(len(initial), np.int64)
        moves = Moves.of_each(cost.choices) if moves is None else moves
        memory = no_memory() if memory is None else memory
        ticks, held = int(sum_of(cost.ticks, self._assignment)), _held(memory, self._assignment)
        super().__init__(self._assignment, ticks, moves, memory, held, beta, seed, True)

    def _propose(self, proposals: Records) -> None:
        run_additive(
            self._cost.ticks,
            self._moves.sets,
            self._memory,
            proposals,
            self._made,
            self._assignment,
            self._before,
            self._state,
            self._best,
        )


def _held(memory: Memory, assignment: Ints) -> int:
    return int(sum_of(memory.held, assignment)) if memory.limit >= 0 else 0
