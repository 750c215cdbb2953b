"""Every declared op on real ranks, under a few configurations each; ``tests/graph`` has all of them in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mpi_support import run_mpi
from tests.op_harness import lowered_types

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("op_contract_program.py")


@pytest.mark.parametrize(
    ("mesh", "configurations", "skipped"),
    [((2,), 3, 0), ((3,), 2, 1), ((2, 2), 2, 5), ((2, 2, 2), 2, 40)],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_parts_on_real_ranks_are_the_unsplit_op(mesh: tuple[int, ...], configurations: int, skipped: int) -> None:
    ranks = 1
    for extent in mesh:
        ranks *= extent
    job = run_mpi(PROGRAM, ranks, ",".join(map(str, mesh)), configurations, skipped, timeout=300.0)
    found = re.search(r"checked (\d+) configurations of (\d+) op types", job.stdout)
    assert found, job.stdout
    assert int(found[2]) >= len(lowered_types()) // (skipped + 1)
    assert int(found[1]) > int(found[2])
