"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from tensoropt.storage.regular_file import check_name
from tensoropt.storage.unfinished_files import escaped, new_file, remove_leftovers

__all__ = ["keep_name", "write_whole"]


def write_whole(
    path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o666, follow_links: bool = True
) -> None:
    """Replaces a file by the new content or not at all, also for who reads meanwhile and for who pulls the plug.

    It is written beside its place under a name that nobody can predict; what a killed process has left of writing it
    before is removed. A symbolic link at ``path`` stays, and what it leads to is replaced. What is no file, such as
    ``/dev/null`` or a pipe, is written to. A link, pipe or device that another user has put there, who is not root, is
    replaced: that user does not choose what is written to.

    Args:
        path: where to.
        content: text goes in as UTF-8.
        mode: permissions of the file, less the process's umask.
        follow_links: False replaces every link, pipe and device, for files that a program names by itself.

    Raises:
        OSError: there can be no such file; then nothing has changed and nothing is left behind.
    """
    check_name(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(path)
    if follow_links and _is_meant(target):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(target).st_mode):
                with open(target, "wb") as device:  # a folder raises
                    device.write(data)
                return
        target = Path(os.path.realpath(target))
    else:
        target = Path(os.path.realpath(target.parent), target.name)
    remove_leftovers(target.parent, escaped(target.name))
    partial, handle = new_file(target, mode)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(handle)
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    finally:
        os.close(handle)  # not before it has its name: it would count as a leftover
    keep_name(target.parent)


def _is_meant(path: Path) -> bool:
    """Tells whether a path may be written through.

    A file or a folder may, and so may anything that this user or root put there.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain or found.st_uid in (os.geteuid(), 0)


def keep_name(folder: Path) -> None:
    """Have the folder's new entry outlast a loss of power, where its file system can promise that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
