"""``tensoropt.function`` on two ranks, beside ``tf.function`` in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_jobs import check_case, core_cases_of, failures_of

pytestmark = pytest.mark.mpi

_CASES = core_cases_of("functions")


@pytest.mark.parametrize("case", _CASES)
def test_functions_on_two_ranks(case: str, tmp_path: Path) -> None:
    check_case(failures_of(2, tmp_path, [f"functions:{name}" for name in _CASES], "functions"), case)
