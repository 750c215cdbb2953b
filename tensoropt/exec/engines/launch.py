"""The start of MPI, agreement between ranks, and the end of the whole job when one rank fails."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines import watch as watch_module
from tensoropt.exec.engines.communicator import watched
from tensoropt.exec.engines.failures import Failures
from tensoropt.exec.engines.graphics_cards import take_card
from tensoropt.exec.engines.ranks import written_holders, written_ranks
from tensoropt.exec.engines.settings import agree_on_settings
from tensoropt.exec.engines.shared_memory import remove_segments
from tensoropt.exec.engines.watch import Watch, current_watch, set_current_watch, stall_limit_s

__all__ = [
    "MPI_DEFAULTS",
    "agree",
    "agree_on_success",
    "install_abort_hook",
    "keep_first_ranks",
    "mpi_settings",
    "mpi_version",
    "start_mpi",
]

# Over TCP, Open MPI puts large messages, of which a collective then sends and receives one after the other: a link of
# 1 Gbit is used to 60 %. Messages sent in fragments fill it. MPI reads these variables when it starts.
MPI_DEFAULTS = {"OMPI_MCA_btl_tcp_flags": "send,inplace"}
"""The variables that are set before MPI starts, unless the user has set them."""
# What the names of variables begin with that say how MPI moves messages.
_MPI_SETTINGS = ("OMPI_MCA_btl", "OMPI_MCA_coll", "OMPI_MCA_mpi_yield", "OMPI_MCA_mtl", "OMPI_MCA_pml", "UCX_")
_DRAIN_S = 0.2  # mpirun forwards what a rank printed; without a moment to do so, an abort may cut it off


# The world; after others were found to be surplus, the ranks that go on. As much this process's as MPI's own world is.
_world: Any = None


def start_mpi() -> Any:
    """Start MPI, if nobody has yet, and return the world's communicator; the first call is collective.

    Then all ranks have rank 0's settings, and the watch over what they wait for has begun.

    Returns:
        ``mpi4py.MPI.COMM_WORLD``, watched; after :func:`keep_first_ranks`, that of the ranks that were kept.

    Raises:
        EngineError: mpi4py or an MPI library is missing, MPI was started without thread support, or a setting is not
            what it must be.
    """
    global _world
    if _world is None:
        _world = _started()
    return _world


def mpi_version() -> str:
    """Returns the version text of the MPI library that was started."""
    from mpi4py import MPI

    return MPI.Get_library_version().strip("\0\n ")


def mpi_settings() -> list[str]:
    """The variables of this process that say how MPI moves messages, as ``NAME=VALUE`` in order of name."""
    return sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_MPI_SETTINGS))


def _own_limit_s() -> float | None:
    """This rank's own limit, until ranks have agreed on one, which will say what is wrong with it."""
    try:
        return stall_limit_s()
    except EngineError:
        return None


def _started() -> Any:
    MPI = _wait_for_all_ranks_to_start_mpi()
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise EngineError(
            "MPI must be started with thread support of at least MPI_THREAD_SERIALIZED, because TensorFlow "
            f"runs ops in threads of its own. Got level {MPI.Query_thread()}. Leave mpi4py.rc.thread_level "
            "at 'multiple'."
        )
    world = MPI.COMM_WORLD
    if world.size > 1:
        _begin_watch(world, "the first meeting of all ranks")
    return watched(world)


def _wait_for_all_ranks_to_start_mpi() -> Any:
    """mpi4py's module, which starts MPI when it is imported unless told otherwise.

    MPI's start waits for all ranks and lets no other thread of Python run meanwhile, so a timer that needs none ends
    this process at the limit, with a traceback that names this function; the launcher then ends the job.
    """
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0":
        remove_segments()  # before MPI needs the room
    take_card()  # before MPI or TensorFlow looks for one
    for name, value in MPI_DEFAULTS.items():
        os.environ.setdefault(name, value)
    limit_s = _own_limit_s()
    if limit_s is not None:
        faulthandler.dump_traceback_later(max(limit_s, watch_module.LEAST_START_S), exit=True)
    try:
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineError(
            f"MPI cannot be started: mpi4py and an MPI library that it can load are needed. Got "
            f"{type(error).__name__}: {error}. Install both by pip install 'tensoropt[mpi]'."
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI


def _begin_watch(comm: Any, meeting: str) -> None:
    """Let ranks agree on settings, and begin the watch over what they wait for; collective.

    Where MPI lets no other thread in, the watch only notes what this rank does.

    Raises:
        EngineError: a setting is not what it must be; the same on all ranks.
    """
    from mpi4py import MPI

    watch = Watch(_own_limit_s())
    set_current_watch(watch)
    is_alone = MPI.Query_thread() != MPI.THREAD_MULTIPLE
    if not is_alone:
        watch.start(MPI, comm.rank)
    try:
        with watch.waiting(meeting):
            agree_on_settings(comm)
            limit_s = stall_limit_s()
            if not is_alone:
                watch.meet(comm.Dup(), limit_s)
    except BaseException:
        watch.stop()
        raise


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
    global _world
    from mpi4py import MPI

    world = start_mpi()
    part = world.Split(0 if world.rank < count else MPI.UNDEFINED, world.rank)
    current_watch().stop()  # over all that were
    set_current_watch(Watch(None))
    if part == MPI.COMM_NULL:
        return False
    _world = watched(part)
    if count > 1:
        _begin_watch(part, "the first meeting of the ranks that go on")
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
    parts = written_holders(digest[:12] for digest in digests)
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
        failure = EngineError(
            f"{step} must succeed on all {len(failures)} ranks. It failed on {written_ranks(failed)}: "
            f"{failures[failed[0]]}"
        )
        failure.failed_rank = None if error is not None else failed[0]
        raise failure from error


def install_abort_hook(comm: Any | None = None) -> bool:
    """End the whole job when this rank ends by an exception that nobody caught, in whatever thread.

    Without it the other ranks wait forever in their next collective. The traceback of the rank that failed first is
    printed before, each line led by the rank, and one line for each error of others; collective.

    Args:
        comm: The communicator to abort; by default the world's.

    Returns:
        Whether the hook was installed: not for a world of one rank, where there is nobody to wait.
    """
    comm = start_mpi() if comm is None else comm
    if comm.size == 1:
        return False
    failures = Failures(comm)

    def abort(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        line = next(iter("".join(traceback.format_exception_only(kind, error)).splitlines()), kind.__name__)
        if failures.is_to_be_printed(line, error):
            sys.stderr.write("".join(f"rank {comm.rank}: {line}\n" for line in text.splitlines()))
            sys.stderr.flush()
            for ranks, other in failures.of_others():
                sys.stderr.write(f"{written_ranks(ranks)}: {'the same error' if other == line else other}\n")
            sys.stderr.flush()
        time.sleep(_DRAIN_S)
        comm.Abort(1)

    def abort_thread(arguments: threading.ExceptHookArgs) -> None:
        if not issubclass(arguments.exc_type, SystemExit):
            abort(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    sys.excepthook = abort
    threading.excepthook = abort_thread
    return True
