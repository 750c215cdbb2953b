"""Markov chains as a finder: where they begin, by what they go, and what they found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensoropt.mcmc.initial import assignment_of, initial_of
from tensoropt.mcmc.options import Mcmc
from tensoropt.mcmc.search import search_problem, search_space
from tensoropt.problem.frontier import frontier_of
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.simulate import network_of
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace

__all__ = ["find"]


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


def _noted(found: Found, options: Mcmc, which: str, chains: int, notes: Mapping[str, Any], interrupted: bool) -> Found:
    """A result with the words and figures that plans note."""
    by = "the sum of all times"
    if options.cost == "simulated":
        by = f"simulated time ({'communication beside computation' if options.overlap else 'collectives block'})"
    searched = f"{which}, by {by}, {notes['proposals']:,} proposals of {chains} chain"
    searched += f"{'s' * (chains > 1)}{', ended by Ctrl-C' * interrupted}"
    said = {"cost": options.cost, "overlap": options.overlap, "seed": options.seed, "chains": chains, **notes}
    return Found(found.space, dataclasses.replace(found.frontier, searched=searched), said, interrupted)
