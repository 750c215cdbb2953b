"""What chains take, how often, and which of equal ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensoropt.mcmc import RANDOM, Chain, Mcmc, Moves, Stop
from tensoropt.mcmc.additive_cost import AdditiveProblem
from tensoropt.mcmc.chain import AdditiveChain, MarkovChain
from tensoropt.mcmc.search import search_problem
from tensoropt.problem import Problem
from tensoropt.simulate import Network
from tensoropt.space.work import TICKS_PER_S, Route, Signature, Tables, Way, Work
from tests.ft.random_problems import random_problem
from tests.simulate.random_networks import Given

pytestmark = pytest.mark.pure


def _network(problem: AdditiveProblem) -> Network:
    """The same cost as simulated time: everything runs on one device, one after the other."""
    ticks = problem.cost.ticks

    def path(spent: int) -> Route:
        return (Work(spent / TICKS_PER_S, Signature(0)),) if spent else ()

    own: list[list[Route]] = [
        [(Work(int(ticks.own[first + choice]) / TICKS_PER_S, Signature(0)),) for choice in range(count)]
        for first, count in zip(ticks.own_first.tolist(), problem.cost.choices.tolist(), strict=True)
    ]
    ends = list(zip(ticks.producer.tolist(), ticks.consumer.tolist(), strict=True))
    rows, ways = [], []
    for edge, (start, end) in enumerate(ends):
        one, other = len(own[start]), len(own[end])
        table = ticks.pairs[ticks.pairs_first[edge] :][: one * other].reshape(one, other).tolist()
        size = max(one, other)
        rows.append([[path(row[column]) if column < other else () for column in range(size)] for row in table])
        rows[-1] += [[()] * size] * (size - one)
        ways.append(Way(edge, np.arange(one), np.arange(other)))
    sizes = [len(table) for table in rows]
    tables = Tables(own, [None] * len(own), ends, ways, [None] * len(ends), [False] * len(ends), sizes)
    return Network(tables, Given(rows), (), ())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limited", [False, True])
def test_an_additive_chain_is_that_of_tasks_on_one_device(seed: int, limited: bool) -> None:
    rng = np.random.default_rng(seed)
    made = random_problem("hub" if seed % 2 else "series_parallel", seed, nodes=7)
    # Small whole numbers, of 2^-10 s and of bytes: exact in ticks, and often equal.
    tables = [
        [rng.integers(0, 6, size=table.shape) * unit for table in some]
        for some, unit in (
            (made.node_time_s, 2.0**-10),
            (made.node_memory_bytes, 1.0),
            (made.edge_time_s, 2.0**-10),
            (made.edge_memory_bytes, 1.0),
        )
    ]
    problem = AdditiveProblem.of(Problem(made.names, tables[0], tables[1], made.edges, tables[2], tables[3]))
    start = [0] * len(problem.cost.choices)
    held = problem.reduced_problem.costs(np.array(start))[1][0]
    memory = problem.memory(float(held) + 3 if limited else None)
    results = []
    chains: list[MarkovChain] = [
        AdditiveChain(problem.cost, start, seed=seed, beta=300.0 / problem.scale, moves=problem.moves(), memory=memory),
        Chain(_network(problem), start, seed=seed, beta=300.0 / problem.scale, moves=problem.moves(), memory=memory),
    ]
    for chain in chains:
        found = chain.run(Stop(iterations=1500, patience=1.0))
        results.append((found.cost_ticks, found.assignment, found.proposals, found.accepted, found.best_at))
    assert results[0] == results[1]
    assert results[0][3] > 0


@pytest.mark.parametrize("slower", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("simulated", [False, True])
def test_what_is_slower_is_taken_with_probability_exp_of_minus_beta_times_that(slower: float, simulated: bool) -> None:
    beta = 4.0
    problem = AdditiveProblem.of(Problem(["a"], [[1.0, 1.0 + slower / beta]], [[0.0, 0.0]]))
    network = _network(problem)  # in ticks of the cost's own unit
    chain: MarkovChain
    if simulated:
        chain = Chain(network, [0], seed=11, beta=beta / problem.scale)
    else:
        chain = AdditiveChain(problem.cost, [0], seed=11, beta=beta / problem.scale)
    found = chain.run(Stop(iterations=40_000, patience=1.0))
    # Every other proposal is of the other configuration. From the slower one it is always taken, from the faster one
    # with this probability; a chain leaves each as often as it comes there.
    taken = math.exp(-slower)
    assert found.accepted / found.proposals == pytest.approx(taken / (1 + taken), abs=0.01)


@pytest.mark.parametrize("simulated", [False, True])
def test_what_is_equal_is_always_taken_and_the_first_of_equal_ones_stays_the_best(simulated: bool) -> None:
    problem = AdditiveProblem.of(Problem(["a"], [[1.0] * 4], [[0.0] * 4]))
    chain: MarkovChain
    if simulated:
        chain = Chain(_network(problem), [2], seed=1, beta=1e9)
    else:
        chain = AdditiveChain(problem.cost, [2], seed=1, beta=1e9)
    found = chain.run(Stop(iterations=4000, patience=1.0))
    assert found.assignment == (2,)
    assert found.best_at == 0
    # All but those of the configuration that there is already.
    assert found.accepted / found.proposals == pytest.approx(3 / 4, abs=0.03)


def test_of_chains_that_find_equal_strategies_the_first_counts() -> None:
    problem = Problem(["a"], [[1.0, 1.0, 2.0]], [[0.0] * 3])
    for initial in ([0], [1]), ([1], [0]):
        result, _ = search_problem(problem, Mcmc(iterations=50), initial, None)
        assert (result.best_chain, result.assignment) == (0, tuple(initial[0]))
    result, _ = search_problem(problem, Mcmc(iterations=1, beta=1e-9, seed=1), ([2], [1]), None)
    assert result.best_chain == min(range(2), key=lambda number: result.chains[number].cost_ticks)


def test_of_equally_fast_alternatives_the_first_counts() -> None:
    problem = Problem(["a"], [[[2.0, 1.0, 1.0]]], [[[0.0, 7.0, 3.0]]])
    result, alternatives = search_problem(problem, Mcmc(iterations=5), (RANDOM,), None)
    assert alternatives.tolist() == [1]
    assert (result.time_s, result.memory_bytes) == (1.0, 7.0)


def test_sets_of_one_size_are_drawn_as_often_as_those_of_another_over_the_root_of_the_size() -> None:
    moves = Moves.of_each(np.array([2, 3, 4]))
    assert moves.chances.tolist() == pytest.approx([1 / 3, 2 / 3, 1.0])
