"""The start of MPI, agreement between ranks, and the end of the whole job when one rank fails."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines.watchdog import Activity, StallWatchdog, stall_limit_s

__all__ = ["agree", "agree_on_success", "install_abort_hook", "keep_first_ranks", "start_mpi", "watch"]

_DRAIN_S = 0.2  # mpirun forwards what a rank printed; without a moment to do so, an abort may cut it off


# The ranks that go on, once others were found to be surplus. As much this process's as MPI's own world is.
_kept: Any = None


def start_mpi() -> Any:
    """Start MPI, if nobody has yet, and return the world's communicator.

    Returns:
        ``mpi4py.MPI.COMM_WORLD``; after :func:`keep_first_ranks`, that of the ranks that were kept.

    Raises:
        EngineError: mpi4py or an MPI library is missing, or MPI was started without thread support.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineError(
            f"MPI cannot be started: mpi4py and an MPI library that it can load are needed. Got "
            f"{type(error).__name__}: {error}. Install both with: pip install 'tensoropt[mpi]'"
        ) from error
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise EngineError(
            "MPI must be started with thread support of at least MPI_THREAD_SERIALIZED, because TensorFlow "
            f"runs ops in threads of its own. Got level {MPI.Query_thread()}. Leave mpi4py.rc.thread_level "
            "at 'multiple'."
        )
    return MPI.COMM_WORLD if _kept is None else _kept


def keep_first_ranks(count: int) -> bool:
    """Make the first ``count`` ranks the world, for good; collective.

    A rank that is not kept must end its program without another collective. Its own end then waits, idle, in
    MPI_Finalize until the others end too: a process that has started MPI cannot leave earlier without being taken
    for one that crashed.

    Args:
        count: How many ranks go on, with the numbers that they have.

    Returns:
        Whether this rank is one of them.
    """
    global _kept
    from mpi4py import MPI

    world = start_mpi()
    part = world.Split(0 if world.rank < count else MPI.UNDEFINED, world.rank)
    if part == MPI.COMM_NULL:
        return False
    _kept = part
    return True


def agree(comm: Any, name: str, value: str | bytes) -> None:
    """Compare a value over all ranks; collective.

    Args:
        comm: An mpi4py communicator, or anything with its ``allgather`` and ``rank``.
        name: What is compared, for the message.
        value: This rank's value. Only a digest of it is sent.

    Raises:
        CollectiveError: Ranks differ; raised on every rank, with the ranks sorted by what they have.
    """
    data = value.encode() if isinstance(value, str) else value
    digests = comm.allgather(hashlib.sha256(data).hexdigest())
    if len(set(digests)) == 1:
        return
    ranks: dict[str, list[int]] = {}
    for rank, digest in enumerate(digests):
        ranks.setdefault(digest, []).append(rank)
    parts = "; ".join(f"{digest[:12]} on rank{'s' * (len(who) > 1)} {_ranges(who)}" for digest, who in ranks.items())
    raise CollectiveError(
        f"The {name} must be the same on all {len(digests)} ranks. Got {parts}. Run the same program with "
        "the same arguments, files and package versions on every rank."
    )


def agree_on_success(comm: Any, step: str, error: BaseException | None) -> None:
    """Raise on every rank if ``step`` failed on any of them; collective.

    Args:
        comm: An mpi4py communicator, or anything with its ``allgather`` and ``rank``.
        step: What was tried, for the message.
        error: What this rank's try ended with; None if it went well.

    Raises:
        EngineError: Some rank failed. On a rank that failed itself, it is chained to the rank's own error.
    """
    failures = comm.allgather(None if error is None else f"{type(error).__name__}: {error}")
    failed = [rank for rank, failure in enumerate(failures) if failure is not None]
    if failed:
        raise EngineError(
            f"{step} must succeed on all {len(failures)} ranks. It failed on rank{'s' * (len(failed) > 1)} "
            f"{_ranges(failed)}: {failures[failed[0]]}"
        ) from error


def install_abort_hook(comm: Any | None = None) -> bool:
    """End the whole job when this rank ends by an exception that nobody caught, in whatever thread.

    Without it the other ranks wait forever in their next collective. The traceback is printed first, each
    line led by the rank, so that the one which failed is seen among the others.

    Args:
        comm: The communicator to abort; by default the world's.

    Returns:
        Whether the hook was installed: not for a world of one rank, where there is nobody to wait.
    """
    comm = start_mpi() if comm is None else comm
    if comm.size == 1:
        return False

    def abort(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        sys.stderr.write("".join(f"rank {comm.rank}: {line}\n" for line in text.splitlines()))
        sys.stderr.flush()
        time.sleep(_DRAIN_S)
        comm.Abort(1)

    def abort_thread(arguments: threading.ExceptHookArgs) -> None:
        if not issubclass(arguments.exc_type, SystemExit):
            abort(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    sys.excepthook = abort
    threading.excepthook = abort_thread
    return True


def watch(comm: Any, activity: Callable[[], Activity]) -> StallWatchdog | None:
    """Start the watch over stalled collectives; collective.

    Args:
        comm: An mpi4py communicator; the watch uses a duplicate of it.
        activity: Says what this rank is doing.

    Returns:
        The watch; None where there is nothing to wait for, it is switched off, or MPI has no support for it.
    """
    from mpi4py import MPI

    limit_s = stall_limit_s()
    if comm.size == 1 or limit_s is None or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return None
    return StallWatchdog(comm.Dup(), activity, limit_s)


def _ranges(ranks: list[int]) -> str:
    """Write sorted ranks briefly: ``0-2, 5``."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
