"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures, cases_of
from tests.effort import THOROUGH, some
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
_SCRIPTS = ("keras_models", "keras_pins", "keras_memory", "keras_data", "keras_faults")
_CASES = {script: some(cases_of(script), script, 5) for script in _SCRIPTS}
if THOROUGH:
    _CASES["keras_optimizers"] = cases_of("keras_optimizers")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    chosen = [f"{script}:{case}" for script, cases in _CASES.items() for case in cases]
    environment = {"TENSOROPT_COSTS": "analytic"}  # what is compared is numbers
    job = run_mpi(_SCRIPT, 2, tmp_path_factory.mktemp("keras"), *chosen, timeout=900, env=environment, once="Keras")
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("case", [case for cases in _CASES.values() for case in cases])
def test_keras_on_two_ranks(case: str, on_two: Failures) -> None:
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(on_two) if found[case]]
    assert len(on_two) == 2 and not failed, "\n".join(failed)
