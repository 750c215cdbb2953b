"""The best of all strategies, and that Markov chains find it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.optimum import relaxation
from benchmarks.optimum.bounds import best_bounds
from benchmarks.optimum.branch_and_bound import find_optimum
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost
from tensoropt.errors import ProblemError
from tensoropt.layout import Coarsening
from tensoropt.mcmc import Mcmc, Moves, search_strategy
from tensoropt.simulate import Network, Simulator, network_of
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S
from tests.plan.small_graphs import mlp
from tests.simulate.random_networks import random_network

pytestmark = pytest.mark.pure


def _is_placed(network: Network) -> bool:
    network.add_all_rows()
    return bool(network.placed_axes())


_UNPLACED = [seed for seed in range(24) if not _is_placed(random_network(seed, operators=5))][:10]


@pytest.mark.slow
@pytest.mark.parametrize("seed", _UNPLACED)
def test_branch_and_bound_finds_the_least_makespan_of_all(seed: int) -> None:
    network = random_network(seed, operators=5)
    every = itertools.product(*(range(count) for count in network.choices.tolist()))
    simulator = Simulator(network, [0] * 5)
    least = min(simulator.reset(assignment) for assignment in every)
    found = find_optimum(network, [0] * 5)
    assert simulator.reset(found.assignment) == least
    assert found.time_s == simulator.makespan_s
    assert found.strategies == np.prod(network.choices)


@pytest.mark.slow
def test_chains_find_the_best_of_all_strategies() -> None:
    # One mesh axis per operator: all devices do one thing.
    coarsening = Coarsening(free_up_to_axes=0, blocks=1)
    space = SearchSpace(mlp(), AnalyticCost(scaled(p100(), 4)), coarsening=coarsening)
    network = network_of(space)
    found = search_strategy(space, Mcmc(iterations=3000, chains=2), network=network)
    best = find_optimum(network, [0] * len(space.operators))
    assert found.time_s == best.time_s
    assert best.partial < best.strategies


def test_too_many_strategies_are_refused() -> None:
    placed = next(some for some in map(random_network, range(50)) if _is_placed(some))
    with pytest.raises(ProblemError, match="some operators may be placed along mesh axes"):
        find_optimum(placed, [0] * 8)
    network = next(some for some in map(random_network, range(50)) if not _is_placed(some))
    with pytest.raises(ProblemError, match="more than 1 partial strategies of 8 operators cannot be ruled out"):
        find_optimum(network, [0] * 8, most_partial=1)


@pytest.mark.parametrize("seed", _UNPLACED[:5])
def test_bounds_hold_for_every_strategy_and_operators_may_follow(seed: int) -> None:
    network = random_network(seed, operators=5)
    leaders = np.array([0, 1, 2, 0, 4])
    index = [None, None, None, np.arange(int(network.choices[0])) % int(network.choices[3]), None]
    moves = Moves.of(network.choices, leaders, index)
    simulator = Simulator(network, [0] * 5, together=moves.members)
    bounds = best_bounds(network, moves, simulator.assignment).least()
    spans = []
    for chosen in itertools.product(*(range(int(count)) for count in moves.choices)):
        spans.append(simulator.reset(moves.assignment(chosen)))
    assert bounds.max() <= min(spans) + 0.5
    found = find_optimum(network, moves.assignment([0] * 4).tolist(), moves=moves)
    assert found.time_s == min(spans) / TICKS_PER_S
    assert found.least_s <= found.time_s + 1e-12


def test_operators_that_are_too_entangled_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = next(some for some in map(random_network, range(50)) if not _is_placed(some))
    monkeypatch.setattr(relaxation, "_MOST_ENTRIES", 1)
    with pytest.raises(ProblemError, match="operators depend on one another at once"):
        find_optimum(network, [0] * 8)
