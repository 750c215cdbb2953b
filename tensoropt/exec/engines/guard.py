"""Ranks that take the same steps: compared before each of them, and none waits for one that is gone."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import CollectiveError

__all__ = ["Guard"]

_GOODBYE = 1  # the tag of a message
_POLL_S = 0.5
# A rank that has left took part in all that it had to, so what it left behind arrives within moments; longer than
# that, and it is missed.
_GRACE_S = 3.0
# How long a rank whose local graph failed waits for the others, which may be stuck in that graph's collectives.
FAILURE_PATIENCE_S = 10.0
_DRAIN_S = 0.2  # mpirun forwards what a rank printed; without a moment to do so, an abort may cut it off


@dataclass(frozen=True, slots=True)
class _Wait:
    """What the main thread waits for."""

    what: str
    since_s: float
    patience_s: float | None = None
    failure: str | None = None


class Guard:
    """Lets all ranks take a step together, or none.

    Before a step each rank says which one it is about to take, or that it failed to get ready for it. If all are
    ready for the same one they go on; otherwise each of them gets an error. That takes one reduction of 24 bytes.

    A rank whose program ends says so to the next rank (to one only: where some ranks have left and others wait,
    some waiting rank comes next after one that has left). A rank that waits for one that is gone ends the whole job,
    however that one ended: by ``sys.exit``, by the end of its script, or with an error that was swallowed.
    """

    def __init__(self, comm: Any) -> None:
        """Starts watching; collective.

        Args:
            comm: an mpi4py communicator of all ranks; a copy of it is used.
        """
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        self._digests: dict[str, int] = {}
        self._ours = np.zeros(3, dtype=np.int64)
        self._theirs = np.zeros(3, dtype=np.int64)
        self._waiting: _Wait | None = None
        self._process = os.getpid()
        self._main = threading.get_ident()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if self.size == 1:
            return
        atexit.register(self._leave)
        # Only with full thread support may another thread ask for messages while this one waits.
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._watch, name="tensoropt-guard", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stops watching, because the ranks that took steps together do so no longer; collective."""
        atexit.unregister(self._leave)
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._comm.Free()

    def meet(self, what: str, error: BaseException | None = None, *, patience_s: float | None = None) -> None:
        """Waits until all ranks are here; collective.

        Args:
            what: the step that this rank is about to take.
            error: why it cannot; the caller raises it afterwards.
            patience_s: end the job if the others are not here by then.

        Raises:
            CollectiveError: on ranks without an error, if other ranks have one or are about to take another step.
        """
        if self.size == 1:
            return
        digest = self._digests.get(what)
        if digest is None:
            digest = int.from_bytes(hashlib.sha256(what.encode()).digest()[:7], "big")
            self._digests[what] = digest
        self._ours[:] = digest, -digest, error is not None
        failure = None if error is None else "".join(traceback.format_exception(error))
        with self.waiting(what, patience_s, failure):
            self._comm.Allreduce(self._ours, self._theirs, self._mpi.MAX)
            if not self._theirs[2] and self._theirs[0] == -self._theirs[1]:
                return
            said = self._comm.allgather((what, None if error is None else f"{type(error).__name__}: {error}"))
        if error is not None:
            return
        for rank, (step, message) in enumerate(said):
            if message is not None:
                raise CollectiveError(f"{what}: cannot go on, since rank {rank} failed in {step}: {message}")
        ranks: dict[str, list[str]] = {}
        for rank, (step, _) in enumerate(said):
            ranks.setdefault(step, []).append(str(rank))
        parts = "; ".join(f"{step} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for step, who in ranks.items())
        raise CollectiveError(
            f"All {self.size} ranks must take the same step. Got {parts}. Run the same program everywhere, and let no "
            "call of tensoropt depend on the rank."
        )

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step's local part, which fails on all ranks if it fails on one; collective at its end."""
        try:
            yield
        except Exception as error:
            self.meet(what, error)
            raise
        self.meet(what)

    @contextlib.contextmanager
    def waiting(self, what: str, patience_s: float | None = None, failure: str | None = None) -> Iterator[None]:
        """Watches this rank while it waits for others inside the block."""
        before = self._waiting
        self._waiting = _Wait(what, time.monotonic(), patience_s, failure)
        try:
            yield
        finally:
            self._waiting = before

    def _leave(self) -> None:
        """Tells the next rank that this one is about to end. Its own end then waits for all, in MPI_Finalize."""
        if os.getpid() != self._process or self._mpi.Is_finalized():
            return
        self._goodbye = self._comm.isend(None, (self.rank + 1) % self.size, _GOODBYE)

    def _watch(self) -> None:
        previous = (self.rank - 1) % self.size
        gone_since_s: float | None = None
        while not self._closed.wait(_POLL_S) and not self._mpi.Is_finalized():
            wait, now_s = self._waiting, time.monotonic()
            if wait is None or now_s - wait.since_s < _POLL_S:
                continue
            if wait.patience_s is not None and now_s - wait.since_s > wait.patience_s:
                self._end(wait, f"the other ranks did not come within {wait.patience_s:g} s")
            if gone_since_s is None and self._comm.Iprobe(previous, _GOODBYE):
                gone_since_s = now_s
            if gone_since_s is not None and now_s - max(gone_since_s, wait.since_s) > _GRACE_S:
                self._end(
                    wait,
                    f"rank {previous} has ended its program. Let all ranks take the same steps, and end a rank that "
                    "cannot go on by an exception",
                )

    def _end(self, wait: _Wait, reason: str) -> None:
        """Ends the job, unless the wait was over just now."""
        if self._waiting is not wait:
            return
        frame = sys._current_frames().get(self._main)
        text = wait.failure or "Traceback (most recent call last):\n" + "".join(traceback.format_stack(frame))
        text += f"CollectiveError: {wait.what}: rank {self.rank} waits for the others, but {reason}."
        sys.stdout.flush()
        sys.stderr.write("".join(f"rank {self.rank}: {line}\n" for line in text.splitlines()))
        sys.stderr.flush()
        time.sleep(_DRAIN_S)
        self._comm.Abort(1)
