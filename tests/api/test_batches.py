"""Batches of any size on a mesh of two axes, where a batch may be divisible by one of them.

On one axis they are tried by ``test_runtime.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.case_jobs import check_case, failures_of
from tests.effort import left_to_ci

pytestmark = [
    pytest.mark.mpi,
    left_to_ci("a job of four ranks more, for what two meet, too"),
]

_CASES = [
    "training and evaluation take batches of any size",
    "shares of other sizes are known by what is in them",
    "what runs before training is kept by it",
]


@pytest.mark.parametrize("case", _CASES)
def test_batches_on_four_ranks(case: str, tmp_path: Path) -> None:
    check_case(failures_of(4, tmp_path, tuple(f"batches:{name}" for name in _CASES)), case)
