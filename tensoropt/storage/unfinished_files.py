"""Files and folders that are still written, under a name beside their place that nobody can predict.

Who makes one holds a lock as long as it is not finished, which ends with the process. So the next one tells what a
killed process has left from what a living one is at, and removes no more than that: whoever may write to the folder may
have put something else there by such a name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import re
import secrets
import stat
import time
from pathlib import Path

__all__ = ["PARTIAL", "discard_folder", "escaped", "new_file", "new_folder", "remove_leftovers"]

PARTIAL = ".part"
"""How names of files and folders end that are still written; one that its writer did not finish is a leftover."""

_LOG = logging.getLogger(__name__)
# In every folder, since a lock of the folder itself is not seen by other hosts; it also says that we have made it.
_OWNER = "tensoropt.lock"
_NOFOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
# Nothing takes as long to write; hosts that share a folder may differ by minutes on what time it is.
_LEFTOVER_S = 3600.0
# The folders that this process is writing to, with open descriptors of them and of their locks.
_folders: dict[str, tuple[int, int]] = {}


def new_file(target: Path, mode: int) -> tuple[Path, int]:
    """An empty file to become ``target``, and its descriptor; open as long as it is not in its place.

    Args:
        target: what it becomes.
        mode: permissions, less the process's umask.

    Raises:
        OSError: there can be none.
    """
    while True:
        path = target.with_name(_new_name(target.name))
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW, mode)
        if _is_ours(handle, path):
            return path, handle


def new_folder(parent: str | os.PathLike[str], name: str) -> Path:
    """An empty folder of this process and its user, to make something of that name in; see :func:`discard_folder`.

    Raises:
        OSError: there can be none.
    """
    while True:
        path = Path(parent, _new_name(name))
        os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW)
        try:
            lock = os.open(_OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW, 0o600, dir_fd=folder)
        except OSError:
            os.close(folder)
            path.rmdir()
            raise
        if _is_ours(lock, path / _OWNER):
            _folders[os.path.abspath(path)] = folder, lock
            return path
        os.close(folder)


def discard_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder that :func:`new_folder` made in this process, with the files in it; nothing if it is gone.

    Raises:
        OSError: it cannot be removed, or there is now something else in it or in its place.
    """
    opened = _folders.pop(os.path.abspath(path), None)
    if opened is not None:
        folder, lock = opened
        try:
            _remove_folder(Path(path), folder)
        finally:
            os.close(folder)
            os.close(lock)


def remove_leftovers(parent: str | os.PathLike[str], name: str = ".+") -> None:
    """Removes what killed processes of this user have left in a folder, unfinished.

    Links that have such a name are removed, never what they lead to. What has the name, and was not made here, stays,
    as does what a living process is at; of other hosts, whose locks may not be seen here, what is younger than an hour.

    Args:
        parent: the folder.
        name: a regular expression for the names of what was to be made.

    Raises:
        OSError: the folder cannot be listed.
    """
    leftover = re.compile(rf"\.(?:{name})\.([0-9a-f]{{8}})[0-9a-f]{{8}}{re.escape(PARTIAL)}", re.DOTALL)
    for entry in sorted(os.listdir(parent)):
        match = leftover.fullmatch(entry)
        if match:
            path = Path(parent, entry)
            try:
                _remove_if_left(path, is_of_this_host=match[1] == _host())
            except FileNotFoundError:
                continue  # another process removes it, too
            except OSError as error:
                _LOG.debug("cannot remove the leftover '%s': %s", path, error)


def escaped(name: str) -> str:
    """A regular expression for :func:`remove_leftovers` that matches what is made under a name."""
    return re.escape(_cut(name))


def _new_name(name: str) -> str:
    return f".{_cut(name)}.{_host()}{secrets.token_hex(4)}{PARTIAL}"


def _cut(name: str) -> str:
    """A name with room for more: file systems take 255 bytes."""
    return os.fsdecode(os.fsencode(name)[:200])


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_ours(handle: int, path: Path) -> bool:
    """Locks a new file; False, and it is closed, if another process has taken it for a leftover."""
    locked = _lock(handle)
    try:
        if locked is not False and os.path.samestat(os.fstat(handle), os.lstat(path)):
            return True
    except FileNotFoundError:
        pass  # removed between its making and its lock
    os.close(handle)
    return False


def _lock(handle: int) -> bool | None:
    """Locks a file, and tells whether it is locked now; None on a file system that has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_if_left(path: Path, *, is_of_this_host: bool) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        path.unlink()
        return
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(found.st_mode)):
        return
    old = time.time() - found.st_mtime > _LEFTOVER_S
    with contextlib.ExitStack() as stack:
        folder = None
        if is_folder:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW)
            stack.callback(os.close, folder)
        try:
            handle = os.open(path if folder is None else _OWNER, os.O_RDWR | os.O_NONBLOCK | _NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            if folder is not None and old:
                path.rmdir()  # killed before it had a lock; one with anything in it is not ours
            return
        stack.callback(os.close, handle)
        opened = os.fstat(handle)
        if opened.st_uid != os.geteuid() or not stat.S_ISREG(opened.st_mode):
            return
        locked = _lock(handle)
        if locked is False or not (old or (locked and is_of_this_host)):
            return
        if folder is None:
            path.unlink()
        else:
            _remove_folder(path, folder)


def _remove_folder(path: Path, folder: int) -> None:
    """Removes the files of an open folder, then the folder; by its descriptor, whatever has its name by now.

    The lock goes last: until then another process knows it for a leftover.
    """
    for name in sorted(os.listdir(folder), key=lambda name: name == _OWNER):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()
