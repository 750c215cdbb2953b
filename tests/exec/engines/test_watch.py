"""A wait that does not end: who is told, and how the job ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensoropt.errors import EngineError
from tensoropt.exec.engines.watch import (
    PROGRAM,
    WAIT,
    WORK,
    Activity,
    Doing,
    Watch,
    describe_stall,
    describe_wait,
    stall_limit_s,
)
from tensoropt.stages import doing, listen, stage, working
from tests.effort import THOROUGH
from tests.mpi_support import MpiRunError, run_mpi

LATE = """
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
@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "Infinity", "1e300", "1e10", "-inf"])
def test_limit_that_is_no_time_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_STALL_SECONDS", text)
    with pytest.raises(EngineError, match=f"must be a number of seconds, or 0 to wait for ever, got '{text}'"):
        stall_limit_s()


@pytest.mark.pure
def test_report_says_what_each_rank_does() -> None:
    others = {0: Doing(PROGRAM, "run [loss]", 12.0, 6), 3: Doing(WORK, "find_strategy", 2.0)}
    wait = Doing(WAIT, "collective 'all_reduce_3' (number 7)", 300.4, 7)
    assert describe_stall(1, 4, 300, wait, others, [3]).splitlines()[:5] == [
        "rank 1: collective 'all_reduce_3' (number 7) is not over after 300 s. The job ends.",
        "  rank 0 has been in the program's own code for 12.0 s, after run [loss]; it has entered 6 collectives",
        "  rank 1 has been waiting for 300.4 s: collective 'all_reduce_3' (number 7); it has entered 7 collectives",
        "  rank 2 does not answer: it is frozen, keeps Python's lock, or its host is out of reach",
        "  rank 3 does not answer: it is frozen, keeps Python's lock, or its host is out of reach",
    ]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, "rank 0: waiting for ranks 1-2, which do not answer, since 30 s in init (the job ends at 300 s"),
        ({1: Doing(WAIT, "init", 3.0)}, "rank 0: waiting for rank 2, which does not answer, since 30 s in init (the"),
        (
            {1: Doing(WORK, "searching", 31.0), 2: Doing(WAIT, "init", 3.0)},
            "rank 0: waiting for rank 1 since 30 s in init; rank 1 has been at work for 31.0 s: searching",
        ),
        (
            {1: Doing(WAIT, "init", 3.0), 2: Doing(WAIT, "init", 3.0)},
            "rank 0: waiting for ranks 1-2 since 30 s in init; all of them wait, too (the job ends at 300 s",
        ),
    ],
)
def test_line_says_for_whom_a_rank_waits(others: dict[int, Doing], expected: str) -> None:
    line = describe_wait(0, 3, Doing(WAIT, "init", 30.2), others, 300)
    assert line.startswith(expected)
    assert (line == expected) == ("at work" in expected)  # which has no limit


@pytest.mark.pure
def test_watch_knows_what_a_rank_does() -> None:
    watch = Watch(None)
    listen(watch.note)
    seen = [watch.doing()]
    with stage("init", "init()"):
        doing("measuring collectives")
        with watch.calling("bcast"):
            seen.append(watch.doing())
        with working("checking"):
            seen.append(watch.doing())
        seen.append(watch.doing())
    seen.append(watch.doing())
    listen(None)
    assert [(now.kind, now.what) for now in seen] == [
        (PROGRAM, ""),
        (WAIT, "init(): measuring collectives"),
        (WORK, "checking"),
        (WORK, "init(): measuring collectives"),
        (PROGRAM, "init()"),
    ]


@pytest.mark.pure
def test_a_watch_that_begins_amid_work_knows_of_it() -> None:
    watches = [Watch(None), Watch(None)]
    with working("build"):
        for watch in watches:
            listen(watch.note)
    listen(None)
    assert [watch.doing().kind for watch in watches] == [WORK, PROGRAM]
    assert watches[1].doing().what == "build"


@pytest.mark.pure
def test_watch_knows_of_an_engine_as_long_as_it_lives() -> None:
    class Engine:
        def activity(self) -> Activity:
            return Activity(3, "all_gather", 2.5)

    watch, engine = Watch(None), Engine()
    watch.follow(engine.activity)
    with watch.stepping("run"):
        assert watch.doing() == Doing(WAIT, "collective 'all_gather' (number 3) of run", 2.5, 3)
    watch.unfollow(engine.activity)
    assert watch.doing().kind == PROGRAM
    watch.follow(engine.activity)
    del engine
    assert watch.doing().kind == PROGRAM


@pytest.mark.mpi
@pytest.mark.waits
# `tests/api/test_stalls.py` has the other engine.
@pytest.mark.parametrize("engine", ["mpi", "mpi4py"] if THOROUGH else ["mpi"])
def test_late_rank_is_named_and_the_job_ends(engine: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LATE)
    with pytest.raises(MpiRunError, match=r"rank 0: collective 'all_gather' \(number 2\) of .* is not over") as raised:
        run_mpi(program, 3, engine, timeout=120, env={"TENSOROPT_STALL_SECONDS": "4"})
    assert raised.value.returncode not in (0, None)
    assert re.search(r"  rank 1 has been in the program's own code .*; it has entered 1 coll", raised.value.stderr)
    assert re.search(r"  rank 2 has been waiting for .* collective 'all_gather' \(number 2\)", raised.value.stderr)
    assert raised.value.stderr.count("is not over") == 1
