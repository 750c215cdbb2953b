"""Proposals that change several operators together: legal, the same by both simulations, and near one another."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost
from tensoropt.errors import ProblemError
from tensoropt.mcmc import Chain, Moves, Stop, moves_of
from tensoropt.mcmc.initial import random_strategy
from tensoropt.mcmc.integer_sums import change_of, sum_of
from tensoropt.mcmc.memory_limit import limited_memory, no_memory
from tensoropt.mcmc.moves import Region
from tensoropt.simulate import Network, Simulator, network_of
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp
from tests.simulate.random_networks import random_network

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace(mlp(), AnalyticCost(scaled(p100(), 4)))


def _random_moves(network: Network, rng: np.random.Generator) -> Moves:
    """Some operators follow others, and some sets are of several that decide."""
    leaders = np.arange(network.operators)
    for op in range(1, network.operators):
        before = int(rng.integers(op))
        if rng.random() < 0.4:
            leaders[op] = leaders[before]
    index = [
        rng.integers(int(network.choices[op]), size=int(network.choices[leader])) if leader != op else None
        for op, leader in enumerate(leaders.tolist())
    ]
    deciding = np.unique(leaders).tolist()
    regions = []
    for head in deciding:
        others = [int(one) for one in rng.permutation(deciding)[:3] if one != head]
        count = int(network.choices[head])
        by_first = [np.arange(count)] + [rng.integers(int(network.choices[one]), size=count) for one in others]
        if others:
            regions.append(Region((head, *others), tuple(by_first), (len(others) + 1,)))
    return Moves.of(network.choices, leaders, index, regions)


@pytest.mark.parametrize("seed", range(12))
def test_sets_that_change_together_give_the_timeline_of_full_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(seed, operators=10)
    moves = _random_moves(network, rng)
    simulator = Simulator(network, [0] * network.operators, together=moves.members)
    for _ in range(40):
        number = int(rng.integers(len(moves.choices)))
        choice = int(rng.integers(moves.choices[number]))
        wanted = simulator.assignment.copy()
        moves.place(wanted, number, choice)
        before = simulator.assignment.copy()
        found = simulator.try_strategy(wanted)
        if rng.random() < 0.5:
            simulator.reject()
            assert np.array_equal(simulator.assignment, before)
            assert simulator.try_strategy(wanted, found) == found
            simulator.reject()
            assert simulator.try_strategy(wanted, found - 1) == -1
            simulator.reject()
            continue
        simulator.accept()
        assert np.array_equal(simulator.assignment, wanted)
        assert simulator.timeline() == Simulator(network, wanted).timeline()


@pytest.mark.parametrize("variables", [False, True])
def test_chains_by_both_simulations_take_the_same_proposals(space: SearchSpace, variables: bool) -> None:
    network = network_of(space)
    moves = moves_of(space, network, variables=variables)
    first = random_strategy(network, np.random.default_rng(1), moves)
    results = [
        Chain(network, first, seed=4, moves=moves, delta=delta).run(Stop(iterations=1500)) for delta in (True, False)
    ]
    one, other = ((found.cost_ticks, found.assignment, found.accepted, found.best_at) for found in results)
    assert one == other
    assert Simulator(network, results[0].assignment).makespan == results[0].cost_ticks


def test_few_operators_decide_and_every_operator_is_in_one_set_of_them(space: SearchSpace) -> None:
    network = network_of(space)
    moves = moves_of(space, network)
    assert moves.singles < moves_of(space, network, variables=True).singles < network.operators
    singles = np.concatenate(moves.members[: moves.singles])
    assert sorted(singles.tolist()) == list(range(network.operators))
    sizes = [len(some) for some in moves.members[moves.singles :]]
    assert max(sizes) == network.operators
    drawn, choices = moves.draw(np.linspace(0, 1, 500, endpoint=False), np.linspace(0, 1, 500, endpoint=False))
    assert 0 <= drawn.min() <= drawn.max() < len(moves.choices)
    assert (choices < moves.choices[drawn]).all()


def test_memory_of_a_set_is_the_sum_of_its_changes(space: SearchSpace) -> None:
    network = network_of(space)
    moves = moves_of(space, network)
    problem = space.problem
    nodes = [table if table.ndim == 1 else table[..., 0] for table in problem.node_memory_bytes]
    edges = [table if table.ndim == 2 else table[..., 0] for table in problem.edge_memory_bytes]
    memory = limited_memory(problem.names, nodes, problem.edges, edges, 1e18)
    rng = np.random.default_rng(3)
    held = np.array(random_strategy(network, rng, moves))
    for number in range(len(moves.choices)):
        before, wanted, more = sum_of(memory.held, held), held.copy(), 0
        moves.place(wanted, number, int(rng.integers(moves.choices[number])))
        for op in np.flatnonzero(wanted != held).tolist():
            change, impossible = change_of(memory.held, held, op, int(wanted[op]))
            assert impossible == 0
            held[op] = wanted[op]
            more += change
        assert sum_of(memory.held, held) - before == more
    assert no_memory().limit == -1


def test_moves_of_other_operators_are_refused() -> None:
    network = random_network(0)
    each = np.arange(network.operators)
    with pytest.raises(ProblemError, match="each of 8 operators must have one that decides for it"):
        Moves.of(network.choices, each[:3], [None] * 3)
    with pytest.raises(ProblemError, match="which decides for itself"):
        Moves.of(network.choices, np.roll(each, 1), [None] * 8)
    with pytest.raises(ProblemError, match="a configuration for each of that one's"):
        Moves.of(network.choices, each, [np.full(int(count), count) for count in network.choices])
