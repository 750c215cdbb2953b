"""The cache of compiled ops, and what is said where they cannot be compiled."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tensoropt.errors import EngineError
from tensoropt.exec.engines import mpi_library
from tensoropt.exec.engines.mpi_library import MpiLibrary, compile_library, find_compiler
from tensoropt.stages import listen
from tensoropt.storage import new_folder
from tests.effort import left_to_ci

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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder of compiled libraries; that of all tests where a test has no compiler of its own."""
    if "compiler" in request.fixturenames:
        monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def runs(compiler: Path) -> int:
    record = compiler.parent / "runs"
    return len(record.read_text().splitlines()) if record.exists() else 0


def test_library_is_compiled_once_for_all_who_wait(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(compile_library("MPI 1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 4
    assert paths[0].read_text() == "library\n"
    assert runs(compiler) == 1
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".sha256", ".so"]


def test_who_waits_hears_that_it_is_compiled(compiler: Path) -> None:
    write(compiler, FAKE)
    heard: list[str] = []
    listen(lambda work: heard.append("nothing" if work is None else str(work)))
    compile_library("MPI 1")
    compile_library("MPI 1")
    listen(None)
    assert heard == [f"compiling the collectives' library with {compiler}, once", "nothing"]


def test_another_mpi_or_compiler_has_a_library_of_its_own(compiler: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    first = compile_library("MPI 1")
    assert compile_library("MPI 1") == first
    second = compile_library("MPI 2")
    write(compiler, FAKE.replace("1.0", "1.1"))
    third = compile_library("MPI 1")
    assert len({first, second, third}) == 3
    assert runs(compiler) == 3


def test_a_change_of_any_source_makes_another_library(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, FAKE)
    for name in mpi_library._SOURCES:
        (tmp_path / name).write_bytes((_ENGINES / name).read_bytes())
    made = [compile_library("MPI 1")]
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    assert compile_library("MPI 1") == made[0]
    for name in mpi_library._SOURCES:
        (tmp_path / name).write_bytes((_ENGINES / name).read_bytes() + b"\n")
        made.append(compile_library("MPI 1"))
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
        compile_library("MPI 1")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_compiler_that_does_not_end_is_an_error(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, VERSION + "exec sleep 60\n")
    monkeypatch.setattr(mpi_library, "_COMPILE_LIMIT_S", 0.2)
    with pytest.raises(EngineError, match=r"must compile within 0.2 s"):
        compile_library("MPI 1")


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


def test_directory_that_cannot_be_made_is_done_without(
    compiler: Path, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(compiler, FAKE)
    cache.write_text("")
    library = compile_library("MPI 1")
    assert library.read_text() == "library\n" and library.parent != cache
    assert f"The cache '{cache}' is not used" in caplog.text and f"'{library.parent}' is used instead" in caplog.text
    assert library.parent.stat().st_mode & 0o777 == 0o700


def test_no_directory_anywhere_is_an_error(
    compiler: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, FAKE)
    cache.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(EngineError, match=r"need a directory to be compiled into.*TENSOROPT_CACHE_DIR"):
        compile_library("MPI 1")


def planted(cache: Path, compiler: Path) -> Path:
    """A file of the name that will be looked for, which nobody compiled."""
    library = compile_library("MPI 1")
    shutil.rmtree(cache)
    (compiler.parent / "runs").unlink()
    cache.mkdir(mode=0o700)
    library.write_text("planted\n")
    library.chmod(0o755)
    return library


def test_planted_library_is_not_loaded(compiler: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(compiler, FAKE)
    library = planted(cache, compiler)
    assert compile_library("MPI 1") == library and library.read_text() == "library\n"
    assert runs(compiler) == 1 and "sha256' is missing" in caplog.text
    # One that cannot be told from ours by its hash is told by whose it is.
    library.chmod(0o777)
    assert compile_library("MPI 1") == library and runs(compiler) == 2
    assert f"the file '{library}' can be written by others (mode 0777)" in caplog.text
    assert library.stat().st_mode & 0o777 == 0o700


def test_library_in_a_folder_that_others_can_write_to_is_not_loaded(
    compiler: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(compiler, FAKE)
    library = planted(cache, compiler)
    (cache / f"{library.name}.sha256").write_text(hashlib.sha256(b"planted\n").hexdigest())
    cache.chmod(0o1777)
    compiled = compile_library("MPI 1")
    assert compiled.parent != cache and compiled.read_text() == "library\n"
    assert compile_library("MPI 1") == compiled and runs(compiler) == 1
    assert f"the folder '{cache}' can be written by others (mode 1777)" in caplog.text


def test_link_in_the_place_of_the_library_is_not_followed(compiler: Path, cache: Path, tmp_path: Path) -> None:
    write(compiler, FAKE)
    library = planted(cache, compiler)
    library.rename(tmp_path / "elsewhere")
    library.symlink_to(tmp_path / "elsewhere")
    compile_library("MPI 1")
    assert runs(compiler) == 1


@pytest.mark.parametrize("damage", ["library", "hash", "no hash"])
def test_damaged_library_is_compiled_again(
    damage: str, compiler: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(compiler, FAKE)
    library = compile_library("MPI 1")
    record = library.with_suffix(".so.sha256")
    if damage == "library":
        os.truncate(library, 4)
    elif damage == "hash":
        record.write_bytes(b"\xff")
    else:
        record.unlink()
    assert compile_library("MPI 1") == library and runs(compiler) == 2
    assert "are not loaded but compiled again: '" in caplog.text
    assert library.read_text() == "library\n"
    caplog.clear()
    assert compile_library("MPI 1") == library and runs(compiler) == 2 and not caplog.text


def test_what_killed_compilations_left_is_removed(compiler: Path, cache: Path) -> None:
    write(compiler, VERSION + "sleep 60\n")
    program = "from tensoropt.exec.engines.mpi_library import compile_library\ncompile_library('MPI 1')\n"
    with subprocess.Popen([sys.executable, "-c", program]) as killed:
        deadline = time.monotonic() + 120
        while not list(cache.glob("*.part/*.cc")) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [path.name for path in cache.glob("*.part")]
        killed.kill()
    assert len(left) == 1
    living = new_folder(cache, "mpi_collectives")
    write(compiler, FAKE)
    compile_library("MPI 1")
    assert list(cache.glob("*.part")) == [living]


@pytest.mark.parametrize("swapped", ["file", "link", "folder"])
def test_what_was_looked_at_is_what_is_loaded(
    swapped: str, compiler: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wins a race after that gets nothing loaded."""
    write(compiler, FAKE)
    library = compile_library("MPI 1")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / library.name).write_text("theirs")

    def swap() -> None:
        if swapped == "folder":
            cache.rename(tmp_path / "moved")
            (tmp_path / "theirs").rename(cache)
        else:
            library.unlink()
            library.symlink_to(tmp_path / "theirs" / library.name) if swapped == "link" else library.write_text(
                "theirs"
            )

    loaded: list[bytes] = []

    def load(name: str) -> None:
        if not loaded:
            swap()
        loaded.append(Path(name).read_bytes())
        if len(loaded) == 2:
            raise OSError("no library")

    monkeypatch.setattr(mpi_library.tf, "load_op_library", load)
    monkeypatch.setattr(mpi_library.ctypes, "CDLL", load)
    with pytest.raises(EngineError, match=r"must load\. Got no library"):
        MpiLibrary(library)
    assert loaded == [b"library\n", b"library\n"] and library.read_text() == "theirs"


@pytest.mark.parametrize("swapped", ["content", "hash", "mode", "link", "pipe"])
def test_what_took_the_place_of_the_library_after_it_was_compiled_is_not_loaded(
    swapped: str, compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(compiler, FAKE)
    library = compile_library("MPI 1")
    record = library.with_suffix(".so.sha256")
    if swapped == "content":
        library.write_text("theirs")
    elif swapped == "hash":
        record.write_text(hashlib.sha256(b"theirs").hexdigest())
    elif swapped == "mode":
        library.chmod(0o770)
    else:
        library.rename(tmp_path / "elsewhere")
        os.mkfifo(library) if swapped == "pipe" else library.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(mpi_library.tf, "load_op_library", lambda name: pytest.fail("it was loaded"))
    with pytest.raises(EngineError, match=r"must load\. Got .*Delete the file"):
        MpiLibrary(library)


def test_broken_library_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_text("not a library")
    with pytest.raises(EngineError, match=r"must load. Got .*Delete the file"):
        MpiLibrary(tmp_path / "broken.so")


@left_to_ci("compiles the library, half a minute")
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
