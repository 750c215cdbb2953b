"""The watch over collectives that do not end: it names the collective and the ranks that are missing."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensoropt.errors import EngineError

__all__ = ["Activity", "StallWatchdog", "describe_stall", "stall_limit_s"]

_VARIABLE = "TENSOROPT_STALL_SECONDS"
_DEFAULT_LIMIT_S = 300.0
_LONGEST_POLL_S = 1.0
_ANSWER_S = 5.0  # for ranks to say where they are: several polls of theirs
_QUESTION, _ANSWER = 1, 2  # message tags


@dataclass(frozen=True, slots=True)
class Activity:
    """What a rank is doing.

    Attributes:
        entered: How many collectives it has entered.
        name: The one entered last; empty before the first.
        waiting_s: For how long it has been in that one; None if it is in none.
    """

    entered: int
    name: str
    waiting_s: float | None


def stall_limit_s() -> float | None:
    """Return after how many seconds a collective has stalled: TENSOROPT_STALL_SECONDS, 300 by default; None for never.

    Raises:
        EngineError: The variable is not a number of seconds.
    """
    text = os.environ.get(_VARIABLE, "")
    try:
        limit_s = float(text) if text else _DEFAULT_LIMIT_S
    except ValueError:
        limit_s = -1.0
    if not limit_s >= 0:
        raise EngineError(
            f"{_VARIABLE} must be a number of seconds, or 0 to wait for ever. Got {text!r}. Set it to "
            f"{_DEFAULT_LIMIT_S:g}, or leave it out."
        )
    return limit_s or None


def describe_stall(rank: int, size: int, limit_s: float, activities: Mapping[int, Activity]) -> str:
    """Return the report of a stall.

    Args:
        rank: Who reports; it is in a collective.
        size: Ranks in the world.
        limit_s: The time that was allowed.
        activities: What each rank is doing; one that is not in it did not answer.
    """
    mine = activities[rank]
    lines = [f"rank {rank}: the collective '{mine.name}' (number {mine.entered}) is not over after {limit_s:g} s."]
    for other in range(size):
        activity = activities.get(other)
        if activity is None:
            lines.append(f"  rank {other} does not answer")
        elif activity.waiting_s is None:
            last = f", the last one '{activity.name}'" if activity.name else ""
            lines.append(f"  rank {other} is in no collective; it has done {activity.entered}{last}")
        else:
            lines.append(
                f"  rank {other} has been in '{activity.name}' (number {activity.entered}) for "
                f"{activity.waiting_s:.1f} s"
            )
    lines.append(
        f"  A rank that is not in the same collective as the others has failed, is late, or runs another program. "
        f"{_VARIABLE} sets how long to wait."
    )
    return "\n".join(lines)


class StallWatchdog:
    """A thread that ends the job when a collective has stalled, after a report of where each rank is.

    A blocking MPI call cannot be interrupted, so the job ends by MPI's abort. The threads of all ranks talk over a
    communicator of their own; they look up once a second and cost nothing between.
    """

    def __init__(self, comm: Any, activity: Callable[[], Activity], limit_s: float) -> None:
        """Start the watch.

        Args:
            comm: An mpi4py communicator that nobody else uses. MPI must have been started with
                MPI_THREAD_MULTIPLE.
            activity: Says what this rank is doing.
            limit_s: After how many seconds a collective has stalled.
        """
        self._comm = comm
        self._activity = activity
        self._limit_s = limit_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tensoropt stall watchdog", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # before MPI is finalized

    def stop(self) -> None:
        """End the watch, and wait until the thread has left MPI."""
        atexit.unregister(self.stop)
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        poll_s = min(_LONGEST_POLL_S, self._limit_s / 4)
        while not self._stop.wait(poll_s):
            self._answer()
            waiting_s = self._activity().waiting_s
            if waiting_s is not None and waiting_s > self._limit_s:
                self._report(poll_s)

    def _answer(self) -> None:
        """Tell the ranks that asked what this one is doing."""
        from mpi4py import MPI

        status = MPI.Status()
        while self._comm.iprobe(tag=_QUESTION, status=status):
            source = status.Get_source()
            self._comm.recv(source=source, tag=_QUESTION)
            self._comm.isend(self._activity(), dest=source, tag=_ANSWER)

    def _report(self, poll_s: float) -> None:
        """Ask all ranks, print what they answer, and end the job."""
        from mpi4py import MPI

        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        others = [other for other in range(size) if other != rank]
        questions = [self._comm.isend(None, dest=other, tag=_QUESTION) for other in others]
        activities = {rank: self._activity()}
        status = MPI.Status()
        deadline = time.monotonic() + _ANSWER_S
        while len(activities) < size and time.monotonic() < deadline and not self._stop.wait(poll_s):
            self._answer()
            while self._comm.iprobe(tag=_ANSWER, status=status):
                source = status.Get_source()
                activities[source] = self._comm.recv(source=source, tag=_ANSWER)
        del questions
        if self._activity().waiting_s is None:
            return  # it has ended after all
        # One report is enough: the lowest of the ranks that wait makes it, the others only if it does not.
        if any(activity.waiting_s is not None for other, activity in activities.items() if other < rank):
            deadline = time.monotonic() + 2 * _ANSWER_S
            while time.monotonic() < deadline and not self._stop.wait(poll_s):
                self._answer()
        sys.stdout.flush()
        sys.stderr.write(describe_stall(rank, size, self._limit_s, activities) + "\n")
        sys.stderr.flush()
        time.sleep(poll_s)  # mpirun forwards what was printed; an abort may cut it off
        self._comm.Abort(1)
