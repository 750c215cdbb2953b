"""Reading files that others may have put there: only what is a file, of bounded size, and what was looked at."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["MOST_BYTES", "check_name", "distrust", "open_regular", "read_regular"]

MOST_BYTES = 2**28
"""The most bytes of a document: that of a plan of a million operators."""

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | os.PathLike[str], *, trusted: bool = False) -> BinaryIO:
    """A file, open for reading. What is no file is not even opened: a pipe may wait for ever, a device never end.

    Args:
        path: of the file.
        trusted: whether it must be this user's or root's, no link, and such that nobody else can write to it. This is
            so of what was opened, whatever has its name by now.

    Raises:
        OSError: there is none, it cannot be read, or it is not what it must be.
    """
    check_name(path)
    found = os.lstat(path) if trusted else os.stat(path)
    _check(found, path, trusted)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (os.O_NOFOLLOW if trusted else 0))
    try:
        _check(os.fstat(handle), path, trusted)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | os.PathLike[str], *, trusted: bool = False, most_bytes: int = MOST_BYTES) -> bytes:
    """Reads the content of a file of bounded size; see :func:`open_regular`.

    Raises:
        OSError: as there, or the file has more bytes.
    """
    with open_regular(path, trusted=trusted) as file:
        content = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
    if content is None or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", os.fspath(path))
    return content


def check_name(path: str | os.PathLike[str]) -> None:
    """Checks that a file can have such a name, for which Python has an error of another kind.

    Raises:
        OSError: none can.
    """
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise OSError(errno.EINVAL, "no file can have such a name", os.fspath(path))


def distrust(folder: Path) -> str | None:
    """Why a folder cannot be trusted: somebody else could write to it, or put another in its place; None if it can be.

    It and all folders above it must be this user's or root's, and those above that others may write to must be sticky,
    as ``/tmp`` is, so that nobody renames what is another's.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    resolved = Path(os.path.realpath(folder))
    found = os.stat(resolved)
    if not stat.S_ISDIR(found.st_mode):
        return f"'{folder}' is no folder"
    reason = _why_not("folder", folder, found)
    for parent in resolved.parents:
        above = os.stat(parent)
        if not above.st_mode & stat.S_ISVTX or above.st_uid not in (os.geteuid(), 0):
            reason = reason or _why_not("folder", parent, above, " above it")
    return reason


def _check(found: os.stat_result, path: str | os.PathLike[str], trusted: bool) -> None:
    if trusted and stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a link", os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_such, name in _KINDS if is_such(found.st_mode)), "something else")
        number = errno.EISDIR if kind == "a folder" else errno.EINVAL
        raise OSError(number, f"it is {kind}, not a file", os.fspath(path))
    reason = _why_not("file", path, found) if trusted else None
    if reason is not None:
        raise PermissionError(reason)


def _why_not(what: str, path: str | os.PathLike[str], found: os.stat_result, which: str = "") -> str | None:
    if found.st_uid not in (os.geteuid(), 0):
        return (
            f"the {what} '{path}'{which} belongs to user {found.st_uid}, not to {os.geteuid()}, who runs this, or to "
            "root"
        )
    if found.st_mode & _BY_OTHERS:
        return f"the {what} '{path}'{which} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None
