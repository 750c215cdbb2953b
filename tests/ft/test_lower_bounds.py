"""Lower bounds of all strategies: never above one, and met at the ends of small frontiers."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError
from tensoropt.ft.lower_bounds import lower_bounds
from tensoropt.problem import Problem, brute_force
from tests.ft.random_problems import SHAPES, random_problem

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("shape", SHAPES)
def test_no_strategy_is_below_a_bound(shape: str) -> None:
    bounded = 0
    for seed in range(12):
        problem = random_problem(shape, seed)
        try:
            whole, bounds = brute_force(problem), lower_bounds(problem)
        except InfeasibleError:  # nothing is possible, or nothing that message passing comes to
            continue
        bounded += 1
        slack = 1 + 1e-9
        assert (bounds.least_time_s(whole.memory_bytes) <= whole.time_s * slack).all()
        assert (bounds.least_memory_bytes(whole.time_s) <= whole.memory_bytes * slack).all()
        anything = np.array([np.inf])
        assert bounds.least_time_s(anything)[0] <= whole.time_s.min() * slack
        assert bounds.least_memory_bytes(anything)[0] <= whole.memory_bytes.min() * slack
    assert bounded >= 6


def test_bounds_of_what_is_impossible_are_refused() -> None:
    differ = [[np.inf, 1.0], [1.0, np.inf]]  # three that all differ, of two configurations each
    triangle = Problem("abc", [[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3, [(0, 1), (1, 2), (0, 2)], [differ] * 3)
    with pytest.raises(InfeasibleError, match="LowerBounds: of 3 operators no strategy of finite cost was found"):
        lower_bounds(triangle)


def test_bounds_of_a_chain_meet_its_hull() -> None:
    """Message passing is exact on trees."""
    times = [[1.0, 2.0, 4.0], [3.0, 1.0]]
    memories = [[9.0, 4.0, 1.0], [1.0, 5.0]]
    problem = Problem(["a", "b"], times, memories, [(0, 1)], [[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]])
    whole, bounds = brute_force(problem), lower_bounds(problem)
    assert bounds.least_time_s(np.array([np.inf]))[0] == pytest.approx(whole.time_s.min())
    assert bounds.least_memory_bytes(np.array([np.inf]))[0] == pytest.approx(whole.memory_bytes.min())
    # Between the ends the bound is the convex hull, which has points of the frontier.
    met = whole.time_s / bounds.least_time_s(whole.memory_bytes)
    assert met.max() < 1.5 and (met < 1 + 1e-9).sum() >= 2
