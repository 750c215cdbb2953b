"""``tensoropt.keras.plan`` and ``frontier``, and layout maps, without devices or MPI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi_support import result_of

pytestmark = pytest.mark.tf

_SCRIPT = Path(__file__).parent.parent / "scripts" / "keras_planning.py"
_CASES = [
    "plan and frontier need no mpi",
    "plan is of the batch that fit would make",
    "metrics and losses of outputs take no trace of their own",
    "plans are shown and compared without their models",
    "plans keep to layout maps on meshes of names",
    "layout maps that do not fit say why",
    "models that do not say what they take ask for an example",
]


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """In a process of its own: those of tests have no Keras 3."""
    run = subprocess.run([sys.executable, _SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    found: dict[str, Any] = result_of(run)
    return found


@pytest.mark.parametrize("case", _CASES)
def test_planning_of_keras_models(case: str, failures: dict[str, str]) -> None:
    assert failures[case] == ""
