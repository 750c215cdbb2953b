"""The import of TensorFlow by a name of ours: quiet, but not where it fails or somebody asked for its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_LOG = ("TENSOROPT_LOG", "TF_CPP_MIN_LOG_LEVEL")


def _run(program: str, path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _LOG}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", os.getcwd())])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.tf
def test_tensorflow_is_loaded_without_its_log_and_the_environment_is_left_alone() -> None:
    done = _run(
        "import os, tensoropt\ntensoropt.float32\n"
        "import tensorflow as tf\ntf.config.list_physical_devices()\n"  # looks for graphics cards, and says so
        "os.write(2, b'still here\\n')\nprint('TF_CPP_MIN_LOG_LEVEL' in os.environ)"
    )
    assert done.stdout == "False\n"
    lines = [line for line in done.stderr.splitlines() if not line.endswith("so far")]
    assert lines[0] == "tensoropt: loading TensorFlow"
    assert lines[1].startswith("tensoropt: loading: TensorFlow 2.")
    assert lines[2:] == ["still here"]


# Stands for TensorFlow, whose libraries write with no regard to Python.
_PRETENDED = """
import os
os.write(2, b'I0000 00:00:1.1 1 port.cc:153] about numbers\\nE0000 00:00:1.1 1 a.cc:1] broken\\n')
"""


@pytest.fixture
def pretended(tmp_path: Path) -> Path:
    """A place to import ``tensorflow`` from, which is to be made there."""
    (tmp_path / "tensorflow.py").write_text(f"{_PRETENDED}__version__ = '2.0'\n", encoding="utf-8")
    return tmp_path


_LOAD = "from tensoropt.api.mirror.tensorflow_loading import load_tensorflow\nload_tensorflow()"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("variables", "is_heard"),
    [
        ({}, False),
        ({"TF_CPP_MIN_LOG_LEVEL": "1"}, False),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, True),
        ({"TENSOROPT_LOG": "debug"}, True),
    ],
)
def test_errors_are_let_through_and_the_rest_is_where_it_is_asked_for(
    variables: dict[str, str], is_heard: bool, pretended: Path
) -> None:
    done = _run(_LOAD, pretended, **variables)
    assert done.returncode == 0
    assert "a.cc:1] broken\n" in done.stderr
    assert ("about numbers" in done.stderr) is is_heard


@pytest.mark.pure
@pytest.mark.parametrize(
    "end", ["raise ImportError('no such library')", "os.abort()", "os.write(2, b'half'); os._exit(3)"]
)
def test_nothing_is_lost_if_loading_fails_or_the_process_dies(end: str, pretended: Path) -> None:
    (pretended / "tensorflow.py").write_text(f"{_PRETENDED}\n{end}\n", encoding="utf-8")
    done = _run(_LOAD, pretended)
    assert done.returncode != 0
    assert "about numbers" in done.stderr and "broken" in done.stderr
    assert ("half" in done.stderr) is ("half" in end)


@pytest.mark.tf
def test_what_a_script_draws_after_its_seed_is_not_moved_by_loading() -> None:
    """Otherwise batches and initial values differ from those of a script that seeds after ``import tensorflow``."""
    done = _run(
        "import random, numpy as np, tensoropt\n"
        "random.seed(1)\nnp.random.seed(1)\n"
        "tensoropt.float32\n"
        "loaded = random.random(), np.random.rand()\n"
        "random.seed(1)\nnp.random.seed(1)\n"
        "print(loaded == (random.random(), np.random.rand()))"
    )
    assert done.stdout == "True\n", done.stderr
