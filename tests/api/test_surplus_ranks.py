"""A plan for fewer devices than the job has ranks: the others end, and nobody notices but by their last line."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.effort import left_to_ci
from tests.mpi_support import MpiRunError, run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "surplus.py"
_RANKS, _NEEDED = 4, 2
_QUICK = {"TENSOROPT_COSTS": "analytic"}  # what operators take is of no interest here


_LONG = left_to_ci("one more job of its own")


def check_output(stdout: str, stderr: str) -> None:
    """The surplus ranks have ended as ranks do, before the others trained."""
    said = [line for line in stderr.splitlines() if "since the plan needs" in line]
    assert said == ["tensoropt: ranks 2 to 3 end, since the plan needs 2 of the job's 4 ranks"]
    assert sorted(re.findall(r"^LEFT (\d) 0$", stdout, re.MULTILINE)) == ["2", "3"]
    refused = re.findall(r"^REFUSED (\d) SessionError (\w+).*has left the job", stdout, re.MULTILINE)
    assert sorted(refused) == [(rank, call) for rank in "23" for call in ("find_strategy", "init", "run")]
    trained = [json.loads(line) for line in re.findall(r"^TRAINED (.*)$", stdout, re.MULTILINE)]
    assert sorted(row[:3] for row in trained) == [[rank, _RANKS, _NEEDED] for rank in range(_NEEDED)]
    assert trained[0][3] == trained[1][3]


@left_to_ci("a job of four ranks of its own")
def test_surplus_ranks_end_and_the_others_train() -> None:
    job: subprocess.CompletedProcess[str] = run_mpi(_SCRIPT, _RANKS, "mpi", "built before", timeout=200, env=_QUICK)
    assert job.returncode == 0
    check_output(job.stdout, job.stderr)
    # What a program does at its end is done, on the ranks that go on and on those that do not.
    assert sorted(re.findall(r"^ATEXIT (\d)$", job.stdout, re.MULTILINE)) == ["0", "1", "2", "3"]


@_LONG
def test_one_rank_may_be_all_that_is_needed() -> None:
    job = run_mpi(_SCRIPT, 2, "mpi", "alone", timeout=200, env=_QUICK)
    assert "tensoropt: rank 1 ends, since the plan needs 1 of the job's 2 ranks\n" in job.stderr
    assert len(re.findall(r"^TRAINED \[0, 2, 1, ", job.stdout, re.MULTILINE)) == 1


@_LONG
def test_a_failure_after_they_have_ended_ends_the_job() -> None:
    with pytest.raises(MpiRunError) as caught:
        run_mpi(_SCRIPT, _RANKS, "mpi4py", "failure", timeout=200, env=_QUICK)
    assert caught.value.returncode not in (None, 0)
    check_output(caught.value.stdout, caught.value.stderr)
    assert re.search(r"rank 1: RuntimeError: out of cheese", caught.value.stderr)
    # Before they end, a plan that does not need them cannot be run on all.
    refused = re.findall(r"^VERIFY (\d) Plan: needs 2 of this job's 4 ranks.*Call build", caught.value.stdout, re.M)
    assert sorted(refused) == ["0", "1", "2", "3"]
