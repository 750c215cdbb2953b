"""``tensoropt doctor``: what it makes of what ranks tell, and a real job."""

from __future__ import annotations

import copy
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tensoropt.cli import doctor
from tensoropt.cli.doctor import Finding, findings_of_ranks
from tensoropt.cli.launcher import Launcher
from tests.cli.command import ran

LAUNCHER = Launcher("/opt/bin/mpirun", "openmpi", "Open MPI", "5.0.11")
_RANK: dict[str, Any] = {
    "host": "a",
    "python": "3.11.7",
    "tensorflow": {"version": "2.21.0", "import_s": 4.0, "with_cuda": False, "gpus": []},
    "compiler": "/opt/bin/mpicxx",
    "mpi4py": "4.1.2",
    "mpi": {"library": "Open MPI v5.0.11, package: …", "rank": 0, "size": 2},
    "engine mpi": True,
    "engine mpi4py": True,
    "chosen": "mpi",
    "all_reduce": {"1024": 3e-6, "4194304": 4e-4},
    "failed": {"engine horovod": "EngineError: It needs Horovod. Build it with 'make horovod'."},
}


def found(*worlds: list[dict[str, Any]], launcher: Launcher | None = LAUNCHER, said: str = "") -> dict[str, Finding]:
    ranks = max(sum(map(len, worlds)), 2)
    return {each.name: each for each in findings_of_ranks(worlds, ranks, launcher, said)}


def rank(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(_RANK), **changes}


def failing(name: str, text: str) -> dict[str, Any]:
    made = rank()
    made["failed"] = {**made["failed"], name: text}
    del made[name]
    return made


@pytest.mark.pure
def test_all_is_well() -> None:
    findings = found([rank(), rank()])
    assert all(each.state == "fine" for each in findings.values())
    assert "not needed" in findings["engine horovod"].text
    assert findings["engine mpi"].text == "runs, and is what jobs choose"
    assert findings["all_reduce"].text == "of 2 ranks: 4 MiB in 0.40 ms, 1 KiB in 3 µs"
    assert findings["mpi4py"].text == "4.1.2 with Open MPI v5.0.11: 2 ranks found one another"


@pytest.mark.pure
def test_ranks_that_do_not_find_one_another() -> None:
    findings = found([rank()], [rank()])
    assert findings["mpi4py"].state == "wrong" and "worlds of [1, 1]" in findings["mpi4py"].text
    for setting in ("MPI4PY_MPIABI=openmpi", "MPICXX=/opt/bin/mpicxx", "/opt/lib in LD_LIBRARY_PATH"):
        assert setting in findings["mpi4py"].remedy


@pytest.mark.pure
def test_another_version_of_the_same_mpi() -> None:
    library = {"library": "Open MPI v4.1.6, package: …", "rank": 0, "size": 2}
    finding = found([rank(mpi=library), rank(mpi=library)])["mpi4py"]
    assert finding.state == "note" and "mpirun is of Open MPI 5.0.11" in finding.text


@pytest.mark.pure
def test_versions_that_differ_between_hosts() -> None:
    finding = found([rank(), rank(host="b", python="3.12.1")])["python of all ranks"]
    assert (finding.state, finding.text) == ("wrong", "3.11.7 on a, 3.12.1 on b")


@pytest.mark.pure
def test_an_old_tensorflow_and_one_that_cannot_be_imported() -> None:
    old = {**_RANK["tensorflow"], "version": "2.9.1"}
    finding = found([rank(tensorflow=old), rank(tensorflow=old)])["TensorFlow"]
    assert finding.state == "wrong" and "2.18 or newer is needed" in finding.text
    finding = found([failing("tensorflow", "ImportError: no module")])["TensorFlow"]
    assert finding == Finding("TensorFlow", "wrong", "ImportError: no module", finding.remedy) and finding.remedy


@pytest.mark.pure
def test_horovod_is_missed_where_there_are_graphics_cards() -> None:
    cards = {**_RANK["tensorflow"], "gpus": ["GPU:0"]}
    finding = found([rank(tensorflow=cards), rank(tensorflow=cards)])["engine horovod"]
    assert (finding.state, finding.text) == ("note", "does not run: It needs Horovod.")
    assert finding.remedy == "Build it with 'make horovod'."


@pytest.mark.pure
def test_no_compiler_is_a_note_and_no_mpi4py_is_wrong() -> None:
    finding = found([failing("compiler", "EngineError: The MPI ops need it. Install g++")])["compiler"]
    assert finding.state == "note" and "go through mpi4py" in finding.text and "g++" in finding.remedy
    assert found([failing("mpi", "EngineError: no library")])["mpi4py"].state == "wrong"


@pytest.mark.pure
def test_no_engine_that_runs_is_wrong() -> None:
    finding = found([failing("chosen", "EngineError: none"), rank()])["all_reduce"]
    assert (finding.state, finding.text) == ("wrong", "EngineError: none")


@pytest.mark.pure
def test_a_job_that_says_nothing_of_itself() -> None:
    finding = found(said="ssh: no route")["job"]
    assert finding.state == "wrong" and "ssh: no route" in finding.text and "--dry-run" in finding.remedy


@pytest.mark.pure
def test_graphics_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = {**_RANK["tensorflow"], "gpus": ["/gpu:0"]}
    assert found([rank(tensorflow=one)])["GPUs"].text == "each rank computes on one; rank 0 on /gpu:0"
    monkeypatch.setattr(doctor, "_GPU_DRIVER", tmp_path)
    assert "built without CUDA, sees none" in found([rank()])["GPUs"].text


@pytest.mark.pure
def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = doctor._shared_memory()
    assert finding.state == "fine" and "MiB free" in finding.text
    monkeypatch.setattr(doctor, "_SHARED_BYTES", 2**60)
    (finding,) = doctor._shared_memory()
    assert finding.state == "note" and "--shm-size" in finding.remedy


@pytest.mark.pure
def test_keras_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    (finding,) = doctor._keras()
    assert finding.state == "note" and "TF_USE_LEGACY_KERAS=1" in finding.text


def _launcher(folder: Path, body: str) -> str:
    path = folder / "mpirun"
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo "mpirun (Open MPI) 5.0.3"; exit;; esac\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.pure
def test_a_launcher_that_fails_and_a_cache_that_is_not_safe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "cache"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    launcher = _launcher(tmp_path, "echo no route to host >&2; exit 3")
    done = ran(capsys, "doctor", "-n", str(cores + 1), "--mpirun", launcher)
    assert done.code == 1
    assert f"✗ job: a job of {cores + 1} ranks gave no answer: no route to host\n    → " in done.out
    assert f"! cache: {tmp_path / 'cache'} is not used: the folder" in done.out and "mode 0777" in done.out
    assert "which take turns" in done.out
    assert done.out.endswith("1 to mend\n")


@pytest.mark.pure
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a:1\n")
    for arguments, said in (
        (["--mpirun", "/no/mpirun"], "must be a program"),
        (["-n", "1"], "-n"),
        (["--hosts", str(tmp_path / "hosts")], "room for 1 ranks"),
        (["more"], "unexpected extra argument"),
    ):
        done = ran(capsys, "doctor", *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1 and said in done.err


@pytest.mark.mpi
def test_a_real_job(capsys: pytest.CaptureFixture[str]) -> None:
    done = ran(capsys, "doctor", "--json")
    answer = json.loads(done.out)
    states = {each["name"]: each["state"] for each in answer["findings"]}
    assert done.code == 0 and answer["fine"], done.out
    assert states["all_reduce"] == states["mpirun"] == states["engine mpi4py"] == states["TensorFlow"] == "fine"
    (mpi4py,) = (each["text"] for each in answer["findings"] if each["name"] == "mpi4py")
    assert mpi4py.endswith("2 ranks found one another")
