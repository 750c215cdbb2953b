"""Where measurements and compiled libraries are kept between runs: a folder that nobody else can write to.

What lies there is loaded into the process, or steers it. On a machine that others use, a file of a predictable name may
be theirs, so folder and files are checked as ``ssh`` checks its keys.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

from tensoropt.storage.whole_file import PARTIAL

__all__ = ["cache_directory", "distrust", "private_folder", "remove", "remove_leftovers"]

_LOG = logging.getLogger(__name__)
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Nothing takes as long to write; hosts that share a folder may differ by minutes on what time it is.
_LEFTOVER_S = 3600.0
_FALLING_BACK = threading.Lock()


def cache_directory() -> Path:
    """``$TENSOROPT_CACHE_DIR``, or ``tensoropt`` in ``$XDG_CACHE_HOME``, or ``~/.cache/tensoropt``, made if need be.

    Where others could write to that folder, or it cannot be made, a private folder of this process, which goes with it;
    a warning names both.

    Raises:
        OSError: there can be no private folder either.
    """
    folder = _wanted()
    if not folder.is_absolute():
        return private_folder(folder, "the user has no home folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = distrust(folder) or (None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written to")
    except OSError as error:
        reason = f"it cannot be used ({error.strerror or error})"
    return folder if reason is None else private_folder(folder, reason)


def private_folder(instead_of: Path, reason: str) -> Path:
    """A new folder for this process alone, the same one at every call; it is removed when the process ends.

    Args:
        instead_of: the folder that cannot be used, for the warning.
        reason: why not.

    Raises:
        OSError: none can be made.
    """
    with _FALLING_BACK:
        return _private_folder(instead_of, reason)


def distrust(path: Path) -> str | None:
    """Why a folder or file cannot be trusted: it is somebody else's or can be written by others; None if it can be.

    Of a folder also, whether anybody could put another in its place. Of a file also, whether it is none.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    resolved = Path(os.path.realpath(path))
    found = os.stat(resolved) if path.is_dir() else os.lstat(path)
    what = "folder" if stat.S_ISDIR(found.st_mode) else "file"
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        return f"'{path}' is no file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"the {what} '{path}' belongs to user {found.st_uid}, not to {os.geteuid()}, who runs this, or to root"
    if found.st_mode & _BY_OTHERS:
        return f"the {what} '{path}' can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    if what == "folder":
        for parent in resolved.parents:
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                return f"the folder '{parent}' above it can be written by anybody (mode {stat.S_IMODE(mode):04o})"
    return None


def remove_leftovers(folder: Path) -> None:
    """Removes what a process that was killed left in a cache folder amid writing, an hour or more ago.

    Raises:
        OSError: the folder cannot be listed.
    """
    for path in sorted(folder.glob(f"*{PARTIAL}")):
        try:
            old = time.time() - path.lstat().st_mtime > _LEFTOVER_S
        except FileNotFoundError:
            continue  # another process removes it, too
        if old:
            remove(path)


def remove(path: Path) -> None:
    """Removes a file, a link or a whole folder; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _LOG.debug("cannot remove the leftover '%s': %s", path, error)


def _wanted() -> Path:
    own = os.environ.get("TENSOROPT_CACHE_DIR")
    if own:
        return Path(own).absolute()
    # The XDG specification says to ignore a relative path: it would lead into whatever folder a job starts in.
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return Path(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")) / "tensoropt"


@functools.cache
def _private_folder(instead_of: Path, reason: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tensoropt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _LOG.warning(
        "The cache '%s' is not used: %s. '%s' is used instead and removed at the end, so the next run compiles and "
        "measures again. Make the cache a folder that only you can write to (chmod -R go-w, after a look at what is "
        "not yours), or name another one in TENSOROPT_CACHE_DIR.",
        instead_of,
        reason,
        folder,
    )
    return folder
