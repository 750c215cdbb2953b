"""Every declared op on real ranks, under a few configurations each; ``tests/graph`` has all of them in one process."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi
from tests.op_harness import lowered_types

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("op_contract_program.py")
# Each mesh with how many configurations of an op, and how many op types are skipped. They are tried one after another
# in one job, whose surplus ranks end: what takes longest is to start.
RUNS = {"2x2x2": (2, 60), "2x2": (2, 8), "3": (2, 3), "2": (3, 1)}
if not THOROUGH:
    # Eight ranks are left to `test_resharding_ranks.py`: parts of ops meet nothing there that four do not have.
    RUNS = {"2x2": (1, 40), "3": (1, 12), "2": (1, 3)}


@pytest.fixture(scope="module")
def output() -> str:
    """What the job prints."""
    runs = [f"{mesh}:{count}:{skipped}" for mesh, (count, skipped) in RUNS.items()]
    ranks = max(math.prod(map(int, mesh.split("x"))) for mesh in RUNS)
    return run_mpi(PROGRAM, ranks, *runs, timeout=400, once="parts of ops").stdout


@pytest.mark.parametrize("mesh", RUNS)
@left_to_ci("parts of ops on ranks; random graphs have them, and one process has all")
def test_parts_on_real_ranks_are_the_unsplit_op(mesh: str, output: str) -> None:
    found = re.search(rf"^{mesh}: checked (\d+) configurations of (\d+) op types$", output, re.MULTILINE)
    assert found, output
    assert int(found[2]) >= len(lowered_types()) // (RUNS[mesh][1] + 1)
    assert int(found[1]) >= int(found[2])
