"""Configurations that go because another one stands in for them lose no point of the frontier."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError
from tensoropt.ft.cost_graph import build_cost_graph
from tensoropt.ft.dominance import drop_dominated
from tensoropt.ft.factors import EliminationState
from tensoropt.ft.reduction import reduce_problem
from tensoropt.problem.frontier_tables import FrontierTable
from tests.ft.random_problems import SHAPES, random_problem

pytestmark = pytest.mark.pure


def _table(cells: list[list[tuple[float, float]]], shape: tuple[int, ...]) -> FrontierTable:
    points = [point for cell in cells for point in cell]
    offsets = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])])
    memory, time = np.array(points).reshape(-1, 2).T
    return FrontierTable(shape, offsets, np.ascontiguousarray(time), np.ascontiguousarray(memory))


def _left(tables: list[tuple[tuple[int, ...], FrontierTable]], sizes: dict[int, int]) -> list[list[int]]:
    alive = {v: np.arange(k) for v, k in sizes.items()}
    drop_dominated(alive, tables)
    return [rows.tolist() for rows in alive.values()]


def test_points_are_compared_with_the_largest_that_is_no_larger() -> None:
    # (memory, time): the second configuration's frontier lies on or above the first's everywhere; the third is faster.
    cells = [[(1.0, 9.0), (4.0, 5.0)], [(2.0, 9.0), (5.0, 5.0)], [(8.0, 4.0)]]
    assert _left([((0,), _table(cells, (3,)))], {0: 3}) == [[0, 2]]


def test_of_equal_configurations_the_first_stays() -> None:
    cells = [[(1.0, 2.0)], [(1.0, 2.0)], [(1.0, 2.0)]]
    assert _left([((0,), _table(cells, (3,)))], {0: 3}) == [[0]]


def test_gains_and_losses_of_several_tables_add_up() -> None:
    # The second is 1 s slower by itself and 2 s faster beside either neighbour: it stands in for the first.
    alone = _table([[(0.0, 1.0)], [(0.0, 2.0)]], (2,))
    beside = _table([[(0.0, 5.0)], [(0.0, 6.0)], [(0.0, 3.0)], [(0.0, 4.0)]], (2, 2))
    other = _table([[(0.0, 1.0)], [(1.0, 0.0)]], (2,))
    assert _left([((0,), alone), ((0, 1), beside), ((1,), other)], {0: 2, 1: 2}) == [[1], [0]]


def test_what_one_neighbour_may_need_stays() -> None:
    # As above, but beside the neighbour's other configuration the second gains less than it loses by itself.
    alone = _table([[(0.0, 1.0)], [(0.0, 2.0)]], (2,))
    beside = _table([[(0.0, 5.0)], [(0.0, 4.0)], [(0.0, 3.0)], [(0.0, 3.5)]], (2, 2))
    other = _table([[(0.0, 1.0)], [(1.0, 0.0)]], (2,))
    assert _left([((0,), alone), ((0, 1), beside), ((1,), other)], {0: 2, 1: 2})[0] == [0, 1]


def test_less_memory_stays() -> None:
    assert _left([((0,), _table([[(1.0, 3.0)], [(2.0, 2.0)]], (2,)))], {0: 2}) == [[0, 1]]


def test_what_is_possible_where_another_is_not_stays() -> None:
    beside = _table([[(0.0, 1.0)], [], [(0.0, 9.0)], [(0.0, 9.0)]], (2, 2))
    other = _table([[(0.0, 1.0)], [(0.0, 0.5)]], (2,))
    assert _left([((0, 1), beside), ((1,), other)], {0: 2, 1: 2}) == [[0, 1], [0, 1]]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_point_of_a_frontier_is_lost(shape: str) -> None:
    dropped = 0
    for seed in range(200, 230):
        problem = random_problem(shape, seed)
        try:
            reduced = reduce_problem(problem)
        except InfeasibleError:
            continue
        names = tuple(tuple(problem.names[i] for i in nodes) for nodes in reduced.members)
        state = EliminationState(names=names, rank=tuple(range(len(names))), ratio=0.0, pool=None)
        graph = build_cost_graph(problem, reduced, state)
        alive = {v: np.arange(k) for v, k in graph.sizes.items()}
        drop_dominated(alive, [(f.scope, f.table) for f in graph.factors() if f.scope for _ in range(f.copies)])
        left = graph.restricted(alive, state, None)
        dropped += sum(graph.sizes.values()) - sum(left.sizes.values())
        ends = []
        for one in (graph, left):
            for v in sorted(one.sizes):
                one.eliminate(v, "node")
            ends.append(one.merged(()).table)
        assert ends[0].points == ends[1].points
        np.testing.assert_allclose(ends[0].time_s, ends[1].time_s, rtol=1e-12)
        np.testing.assert_allclose(ends[0].memory_bytes, ends[1].memory_bytes, rtol=1e-12)
    assert dropped > 0
