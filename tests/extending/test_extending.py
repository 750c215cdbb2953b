"""What ``docs/extending.md`` shows is a file that works: the contract tests of the real ones run over it.

The op that it shows is one of the package, which has its contract tests anyway.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tensoropt.errors import OpError
from tensoropt.graph.ops import segment_sum
from tests.effort import left_to_ci
from tests.mpi_support import run_mpi

_HERE = Path(__file__).parent


@pytest.mark.pure
def test_adding_the_op_a_second_time_is_an_error() -> None:
    with pytest.raises(OpError, match="UnsortedSegmentSum: declared twice"):
        runpy.run_path(str(segment_sum.__file__))


@pytest.mark.mpi
@left_to_ci("the contract of engines, which those of the package keep")
def test_the_added_engine_keeps_the_contract_and_trains() -> None:
    printed = run_mpi(_HERE / "late_engine_ranks.py", 2, timeout=300).stdout.splitlines()
    assert printed.count("trained: True") == 2
    checked = [line for line in printed if " of 2: late checked " in line]
    assert len(checked) == 2 and all(int(line.split()[-1]) > 50 for line in checked), printed
