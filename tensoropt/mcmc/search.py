"""Searches by Markov chains (FlexFlow section 6): on a search space by simulated time, or on any problem."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc.additive import AdditiveCost, AdditiveProblem
from tensoropt.mcmc.chain import ChainResult, Stop
from tensoropt.mcmc.chains import Shared, Start, run_chains
from tensoropt.mcmc.memory import limited_memory, no_memory
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.neighbours import find_regions
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.frontier import Frontier, FrontierPoint, frontier_of
from tensoropt.problem.problem import Problem
from tensoropt.search.registry import get_finder
from tensoropt.simulate.network import Network
from tensoropt.simulate.step import network_of
from tensoropt.space.followers import follow
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S, Ints

__all__ = [
    "RANDOM",
    "Initial",
    "McmcResult",
    "Run",
    "mcmc",
    "moves_of",
    "random_strategy",
    "search_problem",
    "search_space",
    "search_strategy",
]

RANDOM = "random"
Initial = Sequence[int] | str | Mapping[str, Configuration] | FrontierPoint
"""A strategy to begin at; see :func:`search_strategy`."""

_COSTS = ("simulated", "additive")
_DEFAULT_ITERATIONS = 100_000
_TRIES = 200


@dataclass(frozen=True, slots=True)
class McmcResult:
    """What chains found.

    Attributes:
        cost: ``"simulated"`` or ``"additive"``.
        time_s: of the best strategy, by that cost.
        assignment: the best strategy, an index into the choices of each operator of training.
        memory_bytes: its predicted memory, if there was a limit or the cost is additive; else None.
        chains: what each chain found, in the order of their numbers.
        best_chain: the number of the chain that found the best; the first of several.
        seed: of the search.
        seconds: of wall-clock time, without tables.
    """

    cost: str
    time_s: float
    assignment: tuple[int, ...]
    memory_bytes: float | None
    chains: tuple[ChainResult, ...]
    best_chain: int
    seed: int
    seconds: float

    @property
    def acceptance_rate(self) -> float:
        """The share of proposals that were taken."""
        made = sum(chain.proposals for chain in self.chains)
        return sum(chain.accepted for chain in self.chains) / made if made else 0.0


class Run(NamedTuple):
    """How chains run; for the fields see :func:`search_strategy`."""

    stop: Stop
    beta: float | None = None
    seed: int = 0
    chains: int | None = None
    processes: int = 1
    progress: bool = False


def moves_of(space: SearchSpace, network: Network, *, variables: bool = False) -> Moves:
    """What proposals change: operators that decide, with those that follow them (`tensoropt.space.followers`).

    Args:
        space: of strategies.
        network: of the space.
        variables: whether they decide for themselves, which what is stored in pieces needs. Otherwise a variable with
            one reader is stored as is fastest beside it.
    """
    leaders, index = follow(space, small_bytes=0.0 if variables else np.inf)
    return Moves.of(network.choices, leaders, index, find_regions(space.problem, leaders, index))


def search_strategy(
    space: SearchSpace,
    *,
    beta: float | None = None,
    budget_seconds: float | None = None,
    iterations: int | None = None,
    patience: float = 0.5,
    seed: int = 0,
    initial: Sequence[Initial] = (RANDOM,),
    memory_bytes: float | None = None,
    chains: int | None = None,
    processes: int = 1,
    cost: str = "simulated",
    progress: bool = False,
    network: Network | None = None,
    overlap: bool = False,
    every: bool = False,
) -> McmcResult:
    """Searches a space by Markov chains.

    A chain ends after its iterations or its seconds, or when the last half of its proposals brought nothing better by a
    thousandth (`Stop`).
    Without ``budget_seconds`` what is found depends on the arguments alone, and repeats itself byte for byte; only the
    seconds that it took do not. Ctrl-C ends all chains, and the best so far counts.

    Args:
        space: of strategies.
        beta: of the acceptance rule (Eq. 1), per second; see :class:`tensoropt.mcmc.chain.Chain`.
        budget_seconds: of each chain.
        iterations: proposals of each chain; by default 100,000 if there is no budget of seconds.
        patience: the share of a chain after which it ends if it found nothing better by a thousandth; 1 for never.
        seed: of all randomness.
        initial: first strategies: the name of a baseline (``"data_parallel"``, ``"one_weird_trick"``, …; its fastest,
            once `tensoropt.baselines` is imported), a point of another search's frontier on the space's problem, a
            configuration of each operator by name, configuration indices, or ``"random"``.
        memory_bytes: what a device may hold, by the predictions of the space's problem; hard.
        chains: how many; the initial strategies take turns. By default one for each.
        processes: how many run at once.
        cost: ``"simulated"`` time, or the ``"additive"`` time of the space's problem.
        progress: whether to show a bar with the best so far and the acceptance rate.
        network: of the space, for simulated time, if it is at hand.
        overlap: of simulated time, see :func:`network_of`; a given network has its own.
        every: whether every operator is drawn by itself. By default those are that decide, and proposals change them
            with their followers; initial strategies stay as they are until then. Variables decide for themselves if
            there is a memory limit. By the additive cost every operator decides.

    Raises:
        ProblemError: an argument is out of range.
        InfeasibleError: nothing fits the memory.
    """
    if cost not in _COSTS:
        raise ProblemError(f"MCMC: cost must be one of {', '.join(map(repr, _COSTS))}, got {cost!r}. Choose one.")
    firsts = [_indices(space, one) for one in initial]
    run = Run(_stop(budget_seconds, iterations, patience), beta, seed, chains, processes, progress)
    if cost == "additive":
        return search_problem(space.problem, run, firsts, memory_bytes)[0]
    network = network_of(space, overlap=overlap) if network is None else network
    return search_space(space, network, run, firsts, memory_bytes, every=every)


def search_space(
    space: SearchSpace,
    network: Network,
    run: Run,
    initial: Sequence[Sequence[int] | str],
    memory_bytes: float | None,
    *,
    every: bool = False,
) -> McmcResult:
    """What chains found in a space by the simulated time of its network; see :func:`search_strategy`."""
    memory = no_memory()
    if memory_bytes is not None:
        problem = space.problem
        first = [table if table.ndim == 1 else table[..., 0] for table in problem.node_memory_bytes]
        # An edge keeps all copies that the backward pass reads, which is its first alternative.
        pairs: dict[int, Any] = {}
        for table in problem.edge_memory_bytes:
            pairs.setdefault(id(table), table if table.ndim == 2 else table[..., 0])
        edges = [pairs[id(table)] for table in problem.edge_memory_bytes]
        memory = limited_memory(problem.names, first, problem.edges, edges, memory_bytes)
    moves = Moves.of_each(network.choices) if every else moves_of(space, network, variables=memory_bytes is not None)
    results, seconds = _run(Shared(network, moves, memory, run.stop, run.beta), run, initial)
    best = min(range(len(results)), key=lambda number: (results[number].cost_ticks, number))
    held = None
    if memory_bytes is not None:
        held = float(space.problem.costs(np.array(results[best].assignment))[1][0])
    return McmcResult(
        "simulated",
        results[best].cost_ticks / TICKS_PER_S,
        results[best].assignment,
        held,
        tuple(results),
        best,
        run.seed,
        seconds,
    )


def _indices(space: SearchSpace, first: Initial) -> Sequence[int] | str:
    """A first strategy as configuration indices, or ``"random"``."""
    if first == RANDOM:
        return RANDOM
    if isinstance(first, str):
        found = get_finder(first).find(space)
        return space.assignment(found.space.configurations(found.frontier.best().assignment))
    if isinstance(first, Mapping):
        return space.assignment(first)
    return first.assignment if isinstance(first, FrontierPoint) else first


def search_problem(
    problem: Problem, run: Run, initial: Sequence[Sequence[int] | str], memory_bytes: float | None
) -> tuple[McmcResult, Ints]:
    """What chains found in a problem by its additive cost, and the alternatives that the best strategy has.

    For the arguments see :func:`search_strategy`.
    """
    additive = AdditiveProblem.of(problem)
    firsts = [one if isinstance(one, str) else additive.reduced(tuple(one)) for one in initial]
    memory = additive.memory(memory_bytes)
    shared = Shared(additive.cost, additive.moves(), memory, run.stop, run.beta, additive.scale)
    results, seconds = _run(shared, run, firsts)
    costs = []
    originals = []
    for result in results:
        chosen, alternatives = additive.original(result.assignment)
        originals.append((chosen, alternatives))
        costs.append(tuple(float(part[0]) for part in problem.costs(np.array(chosen), alternatives)))
    best = min(range(len(results)), key=lambda number: (costs[number], number))
    chosen, alternatives = originals[best]
    time_s, memory_bytes = costs[best]
    return McmcResult("additive", time_s, chosen, memory_bytes, tuple(results), best, run.seed, seconds), alternatives


def mcmc(
    problem: Problem,
    *,
    beta: float | None = None,
    budget_seconds: float | None = None,
    iterations: int | None = None,
    patience: float = 0.5,
    seed: int = 0,
    initial: Sequence[Sequence[int] | str] = (RANDOM,),
    memory_bytes: float | None = None,
    chains: int | None = None,
    processes: int = 1,
) -> Frontier:
    """The fastest strategy of a problem that chains find, by its additive cost, as a frontier of one point.

    For the arguments see :func:`search_strategy`.
    """
    run = Run(_stop(budget_seconds, iterations, patience), beta, seed, chains, processes)
    result, alternatives = search_problem(problem, run, initial, memory_bytes)
    return frontier_of(
        problem,
        np.array([result.assignment]),
        alternatives[None, :],
        exact=False,
        eliminations=(),
        seconds=result.seconds,
    )


def _stop(budget_seconds: float | None, iterations: int | None, patience: float) -> Stop:
    if budget_seconds is None and iterations is None:
        iterations = _DEFAULT_ITERATIONS
    return Stop(iterations, budget_seconds, patience)


def _run(shared: Shared, run: Run, initial: Sequence[Sequence[int] | str]) -> tuple[list[ChainResult], float]:
    """What each chain found, and the seconds that all took."""
    count = len(initial) if run.chains is None else run.chains
    if count < 1 or run.processes < 1 or not initial:
        raise ProblemError(
            f"MCMC: needs at least one initial strategy, one chain and one process, got {len(initial)}, {count} and "
            f"{run.processes}. Leave chains out for one per initial strategy."
        )
    given: Any = run.seed
    if not isinstance(given, int | np.integer) or given < 0:
        raise ProblemError(f"MCMC: seed must be a whole number of at least 0, got {given!r}. Give for example seed=0.")
    seeds = np.random.SeedSequence(run.seed).spawn(count)
    starts: list[Start] = []
    for number in range(count):
        first_seed, chain_seed = seeds[number].spawn(2)
        first = initial[number % len(initial)]
        if isinstance(first, str):
            if first != RANDOM:
                raise ProblemError(
                    f"MCMC: an initial strategy is {RANDOM!r} or a configuration index per operator, got {first!r}. "
                    "Give the indices of a baseline's strategy."
                )
            first = random_strategy(shared.cost, np.random.default_rng(first_seed), shared.moves)
        starts.append((tuple(int(index) for index in first), chain_seed))
    began = time.perf_counter()
    results = run_chains(shared, starts, processes=run.processes, progress=run.progress)
    return results, time.perf_counter() - began


def random_strategy(
    network: Network | AdditiveCost, rng: np.random.Generator, moves: Moves | None = None
) -> tuple[int, ...]:
    """A configuration of each operator that decides at random, of those that are possible beside one another.

    Raises:
        InfeasibleError: none was found in many tries.
    """
    moves = Moves.of_each(network.choices) if moves is None else moves
    for _ in range(_TRIES):
        chosen = (rng.random(moves.singles) * moves.choices[: moves.singles]).astype(np.int64)
        assignment = moves.assignment(chosen)
        if network.allows(assignment) or _repaired(network, moves, chosen, assignment, rng):
            return tuple(assignment.tolist())
    raise InfeasibleError(
        f"MCMC: no possible strategy was found in {_TRIES} random ones of {moves.singles} operators. "
        "Give an initial strategy, such as data parallelism."
    )


def _repaired(
    network: Network | AdditiveCost, moves: Moves, chosen: Ints, assignment: Ints, rng: np.random.Generator
) -> bool:
    """Draws operators anew that are impossible beside earlier ones; whether that succeeded."""
    done = np.zeros(len(network.choices), bool)
    for number, members in enumerate(moves.members[: moves.singles]):
        done[members] = True
        edges = network.edges_among(done, members)
        others = rng.permutation(int(moves.choices[number]))
        for choice in (int(chosen[number]), *others.tolist()):
            moves.place(assignment, number, choice)
            if network.allows(assignment, edges):
                break
        else:
            return False
    return True
