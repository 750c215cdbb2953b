"""Whose the cache is, and what is done where it cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensoropt.storage import cache_directory, distrust, remove_leftovers

pytestmark = pytest.mark.pure


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and no variable that names another cache."""
    for name in ("TENSOROPT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file somebody else's than the user who runs this."""
    if os.geteuid() == 0:
        os.lchown(path, 12345, 12345)
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


def test_variables_name_the_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory() == home / ".cache" / "tensoropt"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
    assert cache_directory() == home / ".cache" / "tensoropt" and not (tmp_path / "relative").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_directory() == tmp_path / "shared" / "tensoropt"
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_folder_is_made_for_its_owner_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        assert cache_directory().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
def test_folder_that_others_can_write_to_is_refused(home: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    refused = cache_directory()
    refused.chmod(mode)
    used = cache_directory()
    assert used != refused and used.stat().st_mode & 0o777 == 0o700 and distrust(used) is None
    said = f"The cache '{refused}' is not used: the folder '{refused}' can be written by others (mode {mode:04o}). "
    assert said + f"'{used}' is used instead" in caplog.text
    assert cache_directory() == used and caplog.text.count("is not used") == 1


def test_folder_of_somebody_else_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = cache_directory()
    give_away(refused, monkeypatch)
    used = cache_directory()
    assert used != refused and f"the folder '{refused}' belongs to user {refused.stat().st_uid}" in caplog.text


def test_folder_in_one_that_anybody_can_write_to_is_refused_unless_that_is_sticky(home: Path) -> None:
    folder = cache_directory()
    home.chmod(0o1777)
    assert cache_directory() == folder
    home.chmod(0o777)
    assert cache_directory() != folder and f"'{home}' above it can be written by anybody" in str(distrust(folder))


def test_user_without_a_home_has_a_private_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where there is no such user
    assert cache_directory().is_absolute() and distrust(cache_directory()) is None


def test_files_are_trusted_that_only_their_owner_can_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o644)
    assert distrust(path) is None
    path.chmod(0o664)
    assert distrust(path) == f"the file '{path}' can be written by others (mode 0664)"
    link = tmp_path / "link"
    link.symlink_to(path)
    assert distrust(link) == f"'{link}' is no file"
    path.chmod(0o644)
    give_away(path, monkeypatch)
    assert f"the file '{path}' belongs to user" in str(distrust(path))


def test_only_old_leftovers_are_removed(tmp_path: Path) -> None:
    names = ("old.part", "old folder.part", "new.part", "old.so")
    for name in names:
        (tmp_path / name).mkdir() if "folder" in name else (tmp_path / name).touch()
    (tmp_path / "old folder.part" / "inner").touch()
    for name in names:
        if name.startswith("old"):
            os.utime(tmp_path / name, (0, time.time() - 7200))
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.part", "old.so"]


def test_private_folder_goes_with_its_process(home: Path) -> None:
    cache_directory().chmod(0o777)
    program = "from tensoropt.storage import cache_directory\nprint(cache_directory())\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "tensoropt-" in done.stdout and not Path(done.stdout.strip()).exists()
    assert "is used instead" in done.stderr  # logging's last resort shows warnings
