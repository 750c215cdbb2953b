"""Enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem import Problem, brute_force

pytestmark = pytest.mark.pure


def test_brute_force_of_two_nodes_by_hand() -> None:
    problem = Problem("ab", [[1.0, 2.0], [4.0, 3.0]], [[5.0, 1.0], [1.0, 2.0]], [(0, 1)], [[[0.0, 9.0], [0.0, 0.5]]])
    found = brute_force(problem)
    # (0,0): 5 s 6 B; (0,1): 13 s 7 B; (1,0): 6 s 2 B; (1,1): 5.5 s 3 B
    assert found.assignments.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert found.time_s.tolist() == [6.0, 5.5, 5.0] and found.memory_bytes.tolist() == [2.0, 3.0, 6.0]
    assert found.exact


def test_brute_force_tries_alternatives_and_keeps_groups_together() -> None:
    problem = Problem(
        "ab", [[[4.0, 1.0]], [[2.0, 2.0]]], [[[1.0, 3.0]], [[1.0, 1.0]]], [(0, 1)], [np.zeros((1, 1))], groups=[0, 0]
    )
    found = brute_force(problem)
    assert found.time_s.tolist() == [6.0, 3.0]
    assert found.alternatives[:, 0].tolist() == [0, 1]


def test_brute_force_refuses_too_many_strategies() -> None:
    problem = Problem([str(i) for i in range(21)], np.ones((21, 2)), np.ones((21, 2)))
    with pytest.raises(ProblemError, match="at most 2000000 strategies can be tried, got 2097152 for 21 nodes"):
        brute_force(problem)


def test_brute_force_of_an_infeasible_problem_names_its_nodes() -> None:
    problem = Problem(["x", "y"], [[1.0], [np.inf]], [[1.0], [1.0]])
    with pytest.raises(InfeasibleError, match="every one of 1 strategies of nodes x, y has an infinite cost"):
        brute_force(problem)
