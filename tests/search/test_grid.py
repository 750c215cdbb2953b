"""The units of costs: powers of two of which all are multiples, and whose sums are exact."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.errors import ProblemError
from tensoropt.problem import Problem
from tensoropt.problem.units import coarsest_step, on_grid, unit_of

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("costs", "step"),
    [
        ([[3.0, 6.0], [9.0]], 1.0),
        ([[0.0, 6.0], [10.0, np.inf]], 2.0),
        ([[0.375, 96.0]], 0.125),
        ([[2.0**40, 2.0**21]], 2.0**21),
        ([[0.0]], 0.0),
        ([[np.inf]], 0.0),
    ],
)
def test_the_coarsest_step_is_the_largest_power_of_two_that_divides_all(costs: list[list[float]], step: float) -> None:
    tables = [np.array(row) for row in costs]
    assert coarsest_step(tables, unit_of("time_s", tables)) == step


def test_a_broadcast_number_has_no_say() -> None:
    assert coarsest_step([np.broadcast_to(np.float64(0.5), (3, 4)), np.array([12.0])], 0.25) == 4.0


def test_a_problems_costs_add_up_exactly_in_any_order() -> None:
    rng = np.random.default_rng(5)
    given = rng.random((200, 4)) * 1e-3, rng.random((200, 4)) * 1e9
    problem = Problem([str(i) for i in range(200)], *given, constant_time_s=0.1, constant_memory_bytes=1 / 3)
    tables = (problem.node_time_s, problem.node_memory_bytes)
    units = (problem.time_unit_s, problem.memory_unit_bytes)
    constants = (problem.constant_time_s, problem.constant_memory_bytes)
    for costs, rounded, unit, constant, total in zip(
        given, tables, units, constants, problem.costs([0] * 200), strict=True
    ):
        assert np.abs(np.array(rounded) - costs).max() <= unit / 2 and 0.0 < unit < 1e-14 * costs[:, 0].sum()
        values = [constant, *(float(table[0]) for table in rounded)]
        assert all(value % unit == 0.0 for value in values)
        forward = backward = 0.0
        for value in values:
            forward += value
        for value in values[::-1]:
            backward += value
        assert forward == backward == total[0]
        assert total[0] == pytest.approx(costs[:, 0].sum() + constant, rel=1e-12)


def test_whole_numbers_stay_as_they_are_however_far_apart() -> None:
    given = [np.array([0.0, 2.0**51]), np.array([7.0, 1.0])]
    problem = Problem("ab", given, given)
    assert all(np.shares_memory(table, one) for table, one in zip(problem.node_time_s, given, strict=True))
    assert problem.costs([1, 1])[0].tolist() == [2.0**51 + 1.0]


def test_rounded_tables_stay_shared_and_broadcast() -> None:
    table, third = np.array([[0.1, 0.7], [3.0, np.inf]]), np.broadcast_to(np.float64(1 / 3), (2, 2))
    problem = Problem(
        "abcd", [[5.0, 2.0]] * 4, [[0.0, 0.0]] * 4, [(0, 1), (1, 2), (2, 3)], [table, table.view(), third]
    )
    one, other, broadcast = problem.edge_time_s
    assert one is other and one[0, 0] != 0.1 and one[1, 1] == np.inf
    assert not any(broadcast.strides) and broadcast[0, 0] % problem.time_unit_s == 0.0
    assert not one.flags.writeable and not broadcast.flags.writeable


def test_rounding_again_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        problem = Problem([str(i) for i in range(5)], rng.random((5, 3)), rng.random((5, 3)) * 1e6)
        again = problem.with_tables(lambda time_s, memory_bytes, _: (time_s, memory_bytes))
        assert all(map(np.shares_memory, problem.node_time_s, again.node_time_s))
        assert again.memory_unit_bytes == problem.memory_unit_bytes


def test_nothing_has_no_unit() -> None:
    assert unit_of("time_s", [np.zeros(3), np.array([np.inf])]) == 0.0
    assert on_grid(np.array([0.1]), 0.0).tolist() == [0.1]


@pytest.mark.parametrize("huge", [1e13, 1e300, 1.7e308])
def test_costs_beside_which_others_are_lost_are_refused(huge: float) -> None:
    with pytest.raises(ProblemError, match=r"time_s: costs may differ by a factor of some 2e\+11 at most with 3"):
        Problem("ab", [[0.1, huge], [0.1, huge]], [[1.0, 1.0]] * 2)
