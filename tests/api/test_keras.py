"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures, cases_of
from tests.effort import THOROUGH, some
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
# By the job that runs them: by default one, as what takes longest is to start; all cases would take it too long.
_JOBS: dict[str, tuple[str, ...]] = {
    "Keras": ("keras_models", "keras_pins", "keras_memory", "keras_data", "keras_faults"),
    "data and values of Keras": ("keras_reads", "keras_trainable", "keras_files", "keras_plans", "keras_batches"),
}
if THOROUGH:
    _JOBS["optimizers of Keras"] = ("keras_optimizers",)
else:
    _JOBS = {"Keras": tuple(itertools.chain(*_JOBS.values()))}
_CASES = {
    job: [f"{script}:{case}" for script in scripts for case in some(cases_of(script), script, 11)]
    for job, scripts in _JOBS.items()
}


def _run(ranks: int, folder: Path, cases: Iterable[str], once: str) -> Failures:
    environment = {"TENSOROPT_COSTS": "analytic"}  # what is compared is numbers
    job = run_mpi(_SCRIPT, ranks, folder, *cases, timeout=1500, env=environment, once=once)
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Failures]:
    """What fails of the cases of a job, which runs once."""
    return functools.cache(lambda job: _run(2, tmp_path_factory.mktemp("keras"), _CASES[job], job))


@pytest.mark.parametrize(("job", "case"), [(job, case) for job, cases in _CASES.items() for case in cases])
def test_keras_on_two_ranks(job: str, case: str, on_two: Callable[[str], Failures]) -> None:
    name = case.partition(":")[2]
    failed = [f"rank {rank}:\n{found[name]}" for rank, found in enumerate(on_two(job)) if found[name]]
    assert len(on_two(job)) == 2 and not failed, "\n".join(failed)


@pytest.mark.skipif(not THOROUGH, reason="five models, each trained seven times: CI does")
@pytest.mark.parametrize("ranks", [1, 4])
def test_history_by_every_kind_of_optimizer(ranks: int, tmp_path: Path) -> None:
    chosen = [f"keras_history:{case}" for case in cases_of("keras_history")]
    found = _run(ranks, tmp_path, chosen, f"histories on {ranks}")
    assert len(found) == ranks and not any(text for failures in found for text in failures.values()), found
