"""One strategy within a memory limit, against whole frontiers and all strategies; and its bound."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError
from tensoropt.graph.graph import Graph
from tensoropt.problem import Problem, brute_force
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.determined import determined
from tensoropt.search.alternatives import runner_up
from tensoropt.search.columns import Columns, fast_within, least_alone, least_bytes
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.ft.random_problems import SHAPES, random_problem
from tests.plan.small_graphs import convolutions, deep, mlp, trained

pytestmark = pytest.mark.pure

_MODELS: list[Callable[[], Graph]] = [
    lambda: mlp(batch=64, width=256, classes=64),
    lambda: trained(mlp(batch=16, width=32), "w1", slots=2),
    lambda: deep(3, batch=16, width=32),
    lambda: convolutions(batch=8, channels=16),
]


@pytest.mark.parametrize("make", _MODELS)
def test_it_keeps_to_the_limit_and_comes_close_to_the_frontier(make: Callable[[], Graph]) -> None:
    space = SearchSpace(make(), AnalyticCost(cpu(4)), reuse=True)
    problem, frontier = space.problem, get_finder("ft").find(space).frontier
    assert frontier.exact
    lost = []
    for index, limit in enumerate(frontier.memory_bytes.tolist()):
        best = frontier.point(index)
        found = fast_within(problem, limit)
        assert found is not None and float(found.memory_bytes[0]) <= limit
        lost.append(float(found.time_s[0]) / best.time_s - 1)
        assert lost[-1] >= -1e-12
        near = fast_within(problem, limit, best.assignment)  # which has what is best among what is mixed
        assert near is not None and float(near.time_s[0]) == best.time_s
    assert lost[-1] <= 1e-9 and sorted(lost)[len(lost) // 2] < 0.05  # without a limit it is the fastest
    assert fast_within(problem, float(frontier.memory_bytes[0]) * 0.99) is None


def test_runner_ups_of_larger_models_keep_to_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SearchSpace(mlp(batch=64, width=256, classes=64), AnalyticCost(cpu(4)), reuse=True)
    frontier = get_finder("ft").find(space).frontier
    place = next(number for number, op in enumerate(space.operators) if op.name == "h")
    point = frontier.point(len(frontier.time_s) // 2)
    now, limit = space.choices("h")[point.assignment[place]], MemoryLimit(point.memory_bytes, "test")
    exact = runner_up(space, "h", now, limit)
    assert exact is not None
    monkeypatch.setattr("tensoropt.search.columns._SMALL", 0)
    for operators in (1000, 0):  # over all of them, and over those that decide
        monkeypatch.setattr("tensoropt.search.alternatives._WHOLE", operators)
        found = runner_up(space, "h", now, limit, point.assignment)
        assert found is not None and found.memory_bytes <= limit.limit_bytes
        assert exact.time_s <= found.time_s <= 1.1 * exact.time_s
        assert space.choices("h")[found.assignment[place]] != now


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_and_their_bounds_beside_all_strategies(shape: str) -> None:
    """Every limit of 8 random problems: what is found fits, no bound is above any strategy, and hulls have corners."""
    limits = 0
    for seed in range(8):
        problem = random_problem(shape, seed)
        try:
            whole = brute_force(problem)
        except InfeasibleError:
            assert Columns(problem).within(np.inf) is None
            continue
        for exactly in (True, False):
            columns = Columns(problem, exactly=exactly)
            assert columns.within(float(np.nextafter(whole.memory_bytes[0], -np.inf))) is None
            for point in map(whole.point, range(len(whole))):
                bounded = columns.within(point.memory_bytes)
                assert bounded is not None
                found, bounds = bounded
                assert found.memory_bytes[0] <= point.memory_bytes
                assert found.time_s[0] >= point.time_s * (1 - 1e-9)
                alone = Columns(problem, exactly=exactly).within(point.memory_bytes)  # whatever was asked for before
                assert alone is not None and alone[0].assignments.tolist() == found.assignments.tolist()
                assert bounds is not None
                assert (bounds.least_time_s(whole.memory_bytes) <= whole.time_s * (1 + 1e-9)).all()
                assert columns.least_s(point.memory_bytes) <= point.time_s * (1 + 1e-9)
                price, other = columns.price(point.memory_bytes), Columns(problem, exactly=exactly)
                assert other.least_s(point.memory_bytes, 2.0 * price) <= point.time_s * (1 + 1e-9)
                by_price = other.least_s(point.memory_bytes, price)
                assert bounds.least_time_s(np.array([point.memory_bytes]))[0] * (1 - 1e-9) <= by_price
                assert by_price <= point.time_s * (1 + 1e-9)
                limits += 1
        assert least_bytes(problem) <= whole.memory_bytes[0] * (1 + 1e-9)
        fastest = columns.within(np.inf)
        assert fastest is not None and fastest[0].time_s[0] == pytest.approx(whole.time_s[-1], rel=1e-8)
        hull, _ = Columns(problem).hull(12)
        assert (hull.time_s[-1], hull.memory_bytes[0]) == pytest.approx((whole.time_s[-1], whole.memory_bytes[0]))
    assert limits >= 8


def test_columns_of_layers_in_a_row_come_within_a_layer_of_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """96 layers with two ways each, so that no weight gives a mixture: columns are all one or all the other."""
    layers = 96
    time_s, memory_bytes = np.array([1.0, 2.0]), np.array([10.0, 4.0])
    change = np.array([[0.0, 0.01], [0.01, 0.0]])  # between layers that do not do alike
    chain = [(i, i + 1) for i in range(layers - 1)]
    problem = Problem([f"h{i}" for i in range(layers)], [time_s] * layers, [memory_bytes] * layers, chain,
                      [change] * (layers - 1))  # fmt: skip
    columns = Columns(problem, exactly=True)
    monkeypatch.setattr("tensoropt.search.columns._MIXED_NODES", layers - 1)  # so that too many have a choice
    limit = 700.0
    bounded = columns.within(limit)
    assert bounded is not None and bounded[1] is not None
    found, bounds = bounded
    assert found.memory_bytes[0] <= limit and bounds is not None
    assert len(set(found.assignments[0].tolist())) == 2 and np.abs(np.diff(found.assignments[0])).sum() == 1
    assert found.time_s[0] - bounds.least_time_s(np.array([limit]))[0] <= 1.0 + 0.02


@pytest.mark.parametrize("slower_s", [0.05, 0.5])
def test_nodes_are_mixed_where_layers_are_not_enough(slower_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, beside = 60, 40
    time_s, memory_bytes = np.array([1.0, 1.0 + slower_s]), np.array([10.0, 4.0])
    change = np.array([[0.0, 0.001], [0.001, 0.0]])
    nodes, chain = layers + beside, [(i, i + 1) for i in range(layers - 1)]
    times, memories = ([several] * layers + [several[:1]] * beside for several in (time_s, memory_bytes))
    problem = Problem([f"h{i}" for i in range(nodes)], times, memories, chain, [change] * (layers - 1))
    columns = Columns(problem, exactly=True)
    monkeypatch.setattr("tensoropt.search.columns._MIXED_NODES", nodes - 1)
    limit = 705.0  # ten layers fit that are fast, and nearly another one
    with patch.object(columns, "_mixed_by_nodes", wraps=columns._mixed_by_nodes) as by_nodes:
        bounded = columns.within(limit)
    assert bounded is not None and bounded[1] is not None
    gap = bounded[0].time_s[0] / bounded[1].least_time_s(np.array([limit]))[0] - 1
    assert gap < slower_s / nodes
    assert by_nodes.called == (slower_s == 0.5)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("make", [*_MODELS, lambda: trained(deep(2, batch=16, width=32), "w1", slots=2)])
def test_so_many_micro_batches_take_no_less_than_their_share(make: Callable[[], Graph], recompute: bool) -> None:
    graph, tried = make(), (1, 2, 4, 8)
    spaces = [
        SearchSpace(graph, AnalyticCost(cpu(4)), reuse=True, recompute=recompute, micro_batches=times)
        for times in tried
    ]
    alone = [least_alone(space) for space in spaces]
    least = [float(Columns(space.problem).smallest.memory_bytes) for space in spaces]
    assert all(bound <= found * (1 + 1e-9) for bound, found in zip(alone, least, strict=True))
    for few, many in itertools.combinations(range(len(tried)), 2):
        assert alone[few] * tried[few] / tried[many] <= alone[many] * (1 + 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_determined_follows_without_loss(shape: str) -> None:
    """Problems in which some nodes have one configuration for each of a neighbour's: frontiers stay what they were."""
    followed = 0
    for seed in range(8):
        problem, draws = random_problem(shape, seed), np.random.default_rng(seed)
        tables = [table.copy() for table in problem.edge_time_s]
        for e in draws.choice(len(tables), size=len(tables) // 2, replace=False).tolist():
            rows, columns = tables[e].shape[:2]
            only = draws.integers(columns, size=rows)
            tables[e][np.arange(columns) != only[:, None]] = np.inf
        tied = dataclasses.replace(problem, edge_time_s=tuple(tables), groups=None)
        leaders, index = determined(tied)
        contraction = Contraction(tied, leaders, index)
        followed += tied.nodes - len(set(leaders.tolist()))
        try:
            whole = brute_force(tied)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                brute_force(contraction.problem)
            continue
        found = contraction.expand(brute_force(contraction.problem))
        np.testing.assert_array_equal(found.time_s, whole.time_s)
        np.testing.assert_array_equal(found.memory_bytes, whole.memory_bytes)
        costs = tied.costs(found.assignments, found.alternatives)
        np.testing.assert_array_equal(costs[0], whole.time_s)
    assert followed >= 4
