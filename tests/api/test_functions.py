"""``tensoropt.function`` on two ranks, beside ``tf.function`` in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures, cases_of
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
_CASES = cases_of("functions")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    chosen = [f"functions:{case}" for case in _CASES]
    job = run_mpi(_SCRIPT, 2, tmp_path_factory.mktemp("functions"), *chosen, timeout=400, once="functions")
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("case", _CASES)
def test_functions_on_two_ranks(case: str, on_two: Failures) -> None:
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(on_two) if found[case]]
    assert len(on_two) == 2 and not failed, "\n".join(failed)
