"""Agreement between ranks, and the end of a job when one of them fails."""

from __future__ import annotations

import builtins
import os
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines import launch
from tensoropt.exec.engines.launch import agree, agree_on_success, install_abort_hook, mpi_settings, start_mpi
from tests.mpi_support import MpiRunError, run_mpi


class FakeComm:
    """A communicator where the other ranks' answers are given."""

    def __init__(self, others: Sequence[object], size: int | None = None) -> None:
        self.rank = 0
        self.size = len(others) + 1 if size is None else size
        self.aborted: int | None = None
        self._others = others

    def allgather(self, value: object) -> list[object]:
        return [value, *self._others]

    def Abort(self, code: int) -> None:
        self.aborted = code


class OnlyFailure:
    """No other rank failed."""

    def __init__(self, comm: FakeComm) -> None: ...

    def is_to_be_printed(self, line: str, error: BaseException | None) -> bool:
        return True

    def of_others(self) -> list[tuple[list[int], str]]:
        return []


def digest(value: str) -> object:
    seen: list[object] = []

    class Recorder(FakeComm):
        def allgather(self, value: object) -> list[object]:
            seen.append(value)
            return [value]

    agree(Recorder([]), "probe", value)
    return seen[0]


@pytest.mark.pure
def test_equal_values_agree() -> None:
    agree(FakeComm([digest("plan"), digest("plan")]), "plan", b"plan")


@pytest.mark.pure
def test_differing_ranks_are_named() -> None:
    others = [digest(value) for value in ("plan", "other", "plan", "other", "other")]
    with pytest.raises(CollectiveError, match=r"The plan must be the same on all 6 .*ranks 0-1, 3; .*ranks 2, 4-5\."):
        agree(FakeComm(others), "plan", "plan")


@pytest.mark.pure
def test_failure_of_another_rank_is_raised_here() -> None:
    agree_on_success(FakeComm([None]), "Loading", None)
    with pytest.raises(EngineError, match=r"Loading must succeed on all 3 ranks.*failed on rank 2: OSError: disk"):
        agree_on_success(FakeComm([None, "OSError: disk"]), "Loading", None)


@pytest.mark.pure
def test_own_failure_is_the_cause() -> None:
    own = ValueError("mine")
    with pytest.raises(EngineError, match=r"failed on ranks 0-1: ValueError: mine") as raised:
        agree_on_success(FakeComm(["OSError: disk"]), "Loading", own)
    assert raised.value.__cause__ is own


@pytest.mark.pure
def test_missing_mpi_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "mpi4py":
            raise RuntimeError("cannot load MPI library")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(EngineError, match=r"MPI cannot be started.*cannot load MPI library.*tensoropt\[mpi\]"):
        start_mpi()


@pytest.mark.pure
@pytest.mark.parametrize("given", [None, "send,put"])
def test_messages_are_sent_in_fragments_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    name = "OMPI_MCA_btl_tcp_flags"
    monkeypatch.setattr(os, "environ", {} if given is None else {name: given})
    monkeypatch.setitem(sys.modules, "mpi4py", types.ModuleType("mpi4py"))  # without MPI
    with pytest.raises(EngineError):
        start_mpi()
    assert mpi_settings() == [f"{name}={given or 'send,inplace'}"]


@pytest.mark.pure
def test_mpi_without_threads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    mpi = types.SimpleNamespace(
        THREAD_SERIALIZED=2,
        THREAD_MULTIPLE=3,
        Is_initialized=lambda: bool(started),
        Init_thread=started.append,
        Query_thread=lambda: 1,
    )
    package = types.ModuleType("mpi4py")
    vars(package)["MPI"] = mpi
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    with pytest.raises(EngineError, match=r"at least MPI_THREAD_SERIALIZED.* Got level 1"):
        start_mpi()
    assert started == [3]


@pytest.mark.pure
def test_abort_hook_is_not_installed_for_one_rank() -> None:
    before = sys.excepthook
    assert not install_abort_hook(FakeComm([]))
    assert sys.excepthook is before


@pytest.mark.pure
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_abort_hook_prints_the_rank_and_ends_the_job(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(launch, "Failures", OnlyFailure)
    comm = FakeComm([None])
    assert install_abort_hook(comm)
    sys.excepthook(type(error), error, None)
    assert comm.aborted == 1
    assert capsys.readouterr().err.startswith(f"rank 0: {type(error).__name__}")


@pytest.mark.pure
def test_abort_hook_covers_threads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(launch, "Failures", OnlyFailure)
    comm = FakeComm([None])
    install_abort_hook(comm)

    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert comm.aborted == 1
    assert "rank 0: ValueError: in a thread" in capsys.readouterr().err


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("where", ["main", "thread"])
def test_one_raising_rank_ends_the_job_with_its_traceback(tmp_path: Path, where: str) -> None:
    program = tmp_path / "failing.py"
    program.write_text(
        "import sys, threading\n"
        "from tensoropt.exec.engines.launch import install_abort_hook, start_mpi\n"
        "world = start_mpi()\n"
        "install_abort_hook()\n"
        "def fail():\n"
        "    raise ValueError('only rank 1 fails')\n"
        "if world.rank == 1:\n"
        "    threading.Thread(target=fail).start() if sys.argv[1] == 'thread' else fail()\n"
        "world.Barrier()\n"
        "world.Barrier()\n"
    )
    with pytest.raises(MpiRunError, match=r"rank 1: ValueError: only rank 1 fails") as raised:
        run_mpi(program, 3, where, timeout=60)
    assert raised.value.returncode not in (0, None)
    assert "rank 1: Traceback" in raised.value.stderr
    assert "rank 0:" not in raised.value.stderr and "rank 2:" not in raised.value.stderr
