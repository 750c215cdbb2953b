"""The story of PaSE's figure 6, on a small part of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf


def test_our_strategies_are_ahead_of_experts_and_more_so_where_links_are_slow(tmp_path: Path) -> None:
    from benchmarks.paper.pase_figure6 import run
    from benchmarks.paper.setting import Options

    report = run(Options(models=("alexnet",), devices=(4,)), tmp_path, proposals=200)
    assert (tmp_path / "pase_figure6.png").stat().st_size > 10_000
    assert json.loads(json.dumps(report)) == report
    speedups = {}
    for cluster, models in report["clusters"].items():
        for devices, row in models["alexnet"].items():
            assert row["data_parallel"]["speedup"] == row["data_parallel"]["added_speedup"] == 1.0
            # It is the optimum of the added time over operators that decide.
            assert row["pase"]["added_speedup"] >= row["expert"]["added_speedup"] > 1.0
            assert row["pase"]["speedup"] > 1.0
            # FlexFlow begins at the expert's strategy, so that it can only improve upon it.
            assert row["flexflow"]["initial"] == row["expert"]["search"] == "one_weird_trick"
            assert row["flexflow"]["simulated_s"] <= row["expert"]["simulated_s"] * (1 + 1e-9)
            assert "communication beside computation" in row["flexflow"]["searched"]
            speedups[cluster, devices] = row["pase"]["added_speedup"]
    assert speedups["2080Ti", "4"] > speedups["1080Ti", "4"]


def test_an_expert_that_does_not_apply_is_in_the_report_with_its_reason() -> None:
    from benchmarks.paper.pase_figure6 import _row
    from benchmarks.paper.setting import Options, planner
    from tensoropt.cluster.presets import gtx1080ti
    from tensoropt.cluster.scaling import scaled

    plans = planner("lenet", Options(sizes={"lenet": {"batch_size": 8}}))
    row = _row(plans, scaled(gtx1080ti(), 2), "megatron", 50)
    assert "does not apply because" in row["expert"]["reason"]
    assert "speedup" not in row["expert"]
    assert row["flexflow"]["initial"] == "data_parallel"


def test_flexflow_begins_at_placed_layers_in_the_whole_space() -> None:
    from benchmarks.paper.pase_figure6 import _row
    from benchmarks.paper.setting import Options, planner
    from tensoropt.cluster.presets import gtx1080ti
    from tensoropt.cluster.scaling import scaled
    from tests.examples.small_models import SMALL

    plans = planner("rnnlm", Options(sizes={"rnnlm": {"batch_size": 16, **SMALL["rnnlm"]}}))
    row = _row(plans, scaled(gtx1080ti(), 2), "gnmt", 50)
    assert (row["flexflow"]["search"], row["flexflow"]["initial"]) == ("whole_space", "gnmt")
    assert "FlexFlow's whole space" in row["flexflow"]["searched"]
    assert row["flexflow"]["simulated_s"] <= row["expert"]["simulated_s"] * (1 + 1e-9)
