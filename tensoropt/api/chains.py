"""Markov chains on one model and one cluster: where they begin, what they go by, and what they found."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensoropt.api.mcmc import FOUND, RANDOM, Initial, Mcmc
from tensoropt.api.planning import Found, Planner
from tensoropt.api.whole_space import WholeSpaceResult, only, search_whole_space, whole_space
from tensoropt.baselines import PLACED, apply_baseline
from tensoropt.cluster import Topology
from tensoropt.errors import InfeasibleError, PlanError
from tensoropt.mcmc import (
    Network,
    Simulator,
    Stop,
    moves_of,
    network_of,
    random_strategy,
    search_problem,
    search_strategy,
)
from tensoropt.mcmc.chains import progress_bar
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.search.options import MemoryLimit
from tensoropt.search.result import Frontier, FrontierPoint, frontier_of
from tensoropt.search.space import SearchSpace

__all__ = ["Chains", "fastest_that_fits"]

Strategy = Mapping[str, Configuration]

_DEFAULT: tuple[Initial, ...] = ("data_parallel", RANDOM)
_BEST = 2  # of what others found, to begin at


class Chains:
    """Searches by chains in one space, whose tasks are made once, and simulated times of its strategies.

    Attributes:
        planner: of the model.
        topology: the cluster.
        overlap: whether links move data while devices compute in the simulated times of :meth:`seconds`.
        space: the strategies that run there.
    """

    def __init__(self, planner: Planner, topology: Topology, *, overlap: bool = False) -> None:
        """Takes a model and a cluster.

        Raises:
            PlanError: the devices do not divide the batch.
        """
        self.planner = planner
        self.topology = topology
        self.overlap = overlap
        self.space = planner.space(topology)
        self._known: list[tuple[float, tuple[int, ...]]] = []  # seconds of strategies that fit
        self._placed: list[Strategy] = []  # those of other spaces
        self._networks: dict[bool, Network] = {}

    def network(self, overlap: bool) -> Network:
        """The tasks of the space; see :func:`tensoropt.mcmc.network_of`."""
        if overlap not in self._networks:
            self._networks[overlap] = network_of(self.space, overlap=overlap)
        return self._networks[overlap]

    def seconds(self, space: SearchSpace, point: FrontierPoint) -> float:
        """Simulated, of a strategy of this space or of another one.

        Tasks keep all copies; what it takes to make some again is added in full.
        """
        kept = float(space.problem.costs(np.array(point.assignment))[0][0])
        overlap = self.overlap
        network = self.network(overlap) if space is self.space else network_of(space, overlap=overlap)
        return Simulator(network, point.assignment).makespan_s + max(0.0, point.time_s - kept)

    def remember(self, space: SearchSpace, seconds: float, point: FrontierPoint) -> None:
        """Takes a strategy that fits as one to begin at; one of another space only over the whole one."""
        if space is self.space:
            self._known.append((seconds, tuple(point.assignment)))
        else:
            self._placed.append(_configurations(space, point.assignment))

    def search(self, options: Mcmc, limit: MemoryLimit) -> Found:
        """The strategy of least cost that chains find.

        Raises:
            PlanError: an initial strategy is of another model, or none that the space has, or does not apply to it.
            InfeasibleError: nothing that fits was found.
        """
        if options.whole_space:
            return self._search_whole(options, limit)
        space, tracker = self.space, self.planner.tracker(self.topology)
        firsts = [self._indices(one, limit) for one in self._initial(options)]
        chains = len(firsts) if options.chains is None else options.chains
        passed: dict[str, Any] = {
            "memory_bytes": limit.limit_bytes,
            "budget_seconds": options.seconds_of_chain(chains),
            "iterations": options.proposals,
            "patience": options.patience,
            "seed": options.seed,
            "chains": chains,
            "processes": options.processes,
            "beta": options.beta,
            "progress": options.progress,
        }
        if options.cost == "additive":
            problem, which = tracker.contraction.problem, tracker.deciding
            starts = [one if isinstance(one, str) else tracker.contraction.deciding(one) for one in firsts]
            made, picks = search_problem(problem, initial=starts, **passed)
            found = frontier_of(problem, made.assignment, picks, exact=False, eliminations=(), seconds=made.seconds)
            found = tracker.contraction.expand(found)
        else:
            which = "operators that decide, with those that follow"
            made = search_strategy(space, initial=firsts, network=self.network(options.overlap), **passed)
            found = frontier_of(space.problem, made.assignment, exact=False, eliminations=(), seconds=made.seconds)
        notes = {
            **({"simulated_time_s": made.time_s} if options.cost == "simulated" else {}),
            "proposals": sum(chain.proposals for chain in made.chains),
            "acceptance_rate": made.acceptance_rate,
        }
        interrupted = any(chain.stopped_by == "interrupt" for chain in made.chains)
        return _found(space, found, options, which, len(made.chains), notes, interrupted)

    def _search_whole(self, options: Mcmc, limit: MemoryLimit) -> Found:
        """The same over the whole space; what is found is in a space of its own."""
        slots = self.planner.imported.slots
        firsts = [*self._placed] if options.initial is None else []
        firsts += [self._configurations(one, options.seed, limit) for one in self._initial(options)]
        began = time.perf_counter()
        whole = whole_space(self.space, slots)
        network = network_of(whole, overlap=options.overlap)
        count = 1 if options.chains is None else options.chains
        stop = Stop(options.proposals, options.seconds_of_chain(count), options.patience)
        results: list[WholeSpaceResult] = []
        failure: InfeasibleError | None = None
        board = [0.0] * (1 + 3 * count)
        with progress_bar(stop, count) if options.progress else contextlib.nullcontext() as show:
            for number, seed in enumerate(_seeds(options.seed, count)):

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
        space = only(whole, best.configurations, slots)
        seconds = time.perf_counter() - began
        assignment = np.zeros(len(space.operators), np.int64)
        found = frontier_of(space.problem, assignment, exact=False, eliminations=(), seconds=seconds)
        notes = {"simulated_time_s": best.simulated_s, "proposals": sum(result.proposals for result in results)}
        interrupted = results[-1].interrupted
        return _found(space, found, options, "FlexFlow's whole space", len(results), notes, interrupted)

    def _initial(self, options: Mcmc) -> Sequence[Initial]:
        if options.initial is not None:
            return options.initial
        known = [assignment for _, assignment in sorted({*self._known})]
        return (known if options.whole_space else known[:_BEST]) or _DEFAULT[: 1 if options.whole_space else None]

    def _indices(self, one: Initial, limit: MemoryLimit) -> Sequence[int] | str:
        """An initial strategy as indices of its configurations, or ``"random"``."""
        if isinstance(one, str) and one != RANDOM:
            if one in FOUND:
                found = self.planner.found_by(self.topology, one).frontier
            else:
                found = apply_baseline(one, self.space)
            return fastest_that_fits(found, limit).assignment
        if isinstance(one, FrontierPoint):
            self._check_point(one)
            return one.assignment
        if isinstance(one, Plan):
            one.check(self.space.graph, runs=False)
            return self.space.assignment({op.name: one.configuration(op.name) for op in self.space.operators})
        if isinstance(one, Mapping):
            self._check_named(one)
            return self.space.assignment(one)
        return one

    def _configurations(self, one: Initial, seed: int, limit: MemoryLimit) -> Strategy:
        """An initial strategy as configurations by operator, which the space that runs need not have."""
        if isinstance(one, str) and one in PLACED:
            return PLACED[one](self.space)
        if isinstance(one, Plan):
            one.check(self.space.graph, runs=False)
            return {op.name: one.configuration(op.name) for op in self.space.operators}
        if not isinstance(one, str | FrontierPoint) and isinstance(one, Mapping):
            self._check_named(one)
            return one
        indices = self._indices(one, limit)
        if isinstance(indices, str):
            network = self.network(self.overlap)  # of which moves and what is possible are the same with the other one
            moves = moves_of(self.space, network)
            indices = random_strategy(network, np.random.default_rng(seed), moves)
        return _configurations(self.space, indices)

    def _check_point(self, point: FrontierPoint) -> None:
        source = point.provenance
        if len(point.assignment) != len(self.space.operators) or (
            source is not None
            and (source.graph, source.topology.fingerprint())
            != (self.space.graph.fingerprint(), self.topology.fingerprint())
        ):
            raise PlanError(
                f"Mcmc: a point to begin at must be of this model's frontier on {self.topology}, got point "
                f"{point.index} of {'a bare problem' if source is None else source.topology}. Call find_frontier for "
                "this one, or leave the point out."
            )

    def _check_named(self, configurations: Strategy) -> None:
        lacking = [op.name for op in self.space.operators if op.name not in configurations]
        if lacking:
            raise PlanError(
                f"Mcmc: configurations to begin at must name all {len(self.space.operators)} operators of training, "
                f"{len(lacking)} are missing, such as {lacking[0]!r}. Take those of a plan, or give the plan."
            )


def fastest_that_fits(found: Frontier, limit: MemoryLimit) -> FrontierPoint:
    """The fastest strategy that fits, or the smallest."""
    fits = float(found.memory_bytes.min()) <= limit.limit_bytes
    return found.best(limit.limit_bytes) if fits else found.point(int(found.memory_bytes.argmin()))


def _found(
    space: SearchSpace,
    frontier: Frontier,
    options: Mcmc,
    which: str,
    chains: int,
    notes: Mapping[str, Any],
    interrupted: bool,
) -> Found:
    """A result with the words and figures that plans note."""
    by = "the sum of all times"
    if options.cost == "simulated":
        by = f"simulated time ({'communication beside computation' if options.overlap else 'collectives block'})"
    searched = f"{which}, by {by}, {notes['proposals']:,} proposals of {chains} chain"
    searched += f"{'s' * (chains > 1)}{', ended by Ctrl-C' * interrupted}"
    said = {"cost": options.cost, "overlap": options.overlap, "seed": options.seed, "chains": chains, **notes}
    return Found(space, dataclasses.replace(frontier, searched=searched), said, interrupted)


def _seeds(seed: int, count: int) -> Sequence[int | np.random.SeedSequence]:
    return [seed] if count == 1 else np.random.SeedSequence(seed).spawn(count)


def _configurations(space: SearchSpace, assignment: Sequence[int]) -> dict[str, Configuration]:
    """The configurations of a strategy by operator."""
    return {op.name: space.choices(op.name)[index] for op, index in zip(space.operators, assignment, strict=True)}
