"""The examples of Keras: on two ranks they print what they print without tensoropt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

_FOLDER = Path(__file__).parents[2] / "examples" / "keras"
_SCRIPTS = sorted(_FOLDER.glob("*.py"))
# The others are much as cases of `tests/api/test_functions.py` and `test_keras.py`; this one is in the docs.
_CHOSEN = ("image_classifier", "large_image")
_RUN = [path for path in _SCRIPTS if THOROUGH or path.stem in _CHOSEN]
_MODELS = ("custom_loop", "image_classifier", "large_image", "little_memory", "text_transformer")
_NUMBERS = re.compile(r"(\w*(?:loss|accuracy)):? (\d+\.\d+)")
# How a script's one line reads without tensoropt.
_WITHOUT = {
    "@tensoropt.function": "@tf.function",
    '    model = tensoropt.keras.parallelize(model, option="mini_time")': "",
    '    model = tensoropt.keras.parallelize(model, option="data_parallel")': "",
    "    model = tensoropt.keras.parallelize(model, memory_bytes=limit, micro_batches=parts, recompute=again)": "",
    "import tensoropt.keras\n": "",
    "import tensoropt\n": "",
    "if tensoropt.world_rank() == 0:": "if True:",
}


def _numbers(printed: str) -> list[tuple[str, float]]:
    return [(name, float(number)) for name, number in _NUMBERS.findall(printed)]


@pytest.mark.pure
def test_scripts_are_short() -> None:
    assert [path.stem for path in _SCRIPTS] == list(_MODELS)
    for path in _SCRIPTS:
        assert 40 <= len(path.read_text(encoding="utf-8").splitlines()) <= 80, path


@pytest.mark.mpi
@pytest.mark.parametrize("path", _RUN, ids=lambda path: path.stem)
@left_to_ci("another script like those of the cases")
def test_script_prints_what_it_prints_without_tensoropt(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for ours, plain in _WITHOUT.items():
        text = text.replace(ours, plain)
    assert "tensoropt" not in text
    (tmp_path / path.name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(tmp_path / path.name), "--epochs", "2"]
    alone = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=True)
    job = run_mpi(path, 2, "--epochs", 2, timeout=300, env={"TENSOROPT_COSTS": "analytic"})
    expected, found = _numbers(alone.stdout), _numbers(job.stdout)
    assert len(expected) >= 4 and [name for name, _ in found] == [name for name, _ in expected], job.stdout
    for (name, one), (_, other) in zip(found, expected, strict=True):
        # Batch norm makes more of rounding, and one sample may fall on the other side.
        assert one == pytest.approx(other, rel=2e-2, abs=1e-2), name
