"""A collective that does not end: who is told, and how the job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.errors import EngineError
from tensoropt.exec.engines.watchdog import Activity, describe_stall, stall_limit_s
from tests.mpi_support import MpiRunError, run_mpi

PROGRAM = """
import sys, time
import tensorflow as tf
from tensoropt.exec.engines.select import make_engine

engine = make_engine(sys.argv[1])
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    with engine.program():
        first = engine.all_reduce(tf.zeros([2]), (0,))
    with engine.program():
        second = engine.all_gather(tf.zeros([2]), (0,))
    session.run(first)
    if engine.rank == 1:
        time.sleep(200)
    session.run(second)
print("over", engine.rank, flush=True)
"""


@pytest.mark.pure
@pytest.mark.parametrize(("text", "expected"), [("", 300.0), ("12.5", 12.5), ("0", None)])
def test_limit_is_read_from_the_environment(text: str, expected: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_STALL_SECONDS", text)
    assert stall_limit_s() == expected


@pytest.mark.pure
@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_limit_that_is_no_time_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_STALL_SECONDS", text)
    with pytest.raises(EngineError, match=f"must be a number of seconds, or 0 to wait for ever. Got '{text}'"):
        stall_limit_s()


@pytest.mark.pure
def test_report_says_where_each_rank_is() -> None:
    activities = {
        1: Activity(7, "all_reduce_3", 300.4),
        0: Activity(6, "all_gather", None),
        3: Activity(0, "", None),
    }
    assert describe_stall(1, 4, 300, activities).splitlines()[:5] == [
        "rank 1: the collective 'all_reduce_3' (number 7) is not over after 300 s.",
        "  rank 0 is in no collective; it has done 6, the last one 'all_gather'",
        "  rank 1 has been in 'all_reduce_3' (number 7) for 300.4 s",
        "  rank 2 does not answer",
        "  rank 3 is in no collective; it has done 0",
    ]


@pytest.mark.mpi
@pytest.mark.parametrize("engine", ["mpi", "mpi4py"])
def test_late_rank_is_named_and_the_job_ends(engine: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with pytest.raises(MpiRunError, match=r"rank 0: the collective 'all_gather' \(number 2\) is not over") as raised:
        run_mpi(program, 3, engine, timeout=120, env={"TENSOROPT_STALL_SECONDS": "2"})
    assert raised.value.returncode not in (0, None)
    assert "  rank 1 is in no collective; it has done 1, the last one 'all_reduce'" in raised.value.stderr
    assert "  rank 2 has been in 'all_gather' (number 2)" in raised.value.stderr
    assert raised.value.stderr.count("is not over") == 1
