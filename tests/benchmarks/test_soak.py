"""The benchmark that starts and ends many short jobs: which ones, what counts as a failure, and what it keeps."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import benchmarks.soak as soak
from benchmarks.models import SHORT
from benchmarks.soak import Job, jobs, why_failed
from benchmarks.soak_job import OPTIONS
from tests.effort import left_to_ci
from tests.mpi_support import run_mpi

_JOB = Job(1, "mlp", "zero3", 2, "mpi", 1, "analytic", False)


def _lines(*losses: float) -> str:
    return "".join(f'{{"rank": {rank}, "loss": {loss}}}\n' for rank, loss in enumerate(losses))


@pytest.mark.pure
def test_jobs_are_of_every_kind_before_one_comes_again() -> None:
    found = jobs(1000, sorted(SHORT), OPTIONS, (2, 4))
    assert found == jobs(1000, sorted(SHORT), OPTIONS, (2, 4)) and [job.number for job in found[:3]] == [1, 2, 3]
    kinds = len(SHORT) * len(OPTIONS) * 2 * 2 * 2 * 3
    first = {(job.model, job.option, job.ranks, job.engine, job.threads) for job in found[:kinds]}
    assert len(first) == kinds // 3
    fresh = [job for job in found if job.fresh]
    assert [job.number for job in fresh] == list(range(25, 1001, 25))
    assert {job.costs for job in fresh} == {"measured"}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (0, "a word\n" + _lines(2.5, 2.5), None),
        (0, _lines(2.5001, 2.5001), None),
        (None, _lines(2.5, 2.5), "was not over in time"),
        (134, _lines(2.5, 2.5), "ended with exit code 134"),
        (0, _lines(2.5), r"ended with exit code 0, though ranks \[1\] did not train to the end"),
        (0, _lines(2.5, 2.6), r"ranks have losses of their own: \[2.5, 2.6\]"),
        (0, _lines(2.6, 2.6), "the last loss is 2.6, but 2.5 in the model's first job"),
        (0, _lines(float("nan"), float("nan")).replace("nan", "NaN"), "loss"),
    ],
)
def test_a_job_fails_by_its_exit_its_end_or_its_loss(code: int | None, output: str, reason: str | None) -> None:
    found = why_failed(_JOB, code, output, {"mlp": 2.5})
    if reason is None:
        assert found is None
    else:
        with pytest.raises(ValueError, match=reason):
            raise ValueError(found)


@pytest.mark.pure
def test_what_failed_jobs_printed_is_kept_and_none_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = iter(
        [
            f"print({_lines(2.5, 2.5)!r})",
            "import faulthandler, os; faulthandler.enable(); os.abort()",
            # Ends neither by itself nor when it is asked to.
            "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(600)",
        ]
    )

    def command_of(*_: Any) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-c", next(programs)], dict(os.environ)

    monkeypatch.setattr(soak, "command_of", command_of)
    monkeypatch.setattr(soak, "_DUMP_S", 0.0)
    monkeypatch.setattr(soak, "_GRACE_S", 0.1)
    report, kept = tmp_path / "soak.json", tmp_path / "kept"
    flags = ["--jobs", "3", "--models", "mlp", "--timeout", "2", "--keep", str(kept), "--json", str(report)]
    monkeypatch.setattr(sys, "argv", ["soak", *flags])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    assert ended.value.code == 1 and "2 of 3 jobs failed" in capsys.readouterr().out
    written = json.loads(report.read_text(encoding="utf-8"))
    assert [failure["number"] for failure in written["failures"]] == [2, 3]
    assert [failure["reason"].split()[0] for failure in written["failures"]] == ["ended", "was"]
    assert len(written["seconds"]) == 3 and written["failed"] == 2 and len(list(kept.iterdir())) == 2
    crashed = Path(written["failures"][0]["folder"])
    assert "Fatal Python error: Aborted" in (crashed / "stderr").read_text(encoding="utf-8")
    assert not list(crashed.glob("core*"))
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.pure
@pytest.mark.skipif(shutil.which("gdb") is None, reason="only gdb tells what threads do outside of Python")
def test_a_core_is_replaced_by_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "core.1").write_bytes(b"not one")
    soak._write_stacks_of_cores(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stacks-core.1"]
    assert "core" in (tmp_path / "stacks-core.1").read_text(encoding="utf-8")


@pytest.mark.mpi
@left_to_ci("a benchmark, which users do not run")
def test_a_job_trains_to_its_end() -> None:
    arguments = ["--model", "mlp", "--option", "zero3", "--engine", "mpi4py", "--costs", "analytic", "--steps", "2"]
    done = run_mpi("benchmarks.soak_job", 2, *arguments, "--dump-after", "100")
    assert why_failed(_JOB, done.returncode, done.stdout, {}) is None
