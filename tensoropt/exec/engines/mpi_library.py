"""The compiled library of MPI ops: compiled on first use, cached, loaded into TensorFlow."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.resources
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import tensorflow as tf

from tensoropt.errors import EngineError
from tensoropt.exec.engines.watch import Activity, current_watch
from tensoropt.stages import doing, working
from tensoropt.storage import (
    cache_directory,
    discard_folder,
    new_folder,
    open_regular,
    private_folder,
    read_regular,
    remove_leftovers,
    write_whole,
)

__all__ = ["MpiLibrary", "compile_library", "find_compiler"]

_log = logging.getLogger("tensoropt")

_OPTIMISE = ("-O3", "-fPIC", "-shared", "-w")  # -w: TensorFlow's headers warn by the hundred
_COMPILE_LIMIT_S = 600
# Included by the first, and compiled with it as one unit: nearly all of the time is for TensorFlow's headers.
_SOURCES = ("mpi_collectives.cc", "meter.h", "mpi_call.h", "reduction.h")
_OPS = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast", "Permute", "Move")
_NAME_CAPACITY = 512


def find_compiler() -> str:
    """Return the MPI compiler wrapper: $MPICXX, the one beside this Python, or the first in the path.

    Raises:
        EngineError: There is none, or there is one but no C++ compiler behind it.
    """
    chosen = os.environ.get("MPICXX")
    beside = str(Path(sys.executable).parent)
    names = ("mpicxx", "mpic++")
    found = [chosen] if chosen else [shutil.which(name, path=path) for path in (beside, None) for name in names]
    command = next((name for name in found if name), None)
    if command is None:
        raise EngineError(
            f"The MPI ops need an MPI C++ compiler. Got no mpicxx in {beside} or in the path. Install MPI "
            "and a C++ compiler (pip install 'tensoropt[mpi]', and g++), name one in MPICXX, or use the "
            "engine 'mpi4py'."
        )
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(
            f"The MPI C++ compiler '{command}' must run. Got {error}. Name another one in MPICXX, or use the "
            "engine 'mpi4py'."
        ) from error
    if done.returncode != 0:
        raise EngineError(
            f"The MPI C++ compiler '{command}' must find a C++ compiler. Got: {_last_lines(done.stderr, 2)}. "
            "Install g++ or clang++, name another wrapper in MPICXX, or use the engine 'mpi4py'."
        )
    return command


def compile_library(mpi_version: str) -> Path:
    """Compile the ops unless it was done before; one process of a host at a time.

    A library in the cache is taken only if nobody else can have written it and it is what was compiled, by the hash
    that lies beside it: a library that was cut short ends with SIGBUS whoever loads it. :class:`MpiLibrary` looks
    again, at the file that it then has open: by its name it may be another one by then.

    Args:
        mpi_version: The version text of the MPI library in use. A part of the key, as are the sources, the
            TensorFlow and compiler versions and the flags.

    Returns:
        The path of the shared library.

    Raises:
        EngineError: There is no compiler, it failed, or there is no folder that can be written.
    """
    command = find_compiler()
    folder = importlib.resources.files(__package__)
    sources = {name: folder.joinpath(name).read_bytes() for name in _SOURCES}
    flags = (*_OPTIMISE, *tf.sysconfig.get_compile_flags())
    links = tuple(tf.sysconfig.get_link_flags())
    compiler = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    parts = (tf.__version__, mpi_version, command, compiler, platform.machine(), *flags, *links)
    key = hashlib.sha256(b"\0".join([*sources.values(), *(part.encode() for part in parts)])).hexdigest()[:24]
    recipe = _Recipe(f"mpi_collectives-{key}.so", command, sources, flags, links)
    directory = None
    try:
        directory = cache_directory()
        try:
            return _cached(recipe, directory)
        except OSError as error:
            directory = private_folder(directory, str(error))
            return _cached(recipe, directory)
    except OSError as error:
        raise EngineError(
            f"The MPI ops need a directory to be compiled into. Got {error} for '{directory}'. Name one that "
            "can be written in TENSOROPT_CACHE_DIR, or use the engine 'mpi4py'."
        ) from error


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The recipe by which a library is compiled.

    Attributes:
        name: the library's file name, with a hash of all other attributes.
        command: the compiler.
        sources: source texts by file name.
        flags: for compiling.
        links: for linking.
    """

    name: str
    command: str
    sources: Mapping[str, bytes]
    flags: tuple[str, ...]
    links: tuple[str, ...]


def _cached(recipe: _Recipe, directory: Path) -> Path:
    library = directory / recipe.name
    if _why_not_loaded(library) is None:
        return library
    with _locked(library.with_suffix(".lock")):
        reason = _why_not_loaded(library)  # another process may have made it while we waited
        if reason is not None:
            if reason:
                _log.warning("The compiled MPI ops are not loaded but compiled again: %s.", reason)
            remove_leftovers(directory)
            what = f"compiling the collectives' library with {recipe.command}, once"
            doing(what)
            with working(what):  # also outside of every stage the ranks that wait for it have to know that it goes on
                made = _compile(recipe, directory)
            # First the library: without the hash that fits, it counts as damaged, also for processes that do not lock.
            write_whole(library, made, mode=0o700)
            write_whole(_hash_file(library), f"{hashlib.sha256(made).hexdigest()}\n", mode=0o600)
    return library


def _why_not_loaded(library: Path) -> str | None:
    """Returns the reason not to load a library of the cache: ``""`` if it is not there; None to load it."""
    try:
        _open_compiled(library).close()
    except FileNotFoundError as error:
        return "" if not library.exists() else f"'{error.filename}' is missing"
    except OSError as error:
        return f"'{error.filename}': {error.strerror}" if error.filename else str(error)
    return None


def _open_compiled(library: Path) -> BinaryIO:
    """A library, open, that nobody but this user or root can have written, and that is what was compiled.

    Raises:
        OSError: it is not there, or is another one.
    """
    record = read_regular(_hash_file(library), trusted=True, most_bytes=1024)
    file = open_regular(library, trusted=True)
    try:
        if hashlib.sha256(file.read()).hexdigest().encode() != record.strip():
            raise OSError(f"'{library}' is not what was compiled, by the hash beside it")
    except BaseException:
        file.close()
        raise
    return file


def _hash_file(library: Path) -> Path:
    return library.with_suffix(".so.sha256")


def _compile(recipe: _Recipe, directory: Path) -> bytes:
    """The library's bytes; compiled in the directory, as others may be mounted so that nothing of them runs."""
    folder = new_folder(directory, recipe.name)
    try:
        for name, text in recipe.sources.items():
            (folder / name).write_bytes(text)
        made = folder / recipe.name
        line = [recipe.command, *recipe.flags, str(folder / _SOURCES[0]), "-o", str(made), *recipe.links]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_COMPILE_LIMIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"The MPI ops must compile within {_COMPILE_LIMIT_S} s. Got no end of: {' '.join(line)}. Use "
                "the engine 'mpi4py'."
            ) from error
        if done.returncode != 0:
            raise EngineError(
                f"The MPI ops must compile with '{recipe.command}'. Got exit status {done.returncode}:\n"
                f"{_last_lines(done.stderr or done.stdout, 15)}\nName another compiler in MPICXX, or use the "
                "engine 'mpi4py'."
            )
        return made.read_bytes()
    finally:
        discard_folder(folder)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks a file, which is made if need be."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            doing("another rank of this host compiles the collectives' library, once")
            with current_watch().waiting("the compilation of the MPI ops by another process"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # gives the lock back, also when the process dies


def _last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


class MpiLibrary:
    """The loaded ops, and the C functions beside them.

    Attributes:
        ops: TensorFlow's module of Python functions, one for each op.
    """

    def __init__(self, path: Path) -> None:
        """Load the library into TensorFlow.

        Raises:
            EngineError: It cannot be loaded, or it is linked to another MPI than the one that was started.
        """
        try:
            self.ops, functions = _load(path)
        except (tf.errors.OpError, OSError) as error:
            raise EngineError(
                f"The compiled MPI ops '{path}' must load. Got {error}. Delete the file to have them "
                "compiled again, or use the engine 'mpi4py'."
            ) from error
        self._functions = functions
        if not functions.tensoropt_mpi_initialized():
            raise EngineError(
                f"The compiled MPI ops '{path}' must use the MPI library that mpi4py started. Got another "
                "one. Name the compiler wrapper of mpi4py's MPI in MPICXX, or use the engine 'mpi4py'."
            )

    def new_meter(self) -> int:
        """Return the number of a new set of counters."""
        return int(self._functions.tensoropt_meter_new())

    def read_meter(self, meter: int, kinds: int) -> list[int]:
        """Return the bytes counted for each kind, in the order of ``KINDS``."""
        values = (ctypes.c_int64 * kinds)()
        self._functions.tensoropt_meter_read(meter, values)
        return list(values)

    def reset_meter(self, meter: int) -> None:
        """Set the counters to zero."""
        self._functions.tensoropt_meter_reset(meter)

    def activity(self, meter: int) -> Activity:
        """Return what the ops that count into this meter are doing."""
        name, waiting_s = ctypes.create_string_buffer(_NAME_CAPACITY), ctypes.c_double()
        entered = self._functions.tensoropt_meter_state(meter, name, _NAME_CAPACITY, ctypes.byref(waiting_s))
        return Activity(int(entered), name.value.decode(), None if waiting_s.value < 0 else waiting_s.value)

    def start_journal(self, meter: int, collectives: int) -> None:
        """Note when each of so many collectives begins and ends from now on; forget what was noted before."""
        self._functions.tensoropt_meter_start_journal(meter, collectives)

    def read_journal(self, meter: int) -> list[tuple[int, int, int]]:
        """Return begin, end and processor time of each collective since :meth:`start_journal`, in nanoseconds."""
        values = (ctypes.c_int64 * self._functions.tensoropt_meter_read_journal(meter, None))()
        self._functions.tensoropt_meter_read_journal(meter, values)
        return list(zip(values[::3], values[1::3], values[2::3], strict=True))

    def set_max_count(self, count: int) -> None:
        """Set the largest count for one MPI call; more is done in parts. For tests of the parts."""
        self._functions.tensoropt_set_max_count(count)


@functools.cache
def _load(path: Path) -> tuple[ModuleType, ctypes.CDLL]:
    """Load once per process: TensorFlow registers an op once.

    What is loaded is the file that was looked at, by its descriptor, where the system has names for these. It stays
    open: another file with its number would be taken for it.
    """
    with _open_compiled(path) as file:
        handle = os.dup(file.fileno())
    name = f"/proc/self/fd/{handle}" if os.path.isdir("/proc/self/fd") else str(path)
    try:
        ops = tf.load_op_library(name)
        functions = ctypes.CDLL(name)
    except BaseException:
        os.close(handle)
        raise
    functions.tensoropt_meter_new.restype = ctypes.c_int64
    functions.tensoropt_meter_read.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
    functions.tensoropt_meter_reset.argtypes = [ctypes.c_int64]
    functions.tensoropt_meter_state.argtypes = [
        ctypes.c_int64,
        ctypes.c_char_p,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_double),
    ]
    functions.tensoropt_meter_state.restype = ctypes.c_int64
    functions.tensoropt_meter_start_journal.argtypes = [ctypes.c_int64, ctypes.c_int64]
    functions.tensoropt_meter_read_journal.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]
    functions.tensoropt_meter_read_journal.restype = ctypes.c_int64
    functions.tensoropt_set_max_count.argtypes = [ctypes.c_int64]
    functions.tensoropt_mpi_initialized.restype = ctypes.c_int32
    for op in _OPS:
        tf.no_gradient(f"Tensoropt{op}")
    return ops, functions
