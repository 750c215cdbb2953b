"""The order of eliminations: complete, and counted rightly, equal layers once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError
from tensoropt.ft.cost_graph import CostGraph, build_cost_graph
from tensoropt.ft.elimination_order import fewest_points_order, least_table_order
from tensoropt.ft.factors import EliminationState
from tensoropt.ft.reduction import reduce_problem
from tensoropt.problem import Problem
from tests.ft.random_problems import SHAPES, random_problem

pytestmark = pytest.mark.pure


def graph_of(problem: Problem) -> CostGraph:
    reduced = reduce_problem(problem)
    names = tuple(tuple(problem.names[i] for i in nodes) for nodes in reduced.members)
    return build_cost_graph(problem, reduced, EliminationState(names, tuple(range(len(names))), 0.0, None))


def layered(layers: int, seed: int = 0) -> Problem:
    """Layers of two operators between boundaries, each beside all others of its layer; equal tables are one array."""
    rng = np.random.default_rng(seed)
    size = 6
    node = rng.random(size)
    tables = [rng.random((size, size)) for _ in range(5)]
    nodes, edges, times = ["x0"], [], []
    for layer in range(layers):
        x, a, b, y = 3 * layer, 3 * layer + 1, 3 * layer + 2, 3 * layer + 3
        nodes += [f"a{layer}", f"b{layer}", f"x{layer + 1}"]
        edges += [(x, a), (x, b), (a, b), (a, y), (b, y)]
        times += tables
    count = len(nodes)
    # What is slow is small, so that nothing is dominated.
    memory = {id(t): 1.0 - t for t in tables}
    return Problem(nodes, [node] * count, [1.0 - node] * count, edges, times, [memory[id(t)] for t in times])


@pytest.mark.parametrize("order_of", [fewest_points_order, least_table_order])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_variable_goes_once_and_joint_configurations_are_counted(
    shape: str, order_of: Callable[[CostGraph], Any]
) -> None:
    for seed in range(20):
        try:
            graph = graph_of(random_problem(shape, seed))
        except InfeasibleError:  # other tests' business
            continue
        order, largest = order_of(graph)[:2]
        assert sorted(order) == sorted(graph.sizes)
        near = {v: set(graph.neighbours(v)) for v in graph.sizes}
        seen = 0
        for v in order:
            around = near.pop(v)
            seen = max(seen, math.prod(graph.sizes[w] for w in {v, *around}))
            for w in around:
                near[w] = (near[w] | around) - {v, w}
        assert largest == seen


def test_equal_layers_are_counted_once() -> None:
    few, many = (fewest_points_order(graph_of(layered(layers))) for layers in (8, 32))
    assert few.candidates < many.candidates < 1.5 * few.candidates


def test_node_beside_more_than_floats_can_count() -> None:
    count, table = 400, np.random.default_rng(0).random((8, 8))
    node = np.arange(8.0)
    edges = [(i, i + 1) for i in range(count - 1)] + [(count, i) for i in range(count)]
    names = [f"n{i}" for i in range(count + 1)]
    graph = graph_of(Problem(names, [node] * len(names), [-node + 8] * len(names), edges, [table] * len(edges)))
    order = fewest_points_order(graph)
    assert sorted(order.variables) == sorted(graph.sizes) and order.candidates < math.inf
    assert graph.work(count) == math.inf
