"""The table of two hosts: its arguments, what stands in it, and all ways to train in one job."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import step
from benchmarks.rivals import summary
from benchmarks.step_hosts import rate, steps_of_turn, table
from benchmarks.two_hosts import bits_per_s
from tests.effort import left_to_ci
from tests.mpi_support import run_mpi


@pytest.mark.pure
def test_rates_are_those_of_links_or_none() -> None:
    assert bits_per_s("2.5gbit") == 2.5e9 and rate("100mbit") == "100mbit" and rate("none") == "none"
    for wrong in ("100", "0mbit", "fast", "1Gbit", "-1gbit"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"like 100mbit or 2\.5gbit, got '.*, or be none"):
            rate(wrong)


@pytest.mark.pure
def test_what_keeps_hosts_from_being_made_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "why_no_hosts", lambda: "only root makes network namespaces")
    monkeypatch.setattr(sys, "argv", ["benchmarks.step", "--hosts", "2", "--rate", "none", "1gbit"])
    with pytest.raises(SystemExit):
        step.main()
    assert "cannot make hosts here, which are network namespaces: only root makes" in capsys.readouterr().err


@pytest.mark.pure
def test_long_steps_are_few() -> None:
    assert [steps_of_turn(seconds, 10) for seconds in (0.01, 1.0, 60.0)] == [10, 3, 2]


@pytest.mark.pure
def test_the_table_has_predictions_and_what_plans_say() -> None:
    variants: dict[str, Any] = {
        "one_process": ([[0.4, 0.4]], [5.0], {}),
        "each_alone": ([[0.45]], [5.0], {}),
        "data_parallel": ([[0.5]], [5.0], {"predicted_s": 0.25, "said": "data"}),
        "mini_time": ([[0.2]], [5.0], {"predicted_s": 0.25, "said": "mini_time on 2 hosts: fast"}),
        "horovod": ([[0.8]], [5.0], {}),
    }
    found = summary(variants, {}, "mini_time", {"pipeline": "it has batch normalization"})
    columns, lines = table([{"model": "vgg", "rate": "1gbit", "link_bytes_per_s": 0.12e9, **found}])
    console = Console(width=200, file=io.StringIO())
    with console.capture() as printed:
        console.print(columns)
    (row,) = [line for line in printed.get().splitlines() if "vgg" in line]
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    ways = ["400.0", "450.0", "500.0 (250.0)", "200.0 (250.0)", "", "800.0"]
    assert cells == ["vgg", "1gbit", "0.96 Gbit/s", *ways, "2.00", "4.00"]
    assert lines == [
        "- vgg, 1gbit: mini_time on 2 hosts: fast.",
        "- vgg, 1gbit: no pipeline: it has batch normalization",
    ]


@pytest.mark.mpi
@left_to_ci("a benchmark, which users do not run")
def test_one_job_trains_in_all_ways_with_the_same_losses(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--model", "mlp", "--short", "--turns", "2", "--steps", "3", "--out", str(out)]
    run_mpi("benchmarks.step_hosts_worker", 2, *flags)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["link_bytes_per_s"] > 0 and not found["failed"]
    reference = found["variants"].pop("one_process")[1]
    assert found["variants"].keys() == {"each_alone", "data_parallel", "mini_time", "pipeline"}
    for name, (turns_s, losses, about) in found["variants"].items():
        assert [len(turn) for turn in turns_s] == [3, 3]
        assert name == "each_alone" or (about["predicted_s"] > 0 and about["said"])
        np.testing.assert_allclose(losses, reference, rtol=1e-5)
