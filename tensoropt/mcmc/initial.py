"""The strategies at which Markov chains begin: as somebody gave them, and as chains take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tensoropt.errors import InfeasibleError, PlanError
from tensoropt.mcmc.additive_cost import AdditiveCost
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.options import RANDOM, Initial, Mcmc
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.search.finding import Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.simulate import Network
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import Ints

__all__ = ["assignment_of", "initial_of", "random_strategy"]

_DEFAULT: tuple[Initial, ...] = ("data_parallel", RANDOM)
_TRIES = 200
_BEST = 2  # of what others found, to begin at


def initial_of(space: SearchSpace, start: Start, options: Mcmc) -> Sequence[Initial]:
    """The strategies that options say, or the best of the space that are known, or the default."""
    if options.initial is not None:
        return options.initial
    known = sorted({(one.simulated_s, one.assignment) for one in start if one.space is space})
    best = [assignment for _, assignment in known[:_BEST]]
    return best or _DEFAULT


def assignment_of(space: SearchSpace, one: Initial, limit: MemoryLimit) -> Sequence[int] | str:
    """An initial strategy as indices of its configurations, or ``"random"``.

    Raises:
        PlanError: it is of another model, or none that the space has, or does not apply to it.
    """
    if isinstance(one, str) and one != RANDOM:
        return get_finder(one).find(space, limit).fastest(limit).assignment
    if isinstance(one, FrontierPoint):
        _check_point(space, one)
        return one.assignment
    if isinstance(one, Plan | Mapping):
        return space.assignment(_named(space, one))
    return one


def _named(space: SearchSpace, one: Plan | Mapping[str, Configuration]) -> Mapping[str, Configuration]:
    if isinstance(one, Plan):
        one.check(space.graph, runs=False)
        return {op.name: one.configuration(op.name) for op in space.operators}
    lacking = [op.name for op in space.operators if op.name not in one]
    if lacking:
        raise PlanError(
            f"Mcmc: configurations to begin at must name all {len(space.operators)} operators of training, "
            f"{len(lacking)} are missing, such as {lacking[0]!r}. Take those of a plan, or give the plan."
        )
    return one


def _check_point(space: SearchSpace, point: FrontierPoint) -> None:
    source, topology = point.provenance, space.cost.topology
    if len(point.assignment) != len(space.operators) or (
        source is not None
        and (source.graph, source.topology.fingerprint()) != (space.graph.fingerprint(), topology.fingerprint())
    ):
        raise PlanError(
            f"Mcmc: a point to begin at must be of this model's frontier on {topology}, got point "
            f"{point.index} of {'a bare problem' if source is None else source.topology}. Call find_frontier for "
            "this one, or leave the point out."
        )


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
