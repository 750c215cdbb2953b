"""PaSE's table II: what its costs make of the four models, in small sizes where these tell the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.effort import THOROUGH

pytestmark = pytest.mark.tf


def layers_of(model: str, **sizes: Any) -> dict[str, dict[str, str]]:
    from benchmarks.paper.pase_table2 import run
    from benchmarks.paper.setting import Options

    layers: dict[str, dict[str, str]] = run(Options(models=(model,), sizes={model: sizes}))["models"][model]["layers"]
    return layers


def test_alexnets_dense_layers_alternate_as_the_papers_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.paper.__main__ import main

    file = tmp_path / "table.json"
    main(["pase_table2", "--model", "alexnet", "--json", str(file)])
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["devices"] == 32
    layers = report["models"]["alexnet"]["layers"]
    for layer in ("FC 1", "FC 2", "FC 3"):
        assert layers[layer]["ours"] == layers[layer]["paper"]
    assert layers["FC 1"]["ours"] == "in-channel 8, out-channel 4" != layers["FC 2"]["ours"]
    assert layers["conv 1-4"]["ours"].startswith("batch 32 (2); ")
    assert layers["conv 5"]["ours"] == "batch 16, in-channel 2"
    assert "alexnet / layers / FC 1" in re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.skipif(not THOROUGH, reason="`test_stories.py` has some of its modules: CI searches all")
def test_inceptions_modules_share_the_batch_but_for_the_last() -> None:
    layers = layers_of("inception3")
    for layer in ("stem", "module A", "module B", "module C"):
        assert layers[layer]["ours"] == "batch 32"
    counts = re.findall(r"(batch \d+[^;]*) \((\d+)\)", layers["module E"]["ours"])
    hybrid = sum(int(count) for splits, count in counts if "channel" in splits)
    assert hybrid > sum(int(count) for _, count in counts) / 2
    assert all(not splits.startswith("batch 32") for splits, _ in counts)


def test_rnnlms_projection_is_split_by_words_and_its_cells_in_part() -> None:
    layers = layers_of("rnnlm", steps=3)
    assert layers["FC"]["ours"] == layers["FC"]["paper"] == layers["softmax"]["ours"] == "vocabulary 32"
    # Several splits of cells take equally long; with 40 steps it is the batch.
    for splits in layers["LSTM"]["ours"].split("; "):
        assert re.fullmatch(r"(batch|hidden) (2, output 16|4, output 8)( \(\d\))?", splits)
    # Here a table is in columns: no sum is left to make, and none of its gradient is moved.
    assert "embedding" in layers["embedding"]["ours"]


def test_transformers_attention_and_feed_forward_are_hybrid_and_its_embedding_is_not() -> None:
    layers = layers_of("transformer", layers=1)
    assert layers["embedding"]["ours"] == "embedding 32"
    assert re.fullmatch(r"batch \d+, heads \d+", layers["multihead attention"]["ours"])
    forward = layers["feed forward"]["ours"]
    assert re.fullmatch(r"batch (\d+), out-channel (\d+) \(\d\); batch \1, in-channel \2 \(\d\)", forward)
    assert "vocabulary" in layers["softmax"]["ours"]


def test_other_devices_have_no_figures_of_the_paper_beside_them() -> None:
    from benchmarks.paper.pase_table2 import run
    from benchmarks.paper.setting import Options

    report = run(Options(models=("alexnet",), devices=(4,), sizes={"alexnet": {"hidden": 64}}))
    assert all(set(row) == {"ours"} for row in report["models"]["alexnet"]["layers"].values())
