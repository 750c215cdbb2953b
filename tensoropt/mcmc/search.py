"""Searches by Markov chains (FlexFlow section 6): on a search space by simulated time, or on any problem."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.mcmc.additive_cost import AdditiveCost, AdditiveProblem
from tensoropt.mcmc.chain import ChainResult
from tensoropt.mcmc.chains import Shared, Start, run_chains
from tensoropt.mcmc.initial import assignment_of, random_strategy
from tensoropt.mcmc.memory_limit import Memory, limited_memory, no_memory
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.neighbours import moves_of
from tensoropt.mcmc.options import RANDOM, Mcmc
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint, frontier_of
from tensoropt.problem.problem import Problem
from tensoropt.search.finding import NO_LIMIT
from tensoropt.simulate.network import Network
from tensoropt.simulate.simulated_step import network_of
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S, Ints

__all__ = ["McmcResult", "mcmc", "search_problem", "search_space", "search_strategy"]


@dataclass(frozen=True, slots=True)
class McmcResult:
    """The result of a search by several chains.

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


def search_strategy(
    space: SearchSpace,
    options: Mcmc,
    *,
    memory_bytes: float | None = None,
    network: Network | None = None,
    every: bool = False,
) -> McmcResult:
    """Searches a space by Markov chains, with whatever of them is worth knowing.

    Args:
        space: of strategies.
        options: how chains go; they begin at random if it does not say where. Names of baselines need
            `tensoropt.baselines` to be there.
        memory_bytes: what a device may hold, by the predictions of the space's problem; hard. None for no limit.
        network: of the space, for simulated time, if it is at hand, which has an ``overlap`` of its own.
        every: whether every operator is drawn by itself. By default those are that decide, and proposals change them
            with their followers; initial strategies stay as they are until then. Variables decide for themselves if
            there is a memory limit. By the additive cost every operator decides.

    Raises:
        PlanError: an initial strategy is of another model, or none that the space has, or does not apply to it.
        InfeasibleError: nothing fits the memory.
    """
    firsts = [assignment_of(space, one, NO_LIMIT) for one in options.initial or (RANDOM,)]
    if options.cost == "additive":
        return search_problem(space.problem, options, firsts, memory_bytes)[0]
    network = network_of(space, overlap=options.overlap) if network is None else network
    return search_space(space, network, options, firsts, memory_bytes, every=every)


def search_space(
    space: SearchSpace,
    network: Network,
    options: Mcmc,
    initial: Sequence[Sequence[int] | str],
    memory_bytes: float | None,
    *,
    every: bool = False,
) -> McmcResult:
    """Searches a space with chains by the simulated time of its network; see :func:`search_strategy`."""
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
    results, seconds = _run(options, initial, network, moves, memory)
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
        options.seed,
        seconds,
    )


def search_problem(
    problem: Problem, options: Mcmc, initial: Sequence[Sequence[int] | str], memory_bytes: float | None
) -> tuple[McmcResult, Ints]:
    """Searches a problem with chains by its additive cost; returns the result and the best strategy's alternatives.

    For the arguments see :func:`search_strategy`.
    """
    additive = AdditiveProblem.of(problem)
    firsts = [one if isinstance(one, str) else additive.reduced(tuple(one)) for one in initial]
    memory = additive.memory(memory_bytes)
    results, seconds = _run(options, firsts, additive.cost, additive.moves(), memory, additive.scale)
    costs = []
    originals = []
    for result in results:
        chosen, alternatives = additive.original(result.assignment)
        originals.append((chosen, alternatives))
        costs.append(tuple(float(part[0]) for part in problem.costs(np.array(chosen), alternatives)))
    best = min(range(len(results)), key=lambda number: (costs[number], number))
    chosen, alternatives = originals[best]
    time_s, memory_bytes = costs[best]
    return McmcResult(
        "additive", time_s, chosen, memory_bytes, tuple(results), best, options.seed, seconds
    ), alternatives


def mcmc(problem: Problem, options: Mcmc, *, memory_bytes: float | None = None) -> Frontier:
    """The fastest strategy of a problem that chains find, by its additive cost, as a frontier of one point.

    Args:
        problem: tables, which are all that is known.
        options: how chains go. They begin at configuration indices, or at random.
        memory_bytes: what a device may hold; hard. None for no limit.

    Raises:
        ProblemError: an initial strategy is something else, or not possible.
        InfeasibleError: nothing fits the memory.
    """
    firsts: list[Sequence[int] | str] = []
    for one in options.initial or (RANDOM,):
        if one != RANDOM and isinstance(one, str | Plan | FrontierPoint | Mapping):
            raise ProblemError(
                f"MCMC: an initial strategy is {RANDOM!r} or a configuration index per operator, got {one!r}. "
                "Give the indices of a baseline's strategy."
            )
        firsts.append(one)
    result, alternatives = search_problem(problem, options, firsts, memory_bytes)
    return frontier_of(
        problem,
        np.array([result.assignment]),
        alternatives[None, :],
        exact=False,
        eliminations=(),
        seconds=result.seconds,
    )


def _run(
    options: Mcmc,
    initial: Sequence[Sequence[int] | str],
    cost: Network | AdditiveCost,
    moves: Moves,
    memory: Memory,
    scale: float = 1.0,
) -> tuple[list[ChainResult], float]:
    """Runs the chains; returns the result of each, and the seconds of all together."""
    count = len(initial) if options.chains is None else options.chains
    seeds = np.random.SeedSequence(options.seed).spawn(count)
    starts: list[Start] = []
    for number in range(count):
        first_seed, chain_seed = seeds[number].spawn(2)
        first = initial[number % len(initial)]
        if isinstance(first, str):
            first = random_strategy(cost, np.random.default_rng(first_seed), moves)
        starts.append((tuple(int(index) for index in first), chain_seed))
    shared = Shared(cost, moves, memory, options.stop(count), options.beta, scale)
    began = time.perf_counter()
    results = run_chains(shared, starts, processes=options.processes, progress=options.progress)
    return results, time.perf_counter() - began
