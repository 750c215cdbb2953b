"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_jobs import cases_of, check_case, failures_of, jobs_of
from tests.effort import EVERY_CASE, THOROUGH

pytestmark = pytest.mark.mpi

_MODULES = (
    "keras_models",
    "keras_pins",
    "keras_memory",
    "keras_data",
    "keras_faults",
    "keras_reads",
    "keras_trainable",
    "keras_files",
    "keras_plans",
    "keras_batches",
)
_JOBS = jobs_of((*_MODULES, "keras_optimizers") if EVERY_CASE else _MODULES)
_CASES = [(job, case.partition(":")[2]) for job in _JOBS for case in job]


@pytest.mark.parametrize(("job", "case"), _CASES, ids=[case for _, case in _CASES])
def test_keras_on_two_ranks(job: tuple[str, ...], case: str, tmp_path: Path) -> None:
    check_case(failures_of(2, tmp_path, job), case)


@pytest.mark.skipif(not THOROUGH, reason="five models, each trained seven times: `make test-thorough` does")
@pytest.mark.parametrize("ranks", [1, 4])
def test_history_by_every_kind_of_optimizer(ranks: int, tmp_path: Path) -> None:
    chosen = tuple(f"keras_history:{case}" for case in cases_of("keras_history"))
    found = failures_of(ranks, tmp_path, chosen)
    assert not any(text for failures in found for text in failures.values()), found
