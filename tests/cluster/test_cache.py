"""The cache of measured topologies."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tensoropt.cluster import cache, preset

pytestmark = pytest.mark.pure

KEY = {"hosts": ["a", "b"], "mpi": "some MPI 1.0"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TENSOROPT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_directory() == Path("/home/someone/.cache/tensoropt")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_directory() == Path("/home/someone/.cache/tensoropt")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache.cache_directory() == Path("/var/cache/tensoropt")
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", "/own")
    assert cache.cache_directory() == Path("/own")


def test_stored_topology_is_found_by_its_key_only(folder: Path) -> None:
    assert cache.load_topology(KEY) is None
    cache.store_topology(KEY, preset("k80"))
    assert cache.load_topology(KEY) == preset("k80")
    assert cache.load_topology({**KEY, "mpi": "some MPI 2.0"}) is None
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"key": KEY, "topology": {"schema_version": 0}})])
def test_damaged_file_is_ignored_with_a_warning(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(parents=True)
    cache.topology_path(KEY).write_text(text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert cache.load_topology(KEY) is None
    assert "Ignoring the cached topology" in caplog.text
    cache.store_topology(KEY, preset("v100"))
    assert cache.load_topology(KEY) == preset("v100")


def test_file_of_another_machine_under_the_same_name_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.store_topology({"hosts": ["c"]}, preset("v100"))
    (path,) = folder.iterdir()
    path.rename(cache.topology_path(KEY))
    with caplog.at_level(logging.WARNING):
        assert cache.load_topology(KEY) is None
    assert "written for another machine" in caplog.text


def test_directory_that_cannot_be_made_costs_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        cache.store_topology(KEY, preset("v100"))
    assert "Cannot cache the topology" in caplog.text


def test_failed_write_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "replace", full)
    cache.store_topology(KEY, preset("v100"))
    assert "no space left" in caplog.text and not list(folder.iterdir())
