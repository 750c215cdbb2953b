"""`Frontier`: its invariants, choosing from it, and its JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem import Elimination, Frontier, Problem, frontier_of
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.search import choose, mini_memory, mini_time, turning_point

pytestmark = pytest.mark.pure


def example(**changes: Any) -> Frontier:
    fields: dict[str, Any] = {
        "names": ("a", "b"),
        "time_s": np.array([9.0, 3.0, 2.5, 2.0]),
        "memory_bytes": np.array([100.0, 120.0, 300.0, 500.0]),
        "assignments": np.array([[0, 0], [0, 1], [1, 1], [1, 2]]),
        "alternatives": np.zeros((4, 3), np.int64),
        "exact": True,
        "eliminations": (Elimination("heuristic", ("a",), ("b",), 1), Elimination("ldp", ("b",))),
        "seconds": 0.25,
    }
    return Frontier(**{**fields, **changes})


def test_best_is_the_fastest_that_fits() -> None:
    assert example().best().time_s == 2.0
    assert example().best(300.0).assignment == (1, 1)
    assert example().best(299.0).time_s == 3.0


def test_best_of_nothing_says_how_much_is_missing() -> None:
    with pytest.raises(
        InfeasibleError, match="must fit in 60 bytes, but the least that any takes is 100 bytes: 40 bytes"
    ):
        example().best(60.0)


@pytest.mark.parametrize("limit", [float("nan"), "8e9"])
def test_a_limit_that_is_no_number_is_refused(limit: Any) -> None:
    with pytest.raises(
        ProblemError, match=rf"memory_bytes must be a number of bytes, got {limit!r}\. Give for example"
    ):
        example().best(limit)


def test_turning_point_is_the_knee() -> None:
    assert example().turning_point().index == 1
    short = example(
        time_s=np.array([2.0, 1.0]),
        memory_bytes=np.array([1.0, 2.0]),
        assignments=np.zeros((2, 2), np.int64),
        alternatives=np.zeros((2, 2), np.int64),
    )
    assert short.turning_point().index == 0


def test_options_choose_within_the_limit() -> None:
    frontier = example()
    assert mini_time(frontier, 400.0).index == 2
    assert mini_memory(frontier).index == 0
    assert turning_point(frontier).index == 1
    assert turning_point(frontier, 110.0).index == 0  # the knee does not fit
    for option, index in (("mini_time", 3), ("mini_memory", 0), ("turning_point", 1)):
        assert choose(frontier, option).index == index


@pytest.mark.parametrize("option", ["mini_time", "mini_memory", "turning_point"])
def test_every_option_is_infeasible_below_the_least_memory(option: str) -> None:
    with pytest.raises(InfeasibleError, match="40 bytes are missing"):
        choose(example(), option, 60.0)


def test_unknown_option_is_an_error_listing_the_known() -> None:
    with pytest.raises(ProblemError, match="one of 'mini_memory', 'mini_time', 'turning_point', got 'fastest'"):
        choose(example(), "fastest")


def test_json_gives_the_frontier_back() -> None:
    frontier = example(time_s=np.array([0.3, 0.1 + 0.1, 0.1, 1e-17]), searched="meshes of 2 dimensions")
    back = Frontier.from_json(frontier.to_json())
    for field in dataclasses.fields(Frontier):
        assert np.array_equal(getattr(back, field.name), getattr(frontier, field.name)), field.name
    assert back.assignments.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        (b"\xff", "cannot be read"),
        (5, "cannot be read"),
        ("[]", "schema must be 1, got 'list'"),
        ('{"schema": 2}', "schema must be 1, got 2"),
        ('{"schema": 1}', "malformed: field 'names' is missing"),
    ],
)
def test_malformed_json_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Frontier.from_json(text)


def test_json_with_points_out_of_order_is_refused() -> None:
    data = json.loads(example().to_json())
    data["time_s"].reverse()
    with pytest.raises(ProblemError, match="memory must ascend and time descend strictly"):
        Frontier.from_json(json.dumps(data))


def test_frontier_without_points_is_refused() -> None:
    with pytest.raises(ProblemError, match="at least 1 point, got 0"):
        example(time_s=np.array([]))


def test_frontier_whose_arrays_disagree_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"agree on 4 points and 2 nodes.*assignments \(4, 1\)"):
        example(assignments=np.zeros((4, 1), np.int64))


def test_frontier_of_strategies_keeps_those_worth_having() -> None:
    problem = Problem("ab", [[1.0, 2.0, 9.0], [0.0]], [[3.0, 1.0, 3.0], [0.0]])
    frontier = frontier_of(problem, [[2, 0], [0, 0], [1, 0]], exact=False, eliminations=(), seconds=0.0)
    assert frontier.assignments.tolist() == [[1, 0], [0, 0]]
    assert frontier.time_s.tolist() == [2.0, 1.0]


def test_text_says_what_matters() -> None:
    assert str(example()) == "Frontier(4 points: 9 s in 100 bytes ... 2 s in 500 bytes)"
    assert "not exact" in str(example(exact=False))
    assert [str(step) for step in example().eliminations] == ["heuristic a = 1 -> (b)", "ldp b"]


def test_a_gap_is_none_where_there_is_no_bound_above_nothing() -> None:
    def gap(time_s: float, bound_s: float | None) -> float | None:
        return FrontierPoint(0, time_s, 0.0, (), (), bound_s=bound_s).gap

    assert (gap(0.0, 0.0), gap(1.0, 0.0), gap(1.0, None), gap(3.0, 2.0)) == (0.0, None, None, 0.5)
