"""An error that ends a job is printed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines.failures import tells_of_another_rank
from tests.mpi_support import MpiRunError, run_mpi

_PROGRAM = Path(__file__).with_name("failing_program.py")

ERRORS = {
    "all": ("rank 0", ["rank 0: ValueError: out of cheese", "ranks 1-3: the same error"]),
    "one": (
        "rank 1",
        [
            "rank 1: ValueError: out of cheese",
            "ranks 0, 2-3: tensoropt.errors.CollectiveError: step: cannot go on, since rank 1 failed in step: "
            "ValueError: out of cheese",
        ],
    ),
}


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("how", ERRORS)
def test_an_error_is_printed_once_by_the_rank_that_failed_first(how: str) -> None:
    rank, lines = ERRORS[how]
    with pytest.raises(MpiRunError) as failure:
        run_mpi(_PROGRAM, 4, how, timeout=60)
    said = [line for line in failure.value.stderr.splitlines() if line.startswith("rank")]
    assert [line for line in said if "Traceback" in line] == [f"{rank}: Traceback (most recent call last):"]
    assert [line for line in said if ("cheese" in line and "raise" not in line) or "the same" in line] == lines
    assert failure.value.returncode not in (None, 0)


@pytest.mark.pure
def test_what_was_heard_of_another_rank_is_told_apart_even_as_a_cause() -> None:
    heard = CollectiveError("rank 1 failed")
    assert not tells_of_another_rank(heard)
    heard.failed_rank = 1
    outer = EngineError("could not be built")
    outer.__cause__ = heard
    assert tells_of_another_rank(heard) and tells_of_another_rank(outer)
    assert not tells_of_another_rank(None)
    heard.__cause__ = outer  # a circle must have an end
    heard.failed_rank = None
    assert not tells_of_another_rank(outer)
