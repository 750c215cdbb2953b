"""Scripts of TensorFlow 1, by several strategies: as plain TensorFlow in one process, but for the README's lines."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.effort import EVERY_CASE, THOROUGH, some
from tests.mpi_support import run_mpi
from tests.scripts.tf1_examples import FOLDER, POINT

_DRIVER = "tests.scripts.tf1_examples"
_NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
_CHOICES = ("mini_time", "mini_memory", "data_parallel", "zero3", f"{POINT}0.33", f"{POINT}0.67")
_EACH = {name: (_CHOICES[number % len(_CHOICES)],) for number, name in enumerate(_NAMES)}
_SOME = some(_NAMES, 2 if EVERY_CASE else 4)
_JOBS: list[tuple[int, dict[str, tuple[str, ...]]]] = [(2, {name: _EACH[name] for name in _SOME})]
if THOROUGH:
    _JOBS = [(ranks, dict.fromkeys(_NAMES, (choice,))) for ranks in (2, 4) for choice in _CHOICES]
_LINES = {  # the README's
    "import tensoropt as tf",
    "tf.init()",
    'plan = tf.find_strategy(option="mini_time")',
    'tf.build_execution_graph(engine="tensorflow", plan=plan)',
}


@pytest.mark.pure
@pytest.mark.parametrize("name", _NAMES)
def test_a_script_differs_from_its_plain_twin_by_the_readmes_lines(name: str) -> None:
    ours, plain = [(folder / f"{name}.py").read_text(encoding="utf-8") for folder in (FOLDER, FOLDER / "plain")]
    changes = [line for line in difflib.ndiff(plain.splitlines(), ours.splitlines()) if line[0] in "+-"]
    assert [line[2:] for line in changes if line[0] == "-"] == ["import tensorflow.compat.v1 as tf"]
    added = [line[2:].strip() for line in changes if line[0] == "+"]
    assert len(added) == len(_LINES) and set(added) == _LINES


@pytest.mark.pure
def test_there_are_ten_scripts_with_twins() -> None:
    assert len(_NAMES) == 10
    assert _NAMES == sorted(path.stem for path in (FOLDER / "plain").glob("*.py"))


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The losses of the plain twins in one process, by script."""
    folder = tmp_path_factory.mktemp("plain")
    command = [sys.executable, "-m", _DRIVER, str(folder), "plain", *(f"{name}=alone" for name in _SOME)]
    # It starts in half the time without Keras 3. With several threads TensorFlow itself may update a variable before a
    # loss that is fetched beside the update has read it: the GAN's critic.
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {name: found["alone"] for name, found in _written(folder, "plain").items()}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("ranks", "asked"), _JOBS, ids=[f"{ranks}-{number}" for number, (ranks, _) in enumerate(_JOBS)]
)
def test_losses_are_those_of_plain_tensorflow(
    ranks: int, asked: dict[str, tuple[str, ...]], plain_losses: dict[str, Any], tmp_path: Path
) -> None:
    arguments = [f"{name}={','.join(choices)}" for name, choices in asked.items()]
    run_mpi(_DRIVER, ranks, tmp_path, "tensoropt", *arguments, timeout=550)
    found = _written(tmp_path, "tensoropt")
    wrong = []
    for name, choices in asked.items():
        assert tuple(found[name]) == choices
        wanted = plain_losses[name]
        assert not isinstance(wanted, str), wanted
        assert len(wanted) >= 20 and np.ptp(wanted) > 0.01
        for choice, losses in found[name].items():
            if isinstance(losses, str):
                wrong.append(f"{name} by {choice}: {losses}")
            elif np.shape(losses) != np.shape(wanted) or not np.allclose(losses, wanted, rtol=1e-4, atol=1e-5):
                wrong.append(f"{name} by {choice}: {losses} is not {wanted}")
    assert not wrong, "\n".join(wrong)


def _written(folder: Path, kind: str) -> dict[str, Any]:
    return json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
