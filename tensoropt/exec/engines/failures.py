"""Whose error is printed when ranks fail: the first one's with its traceback, once, and a line for the others'.

What goes wrong on one rank mostly makes others fail, and what is wrong with a script fails on all of them. So a rank
that fails tells all others, and hears for a moment who else did. Of those that failed by themselves the first rank
claims to be the one that prints; one that failed since another did waits for that.
"""

from __future__ import annotations

import time
from typing import Any

from tensoropt.errors import TensorOptError

__all__ = ["Failures", "tells_of_another_rank"]

_FAILED, _CLAIM = 1, 2  # tags of messages
_POLL_S = 0.01
_TOGETHER_S = 0.4  # ranks that fail of the same cause do so within this time, or hear the claim of the one that did
_PATIENCE_S = 10.0  # for the rank that prints, and then for the end of the job


def tells_of_another_rank(error: BaseException | None) -> bool:
    """Tells whether an error, or one of its causes, only reports the failure of another rank."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, TensorOptError) and error.failed_rank is not None:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Failures:
    """The reports that ranks exchange when they end by an error."""

    def __init__(self, comm: Any) -> None:
        """Gets ready; collective.

        Args:
            comm: an mpi4py communicator of all ranks; a copy of it is used. Without full thread support of MPI, when
                another thread may be in a call to it, ranks do not talk, and all print.
        """
        from mpi4py import MPI

        self._mpi = MPI
        self._comm: Any = comm.Dup() if MPI.Query_thread() == MPI.THREAD_MULTIPLE else None
        self._known: dict[int, tuple[str, bool]] = {}  # by rank: in a line, and whether it tells of another's
        self._claimed = False
        self._requests: list[Any] = []

    def is_to_be_printed(self, line: str, error: BaseException | None) -> bool:
        """Says that this rank failed, and waits until it is known which rank prints its error.

        Args:
            line: the error.
            error: the same.

        Returns:
            Whether this rank does. A rank that does not comes here no more, as the other one ends the job, or only
            after a time in which it should have.
        """
        if self._comm is None or self._mpi.Is_finalized():
            return True
        mine, is_follower = self._comm.rank, tells_of_another_rank(error)
        self._tell(_FAILED, (line, is_follower))
        self._known[mine] = line, is_follower
        self._listen(_PATIENCE_S if is_follower else _TOGETHER_S, until_one_failed_by_itself=is_follower)
        if not self._claimed and mine == self._first():
            self._tell(_CLAIM, None)
            return True
        self._listen(_PATIENCE_S)
        if not self._claimed:
            return True  # the other one was hindered
        time.sleep(_PATIENCE_S)
        return False

    def of_others(self) -> list[tuple[list[int], str]]:
        """Ranks that failed, too, by what they have to say, once they had the time to."""
        if self._comm is None or self._mpi.Is_finalized():
            return []
        self._listen(_TOGETHER_S)
        lines: dict[str, list[int]] = {}
        for rank in sorted(self._known.keys() - {self._comm.rank}):
            lines.setdefault(self._known[rank][0], []).append(rank)
        return [(ranks, line) for line, ranks in lines.items()]

    def _first(self) -> int:
        return min(self._known, key=lambda rank: (self._known[rank][1], rank))

    def _tell(self, tag: int, what: Any) -> None:
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        self._requests += [self._comm.isend(what, rank, tag) for rank in others]

    def _listen(self, seconds: float, *, until_one_failed_by_itself: bool = False) -> None:
        """Takes in what others tell, for some time or until one of them claims to print."""
        status, until_s = self._mpi.Status(), time.monotonic() + seconds
        while not self._claimed and time.monotonic() < until_s:
            if not self._comm.iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
                if until_one_failed_by_itself and not all(is_follower for _, is_follower in self._known.values()):
                    return
                time.sleep(_POLL_S)
                continue
            rank = status.Get_source()
            said = self._comm.recv(source=rank, tag=status.Get_tag())
            if status.Get_tag() == _CLAIM:
                self._claimed = True
            else:
                self._known[rank] = said
