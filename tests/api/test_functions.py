"""``tensoropt.function`` on two ranks, beside ``tf.function`` in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_jobs import check_case, failures_of, jobs_of

pytestmark = pytest.mark.mpi

_CASES = [
    (job, case.partition(":")[2])
    for job in jobs_of(["functions", "function_gradients", "function_loops", "function_maps"])
    for case in job
]


@pytest.mark.parametrize(("job", "case"), _CASES, ids=[case for _, case in _CASES])
def test_functions_on_two_ranks(job: tuple[str, ...], case: str, tmp_path: Path) -> None:
    check_case(failures_of(2, tmp_path, job), case)
