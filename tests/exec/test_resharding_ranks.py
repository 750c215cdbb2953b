"""Reshards under mpirun: values, gradients, and the bytes that the engine counted."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).with_name("resharding_ranks.py")


@pytest.mark.parametrize(
    ("mesh", "extent", "pairs"), [("2x3", 6, 0), ("2x2x2", 8, 120)], ids=["all pairs on 2x3", "some pairs on 2x2x2"]
)
def test_pairs_of_layouts_reshard_forward_and_backward_and_send_the_planned_bytes(
    mesh: str, extent: int, pairs: int
) -> None:
    ranks = math.prod(map(int, mesh.split("x")))
    result = run_mpi(_SCRIPT, ranks, mesh, extent, pairs, timeout=400)
    figures = re.search(r"(\d+) layouts, (\d+) pairs, (\d+) steps", result.stdout)
    assert figures is not None, result.stdout
    layouts, done, steps = map(int, figures.groups())
    assert done == (pairs or layouts**2)
    assert steps > layouts
