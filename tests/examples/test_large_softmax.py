"""What `make demo` shows: three ways of training side by side, with equal losses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.effort import left_to_ci
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parents[2] / "examples/large_softmax.py"
_HERE = ("env",)  # the script starts the jobs itself


@left_to_ci("starts TensorFlow eight times")
def test_three_ways_have_equal_losses_and_a_limit_leaves_data_parallelism_out(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    flags = ("--vocabulary=2000", "--steps=8", "--json", figures)
    done = run_mpi(_SCRIPT, 1, *flags, launcher=_HERE, timeout=400, env={"COLUMNS": "90"})
    report = json.loads(figures.read_text(encoding="utf-8"))
    assert report["ranks"] == 2 and set(report["sgd"]) == {"alone", "data_parallel", "mini_time"}
    for rows in (report["sgd"], report["adam"]):
        for way in set(rows) - {"alone"}:
            assert rows[way]["losses"] == pytest.approx(rows["alone"]["losses"], rel=1e-5)
        assert rows["mini_time"]["losses"][-1] < rows["mini_time"]["losses"][0]
        assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows.values())
    assert "data_parallel" not in report["adam"]
    plans = report["planned"]
    assert plans["adam mini_time"] <= plans["adam limit"] < plans["adam data_parallel"]
    assert done.stdout.count("does not fit") == 1
    assert re.search(r"times data parallelism, \S+ times one process on all cores; same losses to \S+", done.stdout)


def test_what_cannot_be_run_is_said() -> None:
    for flags, said in ((["--steps=3"], "--steps: must be more than 5"), (["--batch=63"], "--batch: must be divided")):
        done = run_mpi(_SCRIPT, 1, *flags, launcher=_HERE, check=False)
        assert done.returncode == 2 and said in done.stderr
