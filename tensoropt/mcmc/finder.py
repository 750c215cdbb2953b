"""Markov chains as a finder: where they begin, by what they go, and what they found."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError
from tensoropt.mcmc.chains import progress_bar
from tensoropt.mcmc.initial import assignment_of, configurations_of, initial_of
from tensoropt.mcmc.options import Mcmc
from tensoropt.mcmc.search import search_problem, search_space
from tensoropt.mcmc.whole_space import WholeSpaceResult, search_whole_space, whole_space
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.frontier import frontier_of
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.simulate import network_of
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace

__all__ = ["find", "find_in_whole_space"]


def find(space: SearchSpace, limit: MemoryLimit, start: Start, options: Mcmc) -> Found:
    """The strategy of least cost that chains find over the operators that decide.

    Raises:
        PlanError: an initial strategy is of another model, or none that the space has, or does not apply to it.
        InfeasibleError: nothing that fits was found.
    """
    firsts = [assignment_of(space, one, limit) for one in initial_of(space, start, options)]
    if options.cost == "additive":
        contraction = space.kept(contracted)
        starts = [one if isinstance(one, str) else contraction.deciding(one) for one in firsts]
        made, picks = search_problem(contraction.problem, options, starts, limit.limit_bytes)
        frontier = frontier_of(
            contraction.problem, made.assignment, picks, exact=False, eliminations=(), seconds=made.seconds
        )
        found, which = Found(space, contraction.expand(frontier)), contraction.searched
    else:
        network = space.kept(network_of, overlap=options.overlap)
        made = search_space(space, network, options, firsts, limit.limit_bytes)
        frontier = frontier_of(space.problem, made.assignment, exact=False, eliminations=(), seconds=made.seconds)
        found, which = Found(space, frontier), "operators that decide, with those that follow"
    notes = {
        **({"simulated_time_s": made.time_s} if options.cost == "simulated" else {}),
        "proposals": sum(chain.proposals for chain in made.chains),
        "acceptance_rate": made.acceptance_rate,
    }
    interrupted = any(chain.stopped_by == "interrupt" for chain in made.chains)
    return _noted(found, options, which, len(made.chains), notes, interrupted)


def find_in_whole_space(space: SearchSpace, limit: MemoryLimit, start: Start, options: Mcmc) -> Found:
    """The same over FlexFlow's whole space; what is found is in a space of its own.

    Raises:
        PlanError: as :func:`find`.
        InfeasibleError: the same.
    """
    elsewhere = [known for known in start if known.space is not space and options.initial is None]
    firsts: list[Mapping[str, Configuration]] = [known.space.configurations(known.assignment) for known in elsewhere]
    firsts += [configurations_of(space, one, options, limit) for one in initial_of(space, start, options)]
    began = time.perf_counter()
    whole = whole_space(space)
    network = network_of(whole, overlap=options.overlap)
    count = 1 if options.chains is None else options.chains
    stop = options.stop(count)
    seeds = [options.seed] if count == 1 else np.random.SeedSequence(options.seed).spawn(count)
    results: list[WholeSpaceResult] = []
    failure: InfeasibleError | None = None
    board = [0.0] * (1 + 3 * count)
    with progress_bar(stop, count) if options.progress else contextlib.nullcontext() as show:
        for number, seed in enumerate(seeds):

            def report(made: int, taken: int, best_s: float, first: int = 1 + 3 * number) -> None:
                board[first : first + 3] = [made, taken, best_s]
                if show is not None:
                    show(board)

            try:
                results.append(
                    search_whole_space(
                        whole,
                        firsts,
                        memory_bytes=limit.limit_bytes,
                        stop=stop,
                        beta=options.beta,
                        seed=seed,
                        network=network,
                        report=report,
                    )
                )
            except InfeasibleError as error:
                failure = error
                continue
            if results[-1].interrupted:
                break
    if not results and failure is not None:
        raise failure
    best = min(results, key=lambda result: result.simulated_s)  # the first of equal ones
    found = Found.of_one_strategy(space, best.configurations, time.perf_counter() - began, halos=True)
    notes = {"simulated_time_s": best.simulated_s, "proposals": sum(result.proposals for result in results)}
    return _noted(found, options, "FlexFlow's whole space", len(results), notes, results[-1].interrupted)


def _noted(found: Found, options: Mcmc, which: str, chains: int, notes: Mapping[str, Any], interrupted: bool) -> Found:
    """A result with the words and figures that plans note."""
    by = "the sum of all times"
    if options.cost == "simulated":
        by = f"simulated time ({'communication beside computation' if options.overlap else 'collectives block'})"
    searched = f"{which}, by {by}, {notes['proposals']:,} proposals of {chains} chain"
    searched += f"{'s' * (chains > 1)}{', ended by Ctrl-C' * interrupted}"
    said = {"cost": options.cost, "overlap": options.overlap, "seed": options.seed, "chains": chains, **notes}
    return Found(found.space, dataclasses.replace(found.frontier, searched=searched), said, interrupted)
