"""Batches of any size on a mesh of two axes, where a batch may be divisible by one of them.

On one axis they are tried by ``test_runtime.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures
from tests.effort import THOROUGH
from tests.mpi_support import run_mpi

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not THOROUGH, reason="a job of four ranks more, for what two meet, too: CI runs it"),
]

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
_CASES = [
    "training and evaluation take batches of any size",
    "shares of other sizes are known by what is in them",
    "what runs before training is kept by it",
]


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    chosen = [f"batches:{case}" for case in _CASES]
    job = run_mpi(_SCRIPT, 4, tmp_path_factory.mktemp("batches"), *chosen, timeout=400)
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("case", _CASES)
def test_batches_on_four_ranks(case: str, on_four: Failures) -> None:
    assert len(on_four) == 4
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(on_four) if found[case]]
    assert not failed, "\n".join(failed)
