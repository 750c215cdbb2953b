"""The log of tensoropt on standard error: the logger ``tensoropt``, rank 0's lines, at the level TENSOROPT_LOG.

Importing this module changes nothing. A script's own configuration of logging, before or after, takes precedence.
"""

from __future__ import annotations

import logging
import os
import sys

from tensoropt.errors import SessionError, did_you_mean
from tensoropt.storage.document import printable

__all__ = ["LEVELS", "LOG_VARIABLE", "is_launched", "is_speaker", "launched_rank", "log_level", "set_up_logging"]

LOG_VARIABLE = "TENSOROPT_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_DEFAULT = "info"
# What launchers of MPI call a process's rank, for what is said and done before MPI is started.
_MPI_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_RANK_VARIABLES = (*_MPI_RANK_VARIABLES, "SLURM_PROCID")

_log = logging.getLogger("tensoropt")


def log_level() -> int:
    """The level of ``logging`` that TENSOROPT_LOG names; ``info`` where it names none.

    Raises:
        SessionError: it is none of ``LEVELS``.
    """
    text = os.environ.get(LOG_VARIABLE) or _DEFAULT
    if text not in LEVELS:
        raise SessionError(
            f"{LOG_VARIABLE}: must be one of {', '.join(map(repr, LEVELS))}, got {text!r}.{did_you_mean(text, LEVELS)} "
            f"Leave it unset for {_DEFAULT!r}."
        )
    return LEVELS[text]


def set_up_logging(rank: int | None = None) -> None:
    """Makes the logger ``tensoropt`` write to standard error, unless the script has configured it or its parents.

    The level is TENSOROPT_LOG's, or else the one that the script gave the logger. Ranks other than the first write
    errors only, TensorFlow's included; at ``debug`` all ranks write everything.

    Args:
        rank: this process's, once it is known.

    Raises:
        SessionError: TENSOROPT_LOG is no level.
    """
    level = log_level()
    if rank is not None:
        _handler.rank = rank
    if not is_speaker() and level > logging.DEBUG:
        # What TensorFlow warns of, a deprecated call, say, it warns of on every rank.
        of_tensorflow = logging.getLogger("tensorflow")
        of_tensorflow.setLevel(max(of_tensorflow.level, logging.ERROR))
    if _handler not in _log.handlers and not _log.hasHandlers():
        _log.addHandler(_handler)
        if _log.level == logging.NOTSET:
            _log.setLevel(level)
    if os.environ.get(LOG_VARIABLE):
        _log.setLevel(level)


def is_speaker() -> bool:
    """Tells whether this rank is the one that logs."""
    return _handler.rank == 0


def is_launched() -> bool:
    """Tells whether a launcher of MPI started this process as a rank."""
    return any(name in os.environ for name in _MPI_RANK_VARIABLES)


def launched_rank() -> int:
    """The rank by which this process was started; 0 for one that no launcher numbers."""
    found = [os.environ[name] for name in _RANK_VARIABLES if os.environ.get(name, "").isdecimal()]
    return int(found[0]) if found else 0


class _Handler(logging.Handler):
    """Writes a record as one line, with the rank where that is not the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.rank = launched_rank()

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.getLogger().handlers or any(handler is not self for handler in _log.handlers):
            return False  # the script has configured logging since, and gets the record there
        return is_speaker() or record.levelno >= logging.ERROR or _log.level <= logging.DEBUG

    def emit(self, record: logging.LogRecord) -> None:
        try:
            whose = "" if is_speaker() else f"rank {self.rank}: "
            kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
            # Looked up each time: tests and notebooks replace it.
            sys.stderr.write(f"tensoropt: {whose}{kind}{printable(self.format(record))}\n")
            sys.stderr.flush()
        except Exception:  # as all handlers of ``logging``: a line that cannot be written ends no training
            self.handleError(record)


_handler = _Handler()
