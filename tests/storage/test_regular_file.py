"""Reading what somebody else may have put in the place of a file."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensoropt.cluster import Topology
from tensoropt.errors import ClusterError, PlanError, ProblemError, TensorOptError
from tensoropt.plan.plan import Plan
from tensoropt.problem import load_problem, save_problem
from tensoropt.storage import open_regular, read_regular
from tests.storage.test_cache_folder import give_away
from tests.storage.test_damaged_files import _problem, plan, topology

pytestmark = pytest.mark.pure

READERS: dict[str, tuple[Callable[[Path], Any], type[TensorOptError]]] = {
    "plan": (Plan.load, PlanError),
    "topology": (Topology.load, ClusterError),
    "problem": (load_problem, ProblemError),
}


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**43)


# What is put there, and what is said of it.
TRAPS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a pipe, not a file"),
    "link to a pipe": (_linked_pipe, "it is a pipe, not a file"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "terminal": (lambda path: path.symlink_to("/dev/tty"), "it is a device, not a file"),
    "socket": (_socket, "it is a socket, not a file"),
    "folder": (Path.mkdir, "it is a folder, not a file"),
    "nothing": (lambda path: None, "No such file"),
    "link to itself": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "more than memory": (_large, "has more than 268,435,456 bytes|must be an .npz archive"),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(reader: str, trap: str, tmp_path: Path) -> None:
    (read, error), (put, said) = READERS[reader], TRAPS[trap]
    put(tmp_path / "file")
    start_s = time.monotonic()
    with pytest.raises(error, match=said) as refused:
        read(tmp_path / "file")
    assert time.monotonic() - start_s < 2 and len(str(refused.value)) <= 500
    assert str(tmp_path / "file") in str(refused.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "\ud800"])
def test_names_that_no_file_can_have_are_refused(reader: str, name: str, tmp_path: Path) -> None:
    read, error = READERS[reader]
    with pytest.raises(error, match="cannot be read") as refused:
        read(tmp_path / name)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["absent/file", "a\0b", "a" * 300])
def test_what_cannot_be_written_is_an_error_of_ours(name: str, tmp_path: Path) -> None:
    writers: list[tuple[Callable[[Path], None], type[TensorOptError]]] = [
        (plan().save, PlanError),
        (topology().save, ClusterError),
        (lambda path: save_problem(_problem(), path), ProblemError),
    ]
    for write, error in writers:
        with pytest.raises(error, match="cannot be written") as refused:
            write(tmp_path / name)
        assert len(str(refused.value)) <= 500


def test_a_link_that_a_user_has_made_is_followed_unless_the_file_is_to_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"text"
    with pytest.raises(OSError, match="it is a link"):
        read_regular(tmp_path / "link", trusted=True)


def test_files_are_trusted_that_only_their_owner_can_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o644)
    assert read_regular(path, trusted=True) == b""
    path.chmod(0o664)
    with pytest.raises(PermissionError, match=rf"^the file '{path}' can be written by others \(mode 0664\)$"):
        read_regular(path, trusted=True)
    assert read_regular(path) == b""
    path.chmod(0o644)
    give_away(path, monkeypatch)
    with pytest.raises(PermissionError, match=f"the file '{path}' belongs to user"):
        read_regular(path, trusted=True)


@pytest.mark.parametrize("swapped", ["pipe", "link", "writable"])
def test_what_takes_the_place_of_a_file_after_it_was_looked_at_is_not_taken(
    swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lstat = tmp_path / "file", os.lstat
    path.write_text("ours")
    (tmp_path / "theirs").write_text("theirs")

    def swapping(looked_at: Any) -> os.stat_result:
        found = lstat(looked_at)
        path.unlink()
        if swapped == "pipe":
            os.mkfifo(path)
        elif swapped == "link":
            path.symlink_to("theirs")
        else:
            path.write_text("theirs")
            path.chmod(0o666)
        return found

    monkeypatch.setattr(os, "lstat", swapping)
    with pytest.raises(OSError, match=r"it is a pipe|symbolic links|can be written by others"):
        open_regular(path, trusted=True)


def test_a_file_of_more_bytes_than_may_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    assert len(read_regular(tmp_path / "file", most_bytes=11)) == 11
    with pytest.raises(OSError, match="it has more than 10 bytes"):
        read_regular(tmp_path / "file", most_bytes=10)
    with pytest.raises(OSError, match="it has more than 100 bytes"):
        read_regular("/proc/self/maps", most_bytes=100)  # its size is said to be 0
