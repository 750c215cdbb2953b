"""The files of checkpoints in TensorFlow's V2 format: ``PREFIX.index`` and ``PREFIX.data-00000-of-00004`` and so on.

A checkpoint is its index: as long as that is the old one, the old checkpoint is there. So all of a new one is written
and merged in a folder of its own beside its place, its data files then get names that no file has yet, and last the
index takes its place.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2
from tensorflow.python.checkpoint import checkpoint_management  # what is public of it warns that it is old

from tensoropt.errors import CheckpointError
from tensoropt.exec.program.checkpoint import STATE_PREFIX, write_tensors
from tensoropt.storage import PARTIAL, discard_folder, escaped, keep_name, new_folder, remove_leftovers, write_whole

__all__ = [
    "begin",
    "damage",
    "discard",
    "exists",
    "is_visible",
    "keep_through_power_loss",
    "name_last",
    "part_of",
    "publish",
    "remove",
    "saved_at",
    "write_file",
]

_files = tf.io.gfile
_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
# A network's file system may show other hosts what is new only after seconds.
_VISIBLE_S = 5.0
_POLL_S = 0.1
# Of a file system without locks, such as a cloud's: no save takes as long.
_LEFTOVER_S = 3600.0


def begin(prefix: str, save_path: str) -> str:
    """Makes the folder that the parts of a checkpoint are written to, and removes what killed saves have left.

    As in TensorFlow, the folder of the checkpoint is made if there is none. What another job is at stays.

    Args:
        prefix: of the checkpoint.
        save_path: the prefix without the step.

    Raises:
        CheckpointError: there can be no such folder.
    """
    folder, name = os.path.split(prefix)
    leftover = rf"{escaped(os.path.basename(save_path))}(-\d+)?"
    local = _local(folder)
    try:
        if folder:
            _files.makedirs(folder)
        if local is not None:
            remove_leftovers(local or ".", leftover)
            return os.path.join(folder, new_folder(local or ".", name).name)
        for entry in _files.listdir(folder):
            if re.fullmatch(rf"\.{leftover}\.[0-9a-f]{{16}}{re.escape(PARTIAL)}/?", entry):
                _discard_old(os.path.join(folder, entry))
        made = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{PARTIAL}")
        _files.mkdir(made)
    except (tf.errors.OpError, OSError) as error:
        said = getattr(error, "message", None) or str(error)
        raise CheckpointError(f"Saver.save: '{folder or '.'}' cannot be written to: {said}.") from error
    return made


def _local(path: str) -> str | None:
    """The path as the operating system knows it; None in a cloud, which has names like gs://…"""
    scheme, separator, rest = path.partition("://")
    return path if not separator else rest if scheme == "file" else None


def _discard_old(folder: str) -> None:
    """Removes a folder of a cloud, where there are no locks, if nothing in it is young."""
    written_s = [_files.stat(os.path.join(folder, each)).mtime_nsec / 1e9 for each in _files.listdir(folder)]
    if written_s and time.time() - max(written_s) > _LEFTOVER_S:
        _files.rmtree(folder)


def part_of(folder: str, rank: int) -> str:
    """The prefix of what a rank writes."""
    return os.path.join(folder, f"part-{rank:05d}")


def is_visible(path: str) -> bool:
    """Waits until this host sees a file or a folder that another host may have just made; False if it never does."""
    deadline = time.monotonic() + _VISIBLE_S
    while not _files.exists(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def keep_through_power_loss(prefix: str) -> None:
    """Writes the files of a checkpoint through to the disk, where they are local files."""
    for path in sorted(_matching(prefix)):
        local = _local(path)
        if local is not None and stat.S_ISREG(os.lstat(local).st_mode):
            handle = os.open(local, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def publish(folder: str, parts: Sequence[str], prefix: str) -> None:
    """Makes one checkpoint of its parts and puts it in its place, whole or not at all; the old one goes.

    Args:
        folder: that :func:`begin` made.
        parts: prefixes in it.
        prefix: of the checkpoint.

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    old = _matching(prefix)
    taken = {int(match[2]) for match in map(_data_file(prefix).fullmatch, old) if match}
    count = next(count for count in range(len(parts), len(parts) + len(taken) + 1) if count not in taken)
    for number in range(len(parts), count):  # one number more, so that the checkpoint has one file more
        extra = os.path.join(folder, f"more-{number}")
        write_tensors(extra, {f"{STATE_PREFIX}part/{number}": np.int64(number)})
        parts = [*parts, extra]
    merged = os.path.join(folder, "merged")
    with tf.Graph().as_default() as graph:
        merge = tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=list(parts), destination_prefix=merged, delete_old_dirs=False
        )
    with tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
        session.run(merge)
    keep_through_power_loss(merged)
    new = sorted(_matching(merged), key=lambda path: path.endswith(".index"))
    for path in new:
        _files.rename(path, prefix + path.removeprefix(merged), overwrite=True)
    kept = {prefix + path.removeprefix(merged) for path in new}
    local = _local(os.path.dirname(prefix))
    if local is not None:
        keep_name(Path(local))
    for path in old:
        if path not in kept:
            _files.remove(path)
    discard(folder)


def discard(folder: str) -> None:
    """Removes a folder that :func:`begin` made, if it is there.

    Raises:
        tf.errors.OpError | OSError: it cannot be removed.
    """
    local = _local(folder)
    if local is not None:
        discard_folder(local)
    elif _files.exists(folder):
        _files.rmtree(folder)


def write_file(path: str, content: str | bytes) -> None:
    """Writes a file of a name that was not chosen by the user, whole or not at all; a link there is replaced.

    Raises:
        tf.errors.OpError | OSError: it cannot be written.
    """
    local = _local(path)
    if local is not None:
        write_whole(local, content, follow_links=False)
    else:
        partial = f"{path}.{secrets.token_hex(8)}{PARTIAL}"
        with _files.GFile(partial, "wb") as file:
            file.write(content)
        _files.rename(partial, path, overwrite=True)


def name_last(state_file: str, path: str, kept: Sequence[str], relative: bool) -> None:
    """Writes the file that names the last checkpoint, whole or not at all.

    Args:
        state_file: the file.
        path: of the checkpoint.
        kept: all that are kept, from the oldest to the newest.
        relative: whether their paths are to be relative to the file's folder.

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    folder = os.path.dirname(state_file)

    def written(name: str) -> str:
        return os.path.relpath(name, folder) if relative and os.path.isabs(name) else name

    state = checkpoint_management.generate_checkpoint_state_proto(folder, written(path), [*map(written, kept)])
    write_file(state_file, text_format.MessageToString(state))


def exists(prefix: str) -> bool:
    """Tells whether a checkpoint has files, in TensorFlow's present or older format."""
    return bool(checkpoint_management.checkpoint_exists_internal(prefix))


def saved_at(prefix: str) -> float:
    """Returns the time at which a checkpoint was saved, in seconds since 1970."""
    index = f"{prefix}.index"
    return float(_files.stat(index if _files.exists(index) else prefix).mtime_nsec) / 1e9


def remove(prefix: str, meta_graph_suffix: str) -> None:
    """Removes a checkpoint: first its index, so that what is left is none.

    Raises:
        tf.errors.OpError: some of it cannot be removed.
    """
    graph = f"{prefix}.{meta_graph_suffix}"
    for path in [*reversed(_matching(prefix)), *([graph] if _files.exists(graph) else [])]:
        _files.remove(path)


def _matching(prefix: str) -> list[str]:
    """The files of a checkpoint that there are, sorted."""
    folder, name = os.path.split(prefix)
    data = _data_file(name)
    found = [entry for entry in _files.listdir(folder or ".") if entry == f"{name}.index" or data.fullmatch(entry)]
    return [os.path.join(folder, entry) for entry in sorted(found)]


def _data_file(prefix: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(prefix)}\.data-(\d{{5,}})-of-(\d{{5,}})")


# ------------------------------------------------------------------------------------------------------------- damage


def damage(prefix: str) -> str:
    """Describes the damage to the files of a checkpoint, as far as sizes show it; empty if there is none.

    The index gives the length of each data file. Every part of a data file has a checksum, which TensorFlow checks.
    """
    path = f"{prefix}.index"
    if not _files.exists(path):
        # TensorFlow 1 had a format of one file before.
        return "" if exists(prefix) else f"there is no file '{path}'"
    with _files.GFile(path, "rb") as file:
        content = file.read()
    try:
        needed = _needed_bytes(content)
    except (ValueError, IndexError, struct.error, DecodeError) as error:
        return f"the file '{path}', of {len(content)} bytes, is no index of a checkpoint, or not all of it ({error})"
    for number, size in sorted(needed.items()):
        data = f"{prefix}.data-{number[0]:05d}-of-{number[1]:05d}"
        if not _files.exists(data):
            return f"there is no file '{data}'"
        there = _files.stat(data).length
        if there < size:
            return f"the file '{data}' has {there:,} bytes and must have {size:,}"
    return ""


def _needed_bytes(content: bytes) -> dict[tuple[int, int], int]:
    """Returns the length of each data file, by the file's number and the number of files.

    Raises:
        ValueError: it is no index.
    """
    if len(content) < _FOOTER_BYTES or struct.unpack("<Q", content[-8:])[0] != _MAGIC:
        raise ValueError("its end is missing")
    position = len(content) - _FOOTER_BYTES
    for _ in range(2):  # where a table of other things is, and its size
        _, position = _varint(content, position)
    start, position = _varint(content, position)
    size, _ = _varint(content, position)
    count = 0
    needed: dict[tuple[int, int], int] = {}
    for _, handle in _entries(content, start, size):
        block, position = _varint(handle, 0)
        for key, value in _entries(content, block, _varint(handle, position)[0]):
            if not key:
                count = tensor_bundle_pb2.BundleHeaderProto.FromString(value).num_shards
                continue
            entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
            if not entry.slices:  # what is in slices has an entry for each of them, too
                number = entry.shard_id, count
                needed[number] = max(needed.get(number, 0), entry.offset + entry.size)
    return needed


def _entries(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block of a table (LevelDB's format)."""
    if len(content) < start + size + _TRAILER_BYTES:
        raise ValueError("a part of it is missing")
    if content[start + size]:  # compressed, which TensorFlow itself never does
        raise ValueError("of a kind that is unknown")
    restarts = struct.unpack("<I", content[start + size - 4 : start + size])[0]
    position, end = start, start + size - 4 * (restarts + 1)
    key = b""
    while position < end:
        shared, position = _varint(content, position)
        own, position = _varint(content, position)
        length, position = _varint(content, position)
        key = key[:shared] + content[position : position + own]
        position += own
        yield key, content[position : position + length]
        position += length


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where the next one begins."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
