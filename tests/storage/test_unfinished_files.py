"""What is removed of what others have left unfinished, and what is not."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensoropt.storage import discard_folder, escaped, new_folder, remove_leftovers, write_whole
from tensoropt.storage.unfinished_files import _OWNER, new_file
from tests.storage.test_cache_folder import give_away

pytestmark = pytest.mark.pure

NAME = ".model.0123456789abcdef.part"
HOURS_AGO = time.time() - 7200
# Makes something unfinished in the folder that is the first argument, says its name, and goes on for ever.
PROGRAM = """
import os, sys, time
from pathlib import Path
from tensoropt.storage import new_folder
from tensoropt.storage.unfinished_files import new_file
folder, kind, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if kind == "folder":
    made = new_folder(folder, name)
    (made / "part-00000.index").write_text("part")
else:
    made, _ = new_file(folder / name, 0o600)
print(made, flush=True)
time.sleep(100)
"""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody's, with a file in it."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("precious")
    return tmp_path / "victim"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("name", ["model", "model-7", "a name (with) [signs]", "ü" * 120])
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_is_at_stays(
    kind: str, name: str, folder: Path
) -> None:
    if kind == "folder":
        name = name[:100]
    command = [sys.executable, "-c", PROGRAM, str(folder), kind, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Path(process.stdout.readline().rstrip("\n"))
        assert made.parent == folder
        os.utime(made, (HOURS_AGO, HOURS_AGO))  # a long save is not a dead one
        remove_leftovers(folder, escaped(name))
        assert made.exists()
        process.send_signal(signal.SIGKILL)
    remove_leftovers(folder, escaped("another"))
    assert made.exists()
    remove_leftovers(folder, escaped(name))
    assert not list(folder.iterdir())


def test_of_another_host_whose_locks_may_not_be_seen_only_what_is_old_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "another")
    path, handle = new_file(folder / "model", 0o600)
    os.close(handle)
    monkeypatch.undo()
    remove_leftovers(folder)
    assert path.exists()
    os.utime(path, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert not path.exists()


@pytest.mark.parametrize("target", ["folder", "file", "nothing"])
def test_a_link_is_removed_and_not_followed(target: str, folder: Path, victim: Path) -> None:
    leads_to = {"folder": victim, "file": victim / "precious", "nothing": victim / "absent"}[target]
    (folder / NAME).symlink_to(leads_to)
    remove_leftovers(folder, "model")
    assert not list(folder.iterdir()) and (victim / "precious").read_text() == "precious"


@pytest.mark.parametrize("old", [False, True])
def test_a_folder_that_was_not_made_here_stays(old: bool, folder: Path, victim: Path) -> None:
    """Who may write to the folder may move another one into it."""
    moved = folder / NAME
    victim.rename(moved)
    if old:
        os.utime(moved, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert (moved / "precious").read_text() == "precious"


@pytest.mark.parametrize("trap", ["link", "pipe", "folder"])
def test_a_folder_with_something_else_for_a_lock_stays(trap: str, folder: Path, victim: Path) -> None:
    victim.rename(folder / NAME)
    lock = folder / NAME / _OWNER
    if trap == "link":
        (folder / "file").touch()
        lock.symlink_to(folder / "file")
    elif trap == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    os.utime(folder / NAME, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert (folder / NAME / "precious").exists() and lock.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives something to somebody else")
@pytest.mark.parametrize("kind", ["folder", "file", "lock"])
def test_what_is_another_users_stays(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "file":
        path, handle = new_file(folder / "model", 0o600)
        os.close(handle)
    else:
        path = folder / new_folder(folder, "model").name.replace("model", "moved")
        made = next(folder.iterdir())
        made.rename(path)
        discard_folder(made)  # its lock is given back; it has another name
        path.mkdir(exist_ok=True)
        (path / _OWNER).touch()
    give_away(path / _OWNER if kind == "lock" else path, monkeypatch)
    os.utime(path, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert path.exists()


def test_nothing_below_a_folder_is_removed(folder: Path, victim: Path) -> None:
    made = new_folder(folder, "model")
    (made / "part").touch()
    victim.rename(made / "moved")
    (made / "link").symlink_to("moved")
    with pytest.raises(OSError, match=r"Is a directory|not permitted"):
        discard_folder(made)
    assert (made / "moved" / "precious").exists()


def test_a_link_in_the_place_of_a_folder_is_not_followed(folder: Path, victim: Path) -> None:
    made = new_folder(folder, "model")
    (made / "part").touch()
    made.rename(folder / "moved")
    made.symlink_to(victim)
    with pytest.raises(NotADirectoryError):
        discard_folder(made)
    assert (victim / "precious").exists() and not (folder / "moved" / "part").exists()
    discard_folder(made)  # it is forgotten


def test_a_folder_is_its_users_alone_and_goes_with_its_files(folder: Path) -> None:
    before = os.umask(0)
    try:
        made = new_folder(folder, "model")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700
    (made / "part").touch()
    discard_folder(made)
    assert not list(folder.iterdir())


def test_names_that_are_not_of_that_form_stay(folder: Path) -> None:
    names = ("model.part", ".model.part", "model.0123456789abcdef.part", ".model.0123456789abcdeg.part", f"{NAME}2")
    for name in names:
        (folder / name).touch()
        os.utime(folder / name, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_an_empty_folder_that_was_killed_before_its_lock_goes_when_it_is_old(folder: Path) -> None:
    (folder / NAME).mkdir()
    remove_leftovers(folder)
    assert (folder / NAME).exists()
    os.utime(folder / NAME, (HOURS_AGO, HOURS_AGO))
    remove_leftovers(folder)
    assert not (folder / NAME).exists()


def test_what_a_killed_write_left_is_removed_by_the_next_of_that_file(folder: Path) -> None:
    killed = (
        "import os, sys\nfrom tensoropt.storage import write_whole\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\nwrite_whole(sys.argv[1], 'killed')\n"
    )
    for name in ("plan.json", "other.json"):
        subprocess.run([sys.executable, "-c", killed, str(folder / name)], check=False)
    left = sorted(path.name for path in folder.iterdir())
    assert [name.split(".")[1] for name in left] == ["other", "plan"]
    write_whole(folder / "plan.json", "whole")
    assert sorted(path.name for path in folder.iterdir()) == [left[0], "plan.json"]
