"""Shared memory that killed jobs have left.

Open MPI keeps what ranks of a host exchange in files of ``/dev/shm``, or of the folder that its users name
(:func:`segments_folder`). Its launcher removes them after a rank that was killed; nobody does where the launcher was
killed, too, or there was none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import stat
import time
from pathlib import Path

__all__ = ["FOLDER_SETTINGS", "remove_segments", "segments_folder"]

_log = logging.getLogger("tensoropt")

_SEGMENT = re.compile(r"(?:sm|vader)_segment\.(?P<host>.+)\.(?P<user>[0-9]+)\.[0-9a-f]+\.[0-9]+")
# Open MPI's parameters, as variables of the environment: of version 5, and of version 4.
FOLDER_SETTINGS = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
# Between its making and its use, a segment looks like one that nobody uses.
_YOUNG_S = 60.0


def segments_folder() -> Path:
    """The folder in which Open MPI keeps its segments; there is none on systems but Linux."""
    return Path(next(filter(None, map(os.environ.get, FOLDER_SETTINGS)), "/dev/shm"))


def remove_segments(folder: Path | None = None, processes: Path = Path("/proc")) -> int:
    """Removes this user's segments of Open MPI on this host that no process uses.

    Args:
        folder: where they are; ``None`` for :func:`segments_folder`.
        processes: where the system says what processes use.

    Returns:
        How many bytes there were.
    """
    folder = folder or segments_folder()
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):  # there is no such folder
        for entry in os.scandir(folder):
            match = _SEGMENT.fullmatch(entry.name)
            if match and match["host"] == platform.node() and match["user"] == str(os.geteuid()):
                seen = entry.stat(follow_symlinks=False)
                is_ours = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid()
                if is_ours and time.time() - seen.st_mtime > _YOUNG_S:
                    found[entry.path] = seen.st_size
    if not found:
        return 0
    removed = 0
    for path in found.keys() - _used(processes, folder):
        with contextlib.suppress(OSError):  # another rank removes it, too
            os.unlink(path)
            removed += found[path]
    if removed:
        _log.info(
            "%.0f MiB of shared memory, which killed jobs had left in %s, are free again", removed / 2**20, folder
        )
    return removed


def _used(processes: Path, folder: Path) -> set[str]:
    """The files of a folder that processes have in their memory.

    A process that does not say is another user's, or one that the system protects, which is no rank. A rank that is not
    seen, in another container, has joined the memory when it started, and needs the names no more.
    """
    used: set[str] = set()
    for number in filter(str.isdecimal, os.listdir(processes)):
        with contextlib.suppress(OSError):
            lines = (processes / number / "maps").read_text(errors="surrogateescape").splitlines()
            used.update(line[line.index("/") :] for line in lines if f"{folder}/" in line)
    return used
