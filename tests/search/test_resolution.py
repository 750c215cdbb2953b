"""Steps in which costs are told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensoropt.problem.problem import Problem
from tensoropt.problem.resolution import Resolution
from tests.ft.random_problems import SHAPES, random_problem

pytestmark = pytest.mark.pure


def test_steps_are_powers_of_two_below_a_share_of_the_least_cost() -> None:
    problem = Problem(["a", "b"], [[2.0, 5.0], [3.0]], [[1e9, 2e9], [3e9]])
    resolution = Resolution.of(problem)
    assert resolution.time_s == 2.0 ** math.floor(math.log2(5.0 / 2**14))
    assert resolution.memory_bytes == 2.0 ** math.floor(math.log2(4e9 / 2**11))


def test_costs_that_can_be_nothing_stay_as_they_are() -> None:
    problem = Problem(["a"], [[0.0, 1.25]], [[3.0, 0.0]])
    resolution = Resolution.of(problem)
    assert resolution == Resolution(0.0, 0.0)
    assert resolution.rounded(problem).node_time_s[0].tolist() == [0.0, 1.25]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_strategy_is_off_by_half_a_step_per_table_at_most(shape: str) -> None:
    for seed in range(20):
        problem = random_problem(shape, seed)
        resolution = Resolution(0.5, 4.0)
        rounded = resolution.rounded(problem)
        rng = np.random.default_rng(seed)
        counts = [problem.configurations(i) for i in range(problem.nodes)]
        rows = np.array([[rng.integers(k) for k in counts] for _ in range(5)])
        if problem.groups is not None:
            leader = np.array([int(np.flatnonzero(problem.groups == g)[0]) for g in problem.groups])
            rows = rows[:, leader]
        exact, coarse = problem.costs(rows), rounded.costs(rows)
        tables = problem.nodes + len(problem.edges)
        for one, other, step in zip(exact, coarse, (0.5, 4.0), strict=True):
            finite = np.isfinite(one)
            assert np.array_equal(finite, np.isfinite(other))
            assert np.all(np.abs(one[finite] - other[finite]) <= tables * step / 2)
            assert np.all(np.rint(other[finite] / step) * step == other[finite])
