"""Two ranks that share a graphics card train like one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt.exec.engines.graphics_cards import has_driver
from tests.case_jobs import check_case, failures_of
from tests.mpi_support import result_of, run_mpi

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]

_ROOT = Path(__file__).parents[2]
# One card, and products of float32 in float32.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_TF32_OVERRIDE": "0"}
_CASES = (
    "keras_models:mlp with dropout has the history of keras alone",
    "keras_models:convolutions and batch norm have the history of keras alone",
    "keras_models:transformer has the history of keras alone",
    "keras_memory:weights built in a scope are those of keras and never whole",
    "functions:step trains as tensorflow alone on batches of any size",
)
_RANDOM = 20


@pytest.fixture(autouse=True, scope="module")
def _card() -> None:
    """Skips all where TensorFlow, in a process of its own, sees no card."""
    look = "import tensorflow as tf; assert tf.config.list_physical_devices('GPU')"
    environment = os.environ | _ENVIRONMENT
    if not has_driver() or subprocess.run([sys.executable, "-c", look], env=environment, check=False).returncode:
        pytest.skip("TensorFlow sees no graphics card here")


def test_random_plans_train_like_one_process() -> None:
    script = _ROOT / "tests/exec/random_graphs_ranks.py"
    done = run_mpi(script, 2, 0, _RANDOM, timeout=900, env=_ENVIRONMENT)
    assert re.search(rf"{_RANDOM} graphs on 2 ranks, 0 differ", done.stdout), done.stdout


@pytest.mark.parametrize("case", _CASES)
def test_keras_models_and_functions_train_like_one_process(case: str, tmp_path: Path) -> None:
    check_case(failures_of(2, tmp_path, _CASES, env=_ENVIRONMENT), case.partition(":")[2])


def test_parts_of_a_batch_made_again_take_as_little_of_the_card_as_planned() -> None:
    script = _ROOT / "tests/scripts/held_memory.py"
    whole, split = (
        result_of(run_mpi(script, 2, "graph", steps, 0, timeout=300, env=_ENVIRONMENT)) for steps in ("whole", "split")
    )
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert split["card_bytes"] < 0.4 * whole["card_bytes"]
    for one in (whole, split):
        assert one["card_bytes"] == pytest.approx(one["planned_bytes"], rel=0.25)


def test_the_demo_has_the_losses_of_one_process(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    script = _ROOT / "examples/large_softmax.py"
    environment = {**_ENVIRONMENT, "TENSOROPT_COSTS": ""}  # measured
    run_mpi(script, 1, "--steps=20", "--json", figures, launcher=("env",), timeout=600, env=environment)
    report = json.loads(figures.read_text(encoding="utf-8"))
    for rows in (report["sgd"], report["adam"]):
        for way in set(rows) - {"alone"}:
            assert rows[way]["losses"] == pytest.approx(rows["alone"]["losses"], rel=1e-5)
