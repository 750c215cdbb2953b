"""Whose the cache is, and what is done where it cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tensoropt.storage import cache_directory, distrust

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
    assert cache_directory() != folder
    assert f"the folder '{home}' above it can be written by others (mode 0777)" in str(distrust(folder))


@pytest.mark.parametrize("mode", [0o770, 0o775, 0o2775, 0o720])
def test_folder_in_one_that_a_group_can_write_to_is_refused(
    home: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    refused = cache_directory()
    home.chmod(mode)
    assert cache_directory() != refused
    assert f"the folder '{home}' above it can be written by others (mode {mode:04o})" in caplog.text
    (home / ".cache").chmod(0o770)
    assert f"'{home}/.cache' above it can be written by others" in str(distrust(refused))  # the nearest is named


@pytest.mark.parametrize("mode", [0o755, 0o1777])
@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
def test_folder_in_one_of_somebody_else_is_refused(home: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns a folder may rename what is in it, be it sticky."""
    folder = cache_directory()
    home.chmod(mode)
    give_away(home, monkeypatch)
    assert f"the folder '{home}' above it belongs to user 12345" in str(distrust(folder))
    assert cache_directory() != folder


def test_folders_above_that_are_made_are_for_their_owner_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(home / "a" / "b" / "c"))
    before = os.umask(0o002)
    try:
        assert cache_directory() == home / "a" / "b" / "c"
    finally:
        os.umask(before)
    assert [(home / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_links_on_the_way_are_followed_once(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may turn one does not choose what is read: what was looked at is what is used from then on."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (home / "own").mkdir(mode=0o700)
    (shared / "link").symlink_to(home / "own")
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(shared / "link"))
    assert cache_directory() == home / "own"


def test_no_folder_at_all_is_an_error(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_directory().chmod(0o777)
    unsafe = tmp_path / "temporary"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(unsafe))
    with pytest.raises(OSError, match=r"written by others .*; nor can a folder for temporary files be used: the "):
        cache_directory()


def test_user_without_a_home_has_a_private_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where there is no such user
    assert cache_directory().is_absolute() and distrust(cache_directory()) is None


def test_private_folder_goes_with_its_process(home: Path) -> None:
    cache_directory().chmod(0o777)
    program = "from tensoropt.storage import cache_directory\nprint(cache_directory())\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "tensoropt-" in done.stdout and not Path(done.stdout.strip()).exists()
    assert "is used instead" in done.stderr  # logging's last resort shows warnings
