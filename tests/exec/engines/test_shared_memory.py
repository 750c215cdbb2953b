"""Shared memory that killed jobs have left is freed by the next one of the same user, and no other."""

from __future__ import annotations

import mmap
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensoropt.exec.engines.shared_memory import FOLDER_SETTINGS, remove_segments
from tests.mpi_support import run_mpi


def segment(folder: Path, name: str | None = None, *, age_s: float = 3600) -> Path:
    path = folder / (name or f"sm_segment.{platform.node()}.{os.geteuid()}.ab120001.0")
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.mark.pure
@pytest.mark.parametrize("kind", ["sm", "vader"])
def test_what_nobody_uses_is_removed(kind: str, tmp_path: Path) -> None:
    path = segment(tmp_path, f"{kind}_segment.{platform.node()}.{os.geteuid()}.ab120001.13")
    assert remove_segments(tmp_path) == 4096 and not path.exists() and remove_segments(tmp_path) == 0


@pytest.mark.pure
def test_what_a_process_uses_stays_until_it_ends(tmp_path: Path) -> None:
    path = segment(tmp_path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert remove_segments(tmp_path) == 0 and path.exists()
    assert remove_segments(tmp_path) == 4096


@pytest.mark.pure
def test_what_is_young_of_others_or_something_else_stays(tmp_path: Path) -> None:
    host, user = platform.node(), os.geteuid()
    segment(tmp_path, age_s=10)
    for name in (
        f"sm_segment.other.{user}.ab120001.0",
        f"sm_segment.{host}.{user + 1}.ab120001.1",
        f"sm_segment.{host}.{user}.ab120001",
        f"psm_segment.{host}.{user}.ab120001.0",
    ):
        segment(tmp_path, name)
    target = segment(tmp_path, "target")
    (tmp_path / f"sm_segment.{host}.{user}.ab120001.2").symlink_to(target)
    (tmp_path / f"sm_segment.{host}.{user}.ab120001.3").mkdir()
    before = sorted(tmp_path.iterdir())
    assert remove_segments(tmp_path) == 0 and sorted(tmp_path.iterdir()) == before


@pytest.mark.pure
@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_what_somebody_else_put_there_by_our_name_stays(tmp_path: Path) -> None:
    path = segment(tmp_path)
    os.chown(path, 12345, 12345)
    assert remove_segments(tmp_path) == 0 and path.exists()


@pytest.mark.pure
def test_there_is_no_such_folder_everywhere(tmp_path: Path) -> None:
    assert remove_segments(tmp_path / "absent") == 0


@pytest.mark.mpi
def test_a_job_frees_what_one_that_was_killed_with_its_launcher_has_left(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    folder = tmp_path / "memory"  # of its own: any job that runs here frees what is in the common one
    folder.mkdir()
    named = dict.fromkeys(FOLDER_SETTINGS, str(folder))
    killed = tmp_path / "killed.py"
    killed.write_text(
        "import os, time\nfrom mpi4py import MPI\n"
        f"print(*[name for name in os.listdir({str(folder)!r}) if '_segment.' in name], flush=True)\ntime.sleep(100)\n"
    )
    # Alone, a process has no launcher that would remove what it leaves.
    with subprocess.Popen(
        [sys.executable, str(killed)], env=os.environ | named, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        mine = [folder / name for name in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
    if not mine:
        pytest.skip("this MPI keeps nothing there")
    assert all(path.exists() for path in mine)
    for path in mine:
        os.utime(path, (time.time() - 3600,) * 2)
    following = tmp_path / "following.py"
    following.write_text("from tensoropt.exec.engines.launch import start_mpi\nstart_mpi().barrier()\n")
    run_mpi(following, 2, env=named)
    assert not any(path.exists() for path in mine)
