"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_jobs import cases_of, check_case, core_cases_of, failures_of
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
_JOBS = [(module,) for module in (*_MODULES, "keras_optimizers")] if EVERY_CASE else [_MODULES]
_CASES = [(modules, case) for modules in _JOBS for module in modules for case in core_cases_of(module)]


@pytest.mark.parametrize(("modules", "case"), _CASES, ids=[case for _, case in _CASES])
def test_keras_on_two_ranks(modules: tuple[str, ...], case: str, tmp_path: Path) -> None:
    chosen = [f"{module}:{name}" for module in modules for name in core_cases_of(module)]
    check_case(failures_of(2, tmp_path, chosen, f"cases of {modules}"), case)


@pytest.mark.skipif(not THOROUGH, reason="five models, each trained seven times: `make test-thorough` does")
@pytest.mark.parametrize("ranks", [1, 4])
def test_history_by_every_kind_of_optimizer(ranks: int, tmp_path: Path) -> None:
    chosen = [f"keras_history:{case}" for case in cases_of("keras_history")]
    found = failures_of(ranks, tmp_path, chosen, f"histories on {ranks}")
    assert not any(text for failures in found for text in failures.values()), found
