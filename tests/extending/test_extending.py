"""What ``docs/extending.md`` shows is a file that works: the contract tests of the real ones run over it."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensoropt.errors import OpError
from tensoropt.graph import registry
from tests.graph.ops import test_missing_splits, test_op_contract, test_saved, test_traits
from tests.mpi_support import run_mpi
from tests.op_harness import samples_of

_HERE = Path(__file__).parent
_SEGMENT_SUM = "UnsortedSegmentSum"


@pytest.fixture
def segment_sum(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The op's declaration, for one test: other tests go by the registry as it is without it."""
    registry.registered_types()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    runpy.run_path(str(_HERE / "segment_sum.py"))
    yield


@pytest.mark.tf
def test_the_op_has_no_rule_without_its_file() -> None:
    assert not registry.has_rule(_SEGMENT_SUM)


@pytest.mark.tf
@pytest.mark.usefixtures("segment_sum")
def test_the_added_op_keeps_the_contract() -> None:
    test_op_contract.test_parts_of_op_are_the_unsplit_op(_SEGMENT_SUM)
    assert [found for sample in samples_of(_SEGMENT_SUM) for found in test_missing_splits.missing_splits(sample)] == []
    test_saved.test_what_is_saved_is_what_the_gradient_reads(_SEGMENT_SUM)
    test_traits.test_indices_are_below_the_bound_that_is_declared(_SEGMENT_SUM)


@pytest.mark.tf
@pytest.mark.usefixtures("segment_sum")
def test_adding_the_op_a_second_time_is_an_error() -> None:
    with pytest.raises(OpError, match="UnsortedSegmentSum: declared twice"):
        runpy.run_path(str(_HERE / "segment_sum.py"))


@pytest.mark.mpi
def test_the_added_engine_keeps_the_contract_and_trains() -> None:
    printed = run_mpi(_HERE / "late_engine_ranks.py", 2, timeout=300).stdout.splitlines()
    assert printed.count("trained: True") == 2
    checked = [line for line in printed if " of 2: late checked " in line]
    assert len(checked) == 2 and all(int(line.split()[-1]) > 50 for line in checked), printed
