"""Wherever a rank is frozen, killed or late, the others say so, and the job ends in time."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.effort import EVERY_CASE, THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

_PROGRAM = Path(__file__).parent.parent / "scripts" / "stalling.py"
_LIMIT_S = 5
# Beyond the limit: for ranks to answer, and to end the job on a machine that others use.
_SOON_S = 10.0

_IN_A_COLLECTIVE = r"rank 0: waiting for rank 1, .*, since \d+ s in collective '\S+' \(number \d+\) of run \["
# Left out by default: each takes some ten seconds, in which hardly anything happens.
_OTHERS = [
    # stage, frozen rank, ranks, what says so
    ("start", 1, 2, r"_wait_for_all_ranks_to_start_mpi"),
    ("profiling", 1, 2, r"rank 0: waiting for rank 1, which does not answer, since \d+ s in measuring operators"),
    ("build", 1, 2, r"rank 0: waiting for rank 1, which does not answer, since \d+ s in "),
    ("between steps", 2, 4, r"rank 0: waiting for rank 2, which does not answer, since \d+ s in run \["),
    ("init", 1, 2, r"rank 0: waiting for rank 1, which does not answer, since \d+ s in init\(\)"),
]
FROZEN = [
    *(_OTHERS if THOROUGH else []),
    ("search", 0, 2, r"rank 1: waiting for rank 0, which does not answer, since \d+ s in find_strategy\("),
    ("step", 1, 2, _IN_A_COLLECTIVE),
    ("step of a pipeline", 1, 2, _IN_A_COLLECTIVE),
]


def _run(stage: str, how: str, rank: int, ranks: int, *more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The job, and how many seconds after the event it was over."""
    environment = {
        "TENSOROPT_STALL_SECONDS": str(_LIMIT_S),
        "TENSOROPT_COLLECTIVES": "mpi4py",
        "TENSOROPT_COSTS": "",
    }
    job = run_mpi(_PROGRAM, ranks, stage, how, rank, *more, timeout=120, env=environment, check=False)
    ended_at = time.time()
    happened_at = re.search(r"happened at ([0-9.]+)", job.stdout)
    assert happened_at is not None, job.stderr
    return job, ended_at - float(happened_at[1])


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize(("stage", "rank", "ranks", "said"), FROZEN, ids=[stage for stage, *_ in FROZEN])
def test_a_frozen_rank_is_named_and_the_job_ends(stage: str, rank: int, ranks: int, said: str) -> None:
    stage, _, search = stage.partition(" of a ")
    job, took_s = _run(stage, "frozen", rank, ranks, *filter(None, [search]))
    assert job.returncode != 0 and "over" not in job.stdout
    assert re.search(said, job.stderr), job.stderr
    assert took_s < _LIMIT_S + _SOON_S
    if stage != "start":  # before MPI nobody can be asked
        report = (
            rf"^rank \d: .* is not over after {_LIMIT_S} s\. The job ends\.\n(  .*\n)*  rank {rank} does not answer"
        )
        assert len(re.findall(report, job.stderr, re.MULTILINE)) == 1, job.stderr


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("search", ["ft", "pipeline"] if EVERY_CASE else ["pipeline"])
def test_a_killed_rank_is_named_and_the_job_ends(search: str) -> None:
    job, took_s = _run("step", "killed", 1, 2, search)
    assert job.returncode != 0 and "over" not in job.stdout
    assert re.search(r"rank 1 .*signal 9", " ".join(job.stderr.split())), job.stderr
    assert took_s < _LIMIT_S


@pytest.mark.mpi
@pytest.mark.waits
@left_to_ci("half a minute of waiting")
def test_a_rank_at_work_is_waited_for_beyond_the_limit() -> None:
    late_s = 3 * _LIMIT_S  # rank 1 may be late itself, on a machine that others use
    job, took_s = _run("search", str(late_s), 0, 2)
    assert job.returncode == 0 and job.stdout.count("over") == 2
    assert took_s > late_s
    assert re.search(r"rank 1: waiting for rank 0 since \d+ s in find_.*; rank 0 has been at work for", job.stderr)
