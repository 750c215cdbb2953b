"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tensoropt.storage import write_whole

pytestmark = pytest.mark.pure


def test_content_replaces_what_was_there_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "first, and longer\n")
    write_whole(path, b"second \xff\n")
    assert path.read_bytes() == b"second \xff\n" and list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_that_are_asked_for_less_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "shared", "")
        write_whole(tmp_path / "own", "", mode=0o600)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("shared", "own")] == [0o640, 0o600]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_changes_nothing(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "after")
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "0" * 100_000)
    done = threading.Event()
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        while not done.is_set():
            text = path.read_text()
            seen.add((len(text), len(set(text))))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(50):
        write_whole(path, str(turn % 10) * 100_000)
    done.set()
    for reader in readers:
        reader.join()
    assert seen == {(100_000, 1)}


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    write_whole(link, "through")
    assert link.is_symlink() and (tmp_path / "folder" / "file").read_text() == "through"


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "text")
    reader.join()
    assert got == ["text"] and (tmp_path / "pipe").is_fifo()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "text")


def test_names_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("字" * 85)  # 255 bytes
    write_whole(path, "first")
    write_whole(path, "second")
    assert path.read_text() == "second" and list(tmp_path.iterdir()) == [path]


def test_links_are_replaced_where_a_program_has_chosen_the_name(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to("victim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        write_whole(tmp_path / name, "ours", follow_links=False)
        assert (tmp_path / name).read_text() == "ours" and not (tmp_path / name).is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives something to somebody else")
@pytest.mark.parametrize("kind", ["link", "pipe", "link to a device"])
def test_what_somebody_else_put_in_the_way_is_replaced(kind: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "plan.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("victim" if kind == "link" else "/dev/full")
    os.lchown(path, 12345, 12345)
    write_whole(path, "ours")
    assert path.read_text() == "ours" and path.is_file() and not path.is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"
