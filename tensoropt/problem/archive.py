"""A `Problem` as one ``.npz`` file of plain arrays, which any program can write.

Arrays: ``names`` (N,); for node *i* ``node_time_s_i`` and ``node_memory_bytes_i``; ``edges`` (E, 2); for edge
*e* ``edge_time_s_e`` and, unless it is zero everywhere, ``edge_memory_bytes_e``; where nodes share
configurations, ``groups`` (N,); and, unless they are zero, the numbers ``constant_time_s`` and
``constant_memory_bytes``. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from tensoropt.cluster.host import available_memory_bytes
from tensoropt.errors import ProblemError
from tensoropt.problem.problem import Problem
from tensoropt.storage import open_regular, write_whole
from tensoropt.storage.document import cause_of, shortened

__all__ = ["load_problem", "save_problem"]

# What reading a damaged archive, or an array of it, may raise. NotImplementedError (of a RuntimeError) is for a way to
# compress that nothing knows, MemoryError for a shape that nothing holds.
_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    OSError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    Warning,
    tokenize.TokenError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
_CONSTANTS = ("constant_time_s", "constant_memory_bytes")
_INDEXED = re.compile(r"(node_time_s|node_memory_bytes|edge_time_s|edge_memory_bytes)_(0|[1-9][0-9]*)")


def save_problem(problem: Problem, path: str | Path) -> None:
    """Writes ``problem`` to exactly ``path`` (no suffix is added), whole or not at all; `load_problem` reads it.

    Raises:
        ProblemError: there can be no such file.
    """
    arrays: dict[str, np.ndarray] = {"names": np.array(problem.names, dtype=np.str_), "edges": problem.edges}
    for i in range(problem.nodes):
        arrays[f"node_time_s_{i}"] = problem.node_time_s[i]
        arrays[f"node_memory_bytes_{i}"] = problem.node_memory_bytes[i]
    for e in range(len(problem.edges)):
        arrays[f"edge_time_s_{e}"] = problem.edge_time_s[e]
        if problem.edge_memory_bytes[e].any():
            arrays[f"edge_memory_bytes_{e}"] = problem.edge_memory_bytes[e]
    if problem.groups is not None:
        arrays["groups"] = problem.groups
    for constant in _CONSTANTS:
        if getattr(problem, constant):
            arrays[constant] = np.array(getattr(problem, constant))
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    try:
        write_whole(path, stream.getvalue())
    except OSError as error:
        raise ProblemError(
            f"{_named(path)}: cannot be written: {cause_of(error)}. Give a file in a directory that exists and has "
            "room."
        ) from error


def load_problem(path: str | Path) -> Problem:
    """Reads a file written by `save_problem` or by another program.

    Raises:
        ProblemError: the file cannot be read, is no ``.npz``, or an array is missing, unknown or breaks the format; in
            at most 500 characters.
    """
    try:
        return _read_problem(path)
    except ProblemError as error:  # it may quote names of any length
        raise ProblemError(shortened(error)) from None


def _read_problem(path: str | Path) -> Problem:
    arrays = _read_arrays(path)

    def need(key: str, reason: str) -> np.ndarray:
        if key not in arrays:
            raise ProblemError(f"{_named(path)}: array {key!r} is missing ({reason}). Add it to the file.")
        return arrays[key]

    names = need("names", "one name per node")
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise ProblemError(
            f"{_named(path)}: array 'names' must be one-dimensional text, got shape "
            f"{names.shape} of {names.dtype}. Save it as a NumPy array of strings."
        )
    try:
        texts = [name.decode("utf-8") if isinstance(name, bytes) else str(name) for name in names.tolist()]
    except (ValueError, SystemError) as error:  # of bytes, or of text that is no text; NumPy raises either
        raise ProblemError(
            f"{_named(path)}: array 'names' must be text or UTF-8, got what cannot be read ({error}). Save "
            "it as a NumPy array of strings."
        ) from error
    edges = need("edges", "shape (E, 2), which may be (0, 2)")
    n, e = len(texts), len(edges) if edges.ndim else 0
    for key in sorted(arrays):
        indexed = _INDEXED.fullmatch(key)
        limit = 0 if indexed is None else (n if indexed[1].startswith("node") else e)
        if key in ("names", "edges", "groups", *_CONSTANTS) or (indexed is not None and int(indexed[2]) < limit):
            continue
        raise ProblemError(
            f"{_named(path)}: array {key!r} is unknown for {n} nodes and {e} edges. Remove it, or correct its name."
        )
    return Problem(
        texts,
        [need(f"node_time_s_{i}", f"names has {n} nodes") for i in range(n)],
        [need(f"node_memory_bytes_{i}", f"names has {n} nodes") for i in range(n)],
        edges,
        [need(f"edge_time_s_{i}", f"edges has {e} rows") for i in range(e)],
        [arrays.get(f"edge_memory_bytes_{i}") for i in range(e)],
        arrays.get("groups"),
        *(arrays.get(constant, 0.0) for constant in _CONSTANTS),
    )


def _read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of the file; equal ones are held once, since layers repeat."""
    named = _named(path)
    remedy = "Save it again with save_problem or numpy.savez, without objects."
    try:
        opened = open_regular(path)
    except OSError as error:
        raise ProblemError(
            f"{named}: cannot be read: {cause_of(error)}. Give a file that save_problem or numpy.savez wrote."
        ) from error
    with opened as stream:
        try:
            is_one_array = stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX
            archive = None if is_one_array else zipfile.ZipFile(stream)
        except _DAMAGE as error:
            raise ProblemError(
                f"{named}: must be an .npz archive of plain arrays, but reading it failed: {_cause(error)}. {remedy}"
            ) from error
        if archive is None:
            raise ProblemError(f"{named}: must be an .npz archive, got a single array. Save it with numpy.savez.")
        room_bytes = available_memory_bytes() // 2  # searches need some, too
        seen: dict[tuple[bytes, str, tuple[int, ...]], np.ndarray] = {}
        arrays: dict[str, np.ndarray] = {}
        with archive:
            try:
                _check_nothing_is_lost(archive, stream)
            except _DAMAGE as error:
                raise ProblemError(
                    f"{named}: must be an .npz archive of plain arrays, but reading it failed: {_cause(error)}. "
                    f"{remedy}"
                ) from error
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                shown = shortened(repr(key), 60)
                if key in arrays:
                    raise ProblemError(f"{named}: array {shown} is there twice. {remedy}")
                if member.file_size > room_bytes:
                    raise ProblemError(
                        f"{named}: must fit into half of the {available_memory_bytes():,} bytes of memory that are "
                        f"free, but array {shown} has {member.file_size:,}. Use a machine with more memory."
                    )
                try:
                    array = _read_array(archive, member)
                except _DAMAGE as error:
                    raise ProblemError(
                        f"{named}: must be an .npz archive of plain arrays, but reading array {shown} failed: "
                        f"{_cause(error)}. {remedy}"
                    ) from error
                digest = hashlib.sha256(array.tobytes()).digest()
                arrays[key] = seen.setdefault((digest, array.dtype.str, array.shape), array)
                if arrays[key] is array:
                    room_bytes -= array.nbytes
        return arrays


def _check_nothing_is_lost(archive: zipfile.ZipFile, stream: BinaryIO) -> None:
    """Checks that the archive's list of members, which is at its end, lists all that comes before: some arrays may be
    left out of a problem, and one that is lost would be missed by nobody.

    Raises:
        Exception: one of ``_DAMAGE``.
    """
    end = 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        descriptor_bytes = 24 if member.flag_bits & 8 else 0  # what a program that cannot go back writes after its data
        if not end <= member.header_offset <= end + descriptor_bytes:
            raise ValueError(f"there are bytes that belong to no array from {end:,} on")
        stream.seek(member.header_offset + 26)
        end = stream.tell() + 4 + sum(struct.unpack("<HH", stream.read(4))) + member.compress_size
    if not end <= archive.start_dir <= end + 24:
        raise ValueError(f"there are bytes that belong to no array from {end:,} on")


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array that takes as many bytes as its member of the archive has left after its header, which may lie.

    Raises:
        Exception: one of ``_DAMAGE``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a header that NumPy reads by guessing
        with archive.open(member) as stream:
            version = npy.read_magic(stream)
            read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
            if read_header is None:
                raise ValueError(f"it has version {version} of the format")
            shape, _, dtype = read_header(stream)
            if dtype.hasobject:
                raise ValueError("it has Python objects, which may run anything when they are read")
            left = member.file_size - stream.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"an array of shape {shape} and dtype {dtype} is not what its {left} bytes hold")
        with archive.open(member) as stream:
            return npy.read_array(stream, allow_pickle=False)


def _named(path: str | Path) -> str:
    return f"Problem file {shortened(repr(str(path)), 200)}"


def _cause(error: BaseException) -> str:
    said = shortened(error, 160)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
