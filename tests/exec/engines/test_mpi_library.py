"""The cache of compiled ops, and what is said where they cannot be compiled."""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensoropt.errors import EngineError
from tensoropt.exec.engines import mpi_library
from tensoropt.exec.engines.mpi_library import MpiLibrary, cache_directory, compile_library, find_compiler

pytestmark = pytest.mark.tf

_ENGINES = Path(mpi_library.__file__).parent
VERSION = "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'c++ 1.0'; exit 0; }\n"
# Stands for a compiler: counts its runs, and writes the file that -o names.
FAKE = VERSION + (
    'echo run >> "$(dirname "$0")/runs"\nsleep 0.3\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"\n'
)
FAILING = VERSION + "echo 'first line' >&2\necho 'mpi.h: no such file' >&2\nexit 1\n"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler wrapper that tests write, named by MPICXX."""
    path = tmp_path / "tools" / "mpicxx"
    path.parent.mkdir()
    monkeypatch.setenv("MPICXX", str(path))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def runs(compiler: Path) -> int:
    record = compiler.parent / "runs"
    return len(record.read_text().splitlines()) if record.exists() else 0


def test_library_is_compiled_once_for_all_who_wait(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(compile_library("MPI 1", tmp_path / "cache"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 4
    assert paths[0].read_text() == "library\n"
    assert runs(compiler) == 1
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".so"]


def test_another_mpi_or_compiler_has_a_library_of_its_own(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    first = compile_library("MPI 1", tmp_path)
    assert compile_library("MPI 1", tmp_path) == first
    second = compile_library("MPI 2", tmp_path)
    write(compiler, FAKE.replace("1.0", "1.1"))
    third = compile_library("MPI 1", tmp_path)
    assert len({first, second, third}) == 3
    assert runs(compiler) == 3


def test_a_change_of_any_source_makes_another_library(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, FAKE)
    for name in mpi_library._SOURCES:
        (tmp_path / name).write_bytes((_ENGINES / name).read_bytes())
    made = [compile_library("MPI 1", tmp_path)]
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    assert compile_library("MPI 1", tmp_path) == made[0]
    for name in mpi_library._SOURCES:
        (tmp_path / name).write_bytes((_ENGINES / name).read_bytes() + b"\n")
        made.append(compile_library("MPI 1", tmp_path))
    assert len(set(made)) == len(made)


def test_every_source_in_the_package_is_compiled() -> None:
    present = sorted(path.name for pattern in ("*.cc", "*.h") for path in _ENGINES.glob(pattern))
    assert present == sorted(mpi_library._SOURCES)
    # Each is included by the first, or by one that is.
    texts = {name: (_ENGINES / name).read_text() for name in present}
    assert all(any(f'#include "{name}"' in text for text in texts.values()) for name in mpi_library._SOURCES[1:])


def test_failing_compiler_is_quoted_and_leaves_nothing(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAILING)
    with pytest.raises(EngineError, match=r"Got exit status 1:\n(.*\n)*mpi.h: no such file\n.*'mpi4py'"):
        compile_library("MPI 1", tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_compiler_that_does_not_end_is_an_error(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, VERSION + "exec sleep 60\n")
    monkeypatch.setattr(mpi_library, "_COMPILE_LIMIT_S", 0.2)
    with pytest.raises(EngineError, match=r"must compile within 0.2 s"):
        compile_library("MPI 1", tmp_path)


def test_wrapper_without_a_compiler_is_an_error(compiler: Path) -> None:
    write(compiler, "#!/bin/sh\necho 'c++: not found' >&2\nexit 127\n")
    with pytest.raises(EngineError, match=r"must find a C\+\+ compiler. Got: c\+\+: not found. Install g\+\+"):
        find_compiler()


def test_named_compiler_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICXX", "/nowhere/mpicxx")
    with pytest.raises(EngineError, match=r"compiler '/nowhere/mpicxx' must run. Got .*No such file"):
        find_compiler()


def test_no_compiler_anywhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPICXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EngineError, match=r"need an MPI C\+\+ compiler. Got no mpicxx in .*tensoropt\[mpi\]"):
        find_compiler()


def test_compiler_beside_the_interpreter_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPICXX", raising=False)
    for name in ("beside", "path"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "mpicxx", "#!/bin/sh\nexit 0\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_compiler() == str(tmp_path / "beside" / "mpicxx")


def test_directory_that_cannot_be_made_is_an_error(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"need a directory to be compiled into.*TENSOROPT_CACHE_DIR"):
        compile_library("MPI 1", tmp_path / "file" / "cache")


def test_broken_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("not a library")
    with pytest.raises(EngineError, match=r"must load. Got .*Delete the file"):
        MpiLibrary(tmp_path / "broken.so")


def test_library_of_an_mpi_that_was_not_started_is_an_error() -> None:
    pytest.importorskip("mpi4py")
    # In a process of its own: this one may have started MPI, or not, in an earlier test.
    program = (
        "import mpi4py\n"
        "mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI\n"
        "from tensoropt.exec.engines.mpi_library import MpiLibrary, compile_library\n"
        "MpiLibrary(compile_library(MPI.Get_library_version()))\n"
    )
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}  # starts in half the time, without Keras 3
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must use the MPI library that mpi4py started. Got another one" in done.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TENSOROPT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/tensoropt"),
        ({}, "/home/somebody/.cache/tensoropt"),
    ],
)
def test_cache_directory_follows_the_environment(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TENSOROPT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(expected)
