"""The benchmark of plans of large language models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpt
from benchmarks.gpt import DECODERS
from tensoropt.api.find.planner import Planner

pytestmark = pytest.mark.tf

_SMALL = "--layers 2 --width 64 --heads 4 --length 16 --vocabulary 128 --batch 16 --devices 8".split()


def test_other_sizes_keep_the_proportions() -> None:
    small = DECODERS["llama3-8b"].with_sizes({"width": 512, "heads": 8})
    assert (small.hidden, small.groups) == (1792, 2)
    assert DECODERS["gpt3"].with_sizes({"width": 512, "hidden": 100}).hidden == 100


@pytest.mark.parametrize("model", sorted(DECODERS))
def test_a_small_decoder_is_planned(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpt.json"
    functions = ["--function"] * (model == "gpt3")
    gpt.main(["--model", model, *functions, *_SMALL, "--json", str(file)])
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [*report["processor_s"]] == ["build", "differentiate", "import", "tables", "search"]
    assert report["micro_batches"] == 1 and report["topology"] == "1x8 H100"
    ours, others = report["methods"].pop("tensoropt"), report["methods"]
    assert 0.0 < ours["utilization"] < 1.0 and ours["gap"] == pytest.approx(0.0, abs=1e-6)
    assert [*others] == ["data_parallel", "zero3", "megatron"]
    assert all(row["time_s"] >= ours["time_s"] for row in others.values())
    assert "8 H100, 1 micro-batches" in capsys.readouterr().out


def test_a_step_that_does_not_fit_is_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Planner, "surpasses", lambda planner, *_: planner.micro_batches == 1)
    file = tmp_path / "gpt.json"
    gpt.main([*_SMALL, "--recompute", "--json", str(file)])
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["micro_batches"] == 2  # each further micro-batch of so small a model only takes longer
