"""The cache of measured topologies."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from tensoropt.cluster import preset
from tensoropt.measure.cache import TOPOLOGIES

pytestmark = pytest.mark.pure

KEY = {"hosts": ["a", "b"], "mpi": "some MPI 1.0"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


def test_stored_topology_is_found_by_its_key_only(folder: Path) -> None:
    assert TOPOLOGIES.load(KEY) is None
    TOPOLOGIES.store(KEY, preset("k80"))
    assert TOPOLOGIES.load(KEY) == preset("k80")
    assert TOPOLOGIES.load({**KEY, "mpi": "some MPI 2.0"}) is None
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"key": KEY, "topology": {"schema_version": 0}})])
def test_damaged_file_is_ignored_with_a_warning(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True)
    TOPOLOGIES.path(KEY).write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert TOPOLOGIES.load(KEY) is None
    assert "Ignoring the cached topology" in caplog.text
    TOPOLOGIES.store(KEY, preset("v100"))
    assert TOPOLOGIES.load(KEY) == preset("v100")


def test_file_of_another_machine_under_the_same_name_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    TOPOLOGIES.store({"hosts": ["c"]}, preset("v100"))
    (path,) = folder.iterdir()
    path.rename(TOPOLOGIES.path(KEY))
    with caplog.at_level(logging.WARNING):
        assert TOPOLOGIES.load(KEY) is None
    assert "written for another machine" in caplog.text


def test_document_that_others_can_have_written_is_ignored_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TOPOLOGIES.store(KEY, preset("k80"))
    TOPOLOGIES.path(KEY).chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert TOPOLOGIES.load(KEY) is None
    assert f"'{TOPOLOGIES.path(KEY)}' can be written by others (mode 0666)" in caplog.text
    TOPOLOGIES.store(KEY, preset("k80"))
    assert TOPOLOGIES.load(KEY) == preset("k80")
    assert TOPOLOGIES.path(KEY).stat().st_mode & 0o777 == 0o600


def test_directory_that_cannot_be_made_costs_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        TOPOLOGIES.store(KEY, preset("v100"))
    assert f"The cache '{tmp_path}/file/cache' is not used: it cannot be used (Not a directory)" in caplog.text
    assert TOPOLOGIES.load(KEY) == preset("v100")  # it is kept for this process


def test_failed_write_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    TOPOLOGIES.store(KEY, preset("v100"))
    assert "no space left" in caplog.text and not list(folder.iterdir())
