"""Problems over the nodes that decide cost what the whole ones do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError
from tensoropt.ft import track_frontier
from tensoropt.problem.brute_force import brute_force
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.evaluation import evaluate
from tensoropt.problem.problem import IntArray, Problem
from tests.ft.random_problems import SHAPES, random_problem

pytestmark = pytest.mark.pure


def _followers(problem: Problem, seed: int) -> tuple[IntArray, tuple[IntArray | None, ...]]:
    """Some nodes follow an earlier one by a random map."""
    rng = np.random.default_rng(seed)
    leaders = np.arange(problem.nodes)
    index: list[IntArray | None] = [None] * problem.nodes
    for node in range(1, problem.nodes):
        if rng.random() < 0.5:
            leader = int(rng.choice(np.flatnonzero(leaders[:node] == np.arange(node))))
            leaders[node] = leader
            index[node] = rng.integers(problem.configurations(node), size=problem.configurations(leader))
    return leaders, tuple(index)


def _every_strategy(problem: Problem, leaders: IntArray, index: tuple[IntArray | None, ...]) -> IntArray:
    """All assignments of the whole problem in which followers do as they must."""
    deciding = [node for node in range(problem.nodes) if leaders[node] == node]
    counts = [problem.configurations(node) for node in deciding]
    grid = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(-1, len(deciding))
    by = dict(zip(deciding, grid.T, strict=True))
    columns = [by[one] if way is None else way[by[one]] for one, way in zip(leaders.tolist(), index, strict=True)]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_frontier_is_that_of_all_strategies_in_which_followers_follow(shape: str) -> None:
    solved = 0
    for seed in range(10):
        problem = dataclasses.replace(random_problem(shape, seed, whole=True), groups=None)
        leaders, index = _followers(problem, seed)
        contraction = Contraction(problem, leaders, index)
        points = []
        for row in _every_strategy(problem, leaders, index):
            try:
                time, memory = evaluate(problem, row)
            except InfeasibleError:
                continue
            points += [*zip(time.tolist(), memory.tolist(), strict=True)]
        best = sorted({p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)})
        if not best:
            continue
        for search in (brute_force, track_frontier):
            inside = search(contraction.problem)
            found = contraction.expand(inside)
            assert sorted(zip(found.time_s.tolist(), found.memory_bytes.tolist(), strict=True)) == best
            for expected, costs in zip((found.time_s, found.memory_bytes), problem.costs(*found.rows()), strict=True):
                np.testing.assert_array_equal(costs, expected)
            deciding = {contraction.deciding(row) for row in found.assignments.tolist()}
            assert deciding == set(map(tuple, inside.assignments.tolist()))
        solved += 1
    assert solved > 3


def test_shared_tables_stay_shared() -> None:
    node, edge = np.array([1.0, 2.0]), np.array([[0.0, 1.0], [1.0, 0.0]])
    names = [f"{kind}{layer}" for layer in range(4) for kind in ("product", "bias")]
    edges = [(i, i + 1) for i in range(7)]
    problem = Problem(names, [node] * 8, [node] * 8, edges, [edge] * 7, [edge] * 7)
    same = np.array([0, 1])
    leaders = np.array([0, 0, 2, 2, 4, 4, 6, 6])
    contraction = Contraction(problem, leaders, [None, same] * 4)
    small = contraction.problem
    assert small.names == ("product0", "product1", "product2", "product3")
    assert len({id(table) for table in small.node_time_s}) == 1
    assert len({id(table) for table in small.edge_time_s}) == 1
    # Two products and the edge within, which is free where both do the same.
    assert small.node_time_s[0].tolist() == [2.0, 4.0]


def test_frontiers_are_merged_where_several_are_expanded() -> None:
    problem = Problem(["a", "b"], [[1.0, 3.0], [1.0, 3.0]], [[4.0, 1.0], [4.0, 1.0]], [(0, 1)], [np.zeros((2, 2))])
    contraction = Contraction(problem, np.array([0, 0]), [None, np.array([0, 1])])
    whole = track_frontier(contraction.problem)
    coarse = track_frontier(contraction.problem.with_tables(lambda time_s, memory, _: (time_s * 0.0, memory)))
    assert contraction.expand(coarse).memory_bytes.tolist() == [2.0]
    merged = contraction.expand(coarse, whole, exact=False)
    assert merged.memory_bytes.tolist() == [2.0, 8.0]
    assert merged.time_s.tolist() == [6.0, 2.0]
    assert merged.assignments.tolist() == [[1, 1], [0, 0]]
    assert not merged.exact
