"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

__all__ = ["PARTIAL", "keep_name", "write_whole"]

PARTIAL = ".part"
"""How names of files and folders end that are still written; one that its writer did not finish is a leftover."""


def write_whole(path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o666) -> None:
    """Replaces a file by the new content or not at all, also for who reads meanwhile and for who pulls the plug.

    It is written beside its place under a name that nobody can predict, so that no link can wait there for it. A
    symbolic link at ``path`` stays, and what it leads to is replaced. What is no file, such as ``/dev/null`` or a pipe,
    is written to.

    Args:
        path: where to.
        content: text goes in as UTF-8.
        mode: permissions of the file, less the process's umask.

    Raises:
        OSError: there can be no such file; then nothing has changed and nothing is left behind.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "wb") as device:  # a folder raises
                device.write(data)
            return
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}{PARTIAL}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    keep_name(target.parent)


def keep_name(folder: Path) -> None:
    """Have the folder's new entry outlast a loss of power, where its file system can promise that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
