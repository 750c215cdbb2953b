"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures, cases_of
from tests.effort import THOROUGH, some
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
_SCRIPTS = ("keras_models", "keras_pins", "keras_memory", "keras_data", "keras_faults")
_CASES = {script: some(cases_of(script), script, 11) for script in _SCRIPTS}
if THOROUGH:
    _CASES["keras_optimizers"] = cases_of("keras_optimizers")


def _run(ranks: int, folder: Path, cases: Iterable[str], once: str) -> Failures:
    environment = {"TENSOROPT_COSTS": "analytic"}  # what is compared is numbers
    job = run_mpi(_SCRIPT, ranks, folder, *cases, timeout=1500, env=environment, once=once)
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    chosen = [f"{script}:{case}" for script, cases in _CASES.items() for case in cases]
    return _run(2, tmp_path_factory.mktemp("keras"), chosen, "Keras")


@pytest.mark.parametrize("case", [case for cases in _CASES.values() for case in cases])
def test_keras_on_two_ranks(case: str, on_two: Failures) -> None:
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(on_two) if found[case]]
    assert len(on_two) == 2 and not failed, "\n".join(failed)


@pytest.mark.skipif(not THOROUGH, reason="five models, each trained seven times: CI does")
@pytest.mark.parametrize("ranks", [1, 4])
def test_history_by_every_kind_of_optimizer(ranks: int, tmp_path: Path) -> None:
    chosen = [f"keras_history:{case}" for case in cases_of("keras_history")]
    found = _run(ranks, tmp_path, chosen, f"histories on {ranks}")
    assert len(found) == ranks and not any(text for failures in found for text in failures.values()), found
