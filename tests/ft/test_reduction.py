"""What goes before any elimination."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.ft.linear import topological_rank
from tensoropt.ft.reduction import reduce_problem
from tensoropt.problem import Problem

pytestmark = pytest.mark.pure


def test_configuration_without_a_possible_neighbour_goes_and_takes_others_with_it() -> None:
    lone = np.zeros((2, 2))
    lone[1] = np.inf  # a = 1 stands beside nothing
    needs = np.array([[np.inf, 0.0], [0.0, 0.0]])  # a = 0 takes c = 1
    trade = [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    problem = Problem("abc", trade, [t[::-1] for t in trade], [(0, 1), (0, 2)], [lone, needs])
    assert [alive.tolist() for alive in reduce_problem(problem).alive] == [[0], [0, 1], [1]]


def test_configurations_that_the_graph_cannot_tell_apart_become_one_class() -> None:
    problem = Problem(
        "ab",
        [[3.0, 2.0, 1.0], [1.0, 2.0]],
        [[1.0, 2.0, 3.0], [2.0, 1.0]],
        [(0, 1)],
        [[[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]],
    )
    reduced = reduce_problem(problem)
    assert reduced.classes[0].tolist() == [0, 1, 0]
    assert reduced.representatives(0).tolist() == [0, 1]


def test_group_becomes_one_variable_and_its_inner_edge_a_diagonal() -> None:
    problem = Problem(
        "abc",
        [[1.0, 2.0]] * 3,
        [[2.0, 1.0]] * 3,
        [(0, 2), (1, 2)],
        [[[5.0, 9.0], [9.0, 6.0]], np.zeros((2, 2))],
        groups=[1, 0, 1],
    )
    reduced = reduce_problem(problem)
    assert reduced.members == ((0, 2), (1,))
    inner = next(term for term in reduced.terms if term.terms == (3,))
    assert inner.scope == (0,) and inner.costs.time_s[:, 0].tolist() == [5.0, 6.0]


def test_rank_is_topological_and_survives_cycles() -> None:
    assert topological_rank(4, [(3, 0), (0, 1), (3, 1)]) == (2, 3, 0, 1)
    assert sorted(topological_rank(3, [(0, 1), (1, 0), (1, 2)])) == [0, 1, 2]
