"""Reshards under mpirun: values, gradients, and the bytes that the engine counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).with_name("resharding_ranks.py")
# Meshes, extents of a tensor's dimensions, and how many pairs of layouts go all the way; the steps of eight times as
# many are run, in CI on 2x3 those of all pairs. One job does both meshes. All pairs are in `test_resharding.py`.
_RUNS = {"2x2x2": (8, 120 if THOROUGH else 10), "2x3": (6, 98 if THOROUGH else 28)}


@pytest.fixture(scope="module")
def output() -> str:
    """What the job prints."""
    runs = [f"{mesh}:{extent}:{pairs}" for mesh, (extent, pairs) in _RUNS.items()]
    return run_mpi(_SCRIPT, 8, *runs, timeout=400, once="reshards").stdout


@pytest.mark.parametrize("mesh", _RUNS)
@left_to_ci("eight ranks; those of random graphs reshard, too")
def test_pairs_of_layouts_reshard_forward_and_backward_and_send_the_planned_bytes(mesh: str, output: str) -> None:
    figures = re.search(rf"^{mesh}: (\d+) layouts, (\d+) pairs, (\d+) steps$", output, re.MULTILINE)
    assert figures is not None, output
    layouts, done, steps = map(int, figures.groups())
    assert done == _RUNS[mesh][1]
    assert steps > layouts
    if mesh == "2x3" and THOROUGH:
        assert layouts**2 == 8 * done
