"""Markov chains on a paper's small model: the best of all strategies, and a row of the table of their seconds."""

from __future__ import annotations

import pytest

from tests.effort import left_to_ci

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(("name", "chosen", "strategies"), [("lenet", 32, 1e12), ("lenet_mesh", 12, 6e13)])
@left_to_ci("a benchmark, which users do not run")
def test_chains_find_the_best_of_all_strategies_of_lenet(name: str, chosen: int, strategies: float) -> None:
    from benchmarks.optimum.comparison import CASES, compare_with_optimum

    report = compare_with_optimum(CASES[name])
    assert report["reached"]
    assert report["found_s"] == report["optimum_s"]
    assert report["operators"] == 32
    assert report["chosen"] == chosen
    assert report["strategies"] > strategies
    # No bound says less than a strategy takes, so that what was not gone through is no better.
    assert report["least_s"] <= report["optimum_s"]
    assert report["partial_strategies"] < 1e5


@pytest.mark.parametrize(
    ("whole", "searched"),
    [(False, "no placement of operators, no splits of height and width"), (True, "all of SOAP: operators on parts")],
)
def test_a_row_of_table_5_says_what_was_searched(whole: bool, searched: str) -> None:
    from benchmarks.paper.flexflow_table5 import run
    from benchmarks.paper.setting import Options

    report = run(Options(("lenet",), (4,)), whole=whole, initial=1)
    assert searched in report["searched"]
    row = report["rows"]["lenet, 4 devices"]
    assert row["best_strategy_s"]["least"] <= row["first_strategy_s"]
    assert row["best_strategy_s"]["least"] <= row["data_parallel_s"]
    assert row["full_s"] > 0 and row["delta_s"] > 0 and row["early_s"] > 0 and row["proposals"] >= 1000
    assert row["speedup"] == pytest.approx(row["full_s"] / row["delta_s"])
    assert row["early_speedup"] == pytest.approx(row["delta_s"] / row["early_s"])
