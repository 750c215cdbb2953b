"""The cache folder for measurements and compiled libraries: nobody else can write to it.

What lies there is loaded into the process, or steers it. On a machine that others use, a file of a predictable name may
be theirs, so folder and files are checked as ``ssh`` checks its keys.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path

from tensoropt.storage.regular_file import distrust

__all__ = ["cache_directory", "private_folder", "wanted_cache"]

_LOG = logging.getLogger(__name__)
_FALLING_BACK = threading.Lock()


def cache_directory() -> Path:
    """``$TENSOROPT_CACHE_DIR``, or ``tensoropt`` in ``$XDG_CACHE_HOME``, or ``~/.cache/tensoropt``, made if need be.

    The path has no links: they could be turned after the folders that they lead through were looked at.

    Where others could write to that folder or put another in its place, or it cannot be made, a private folder of this
    process, which goes with it; a warning names both.

    Raises:
        OSError: there can be no private folder either.
    """
    folder, reason = wanted_cache()
    return folder if reason is None else private_folder(folder, reason)


def wanted_cache() -> tuple[Path, str | None]:
    """The folder that the environment names, made if need be, and why it is not used; None if it is."""
    folder = _wanted()
    if not folder.is_absolute():
        return folder, "the user has no home folder"
    try:
        _make(folder)
        resolved = Path(os.path.realpath(folder))
        reason = distrust(resolved) or (None if os.access(resolved, os.W_OK | os.X_OK) else "it cannot be written to")
    except OSError as error:
        return folder, f"it cannot be used ({error.strerror or error})"
    return (resolved, None) if reason is None else (folder, reason)


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


def _make(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, for this user alone."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _wanted() -> Path:
    own = os.environ.get("TENSOROPT_CACHE_DIR")
    if own:
        return Path(own).absolute()
    # The XDG specification says to ignore a relative path: it would lead into whatever folder a job starts in.
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return Path(shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")) / "tensoropt"


@functools.cache
def _private_folder(instead_of: Path, reason: str) -> Path:
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="tensoropt-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    unsafe = distrust(folder)
    if unsafe is not None:
        raise OSError(f"{reason}; nor can a folder for temporary files be used: {unsafe}")
    _LOG.warning(
        "The cache '%s' is not used: %s. '%s' is used instead and removed at the end, so the next run compiles and "
        "measures again. Make the cache a folder that only you can write to, in folders that only you and root can "
        "write to (chmod -R go-w, after a look at what is not yours), or name another one in TENSOROPT_CACHE_DIR.",
        instead_of,
        reason,
        folder,
    )
    return folder
