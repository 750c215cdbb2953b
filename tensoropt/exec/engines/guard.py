"""Ranks that take the same steps: compared before each of them, and none waits for one that is gone."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.watch import current_watch
from tensoropt.stages import working

__all__ = ["DifferenceError", "EndedError", "Guard", "is_told", "note_told"]

# How long a rank whose local graph failed waits for the others, which may be stuck in that graph's collectives.
FAILURE_PATIENCE_S = 10.0
_SHOWN = 60  # characters of a long step, at its begin and where it differs from another one
_TOLD = "tensoropt_is_told"  # an attribute of errors: a reference to one would keep what its traceback holds


class DifferenceError(CollectiveError):
    """Numbers that all ranks must share differ.

    Attributes:
        ranks: the numbers of each rank, by name.
        differing: names of those that differ.
    """

    def __init__(self, ranks: Sequence[Mapping[str, int]]) -> None:
        """Takes all ranks' numbers."""
        names = sorted({name for rank in ranks for name in rank})
        differing = [name for name in names if len({rank.get(name) for rank in ranks}) > 1]
        super().__init__(f"{', '.join(differing)}: must be the same on all {len(ranks)} ranks. Got {list(ranks)}.")
        self.ranks = ranks
        self.differing = differing


class EndedError(CollectiveError):
    """The data of another rank have come to their end."""


def note_told(error: BaseException) -> None:
    """Takes note that the other ranks were told of an error of this rank."""
    setattr(error, _TOLD, True)


def is_told(error: BaseException) -> bool:
    """Tells whether the other ranks know of an error raised here: they were told of it, or it came from them."""
    heard = getattr(error, "failed_rank", None) is not None
    return heard or hasattr(error, _TOLD) or any(isinstance(e, CollectiveError) for e in (error, error.__cause__))


def _where_apart(steps: Sequence[str]) -> list[str]:
    """Steps; of long ones, which list many variables, how they begin and the part where the first of them differs."""
    words = [step.split(" ") for step in steps]
    same = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, zip(*words, strict=False))))
    ends = (" ".join(each[same:])[:_SHOWN] for each in words)
    return [
        f"{step[:_SHOWN]}… {end}…" if len(step) > 3 * _SHOWN else step for step, end in zip(steps, ends, strict=True)
    ]


class Guard:
    """Makes all ranks take a step together, or none.

    Before a step each rank says which step it is about to take, or that it failed to get ready for it. If all are ready
    for the same step they go on; otherwise each of them gets an error. The agreement takes one reduction of 40 bytes,
    which also compares a number that ranks must share.
    """

    def __init__(self, comm: Any) -> None:
        """Takes a copy of a communicator; collective.

        Args:
            comm: an mpi4py communicator of all ranks.
        """
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        self._digests: dict[str, int] = {}
        self._ours = np.zeros(5, dtype=np.int64)
        self._theirs = np.zeros(5, dtype=np.int64)

    def close(self) -> None:
        """Ends it, because the ranks that took steps together do so no longer; collective."""
        self._comm.Free()

    def meet(
        self,
        what: str,
        error: BaseException | None = None,
        *,
        ended: bool = False,
        patience_s: float | None = None,
        shared: Mapping[str, int] | None = None,
    ) -> None:
        """Waits until all ranks are here; collective.

        Args:
            what: the step that this rank is about to take.
            error: why it cannot; the caller raises it afterwards.
            ended: whether that is because its data have come to their end.
            patience_s: end the job if the others are not here by then.
            shared: numbers below 2^62 that must be the same on all ranks, by name.

        Raises:
            DifferenceError: on all ranks, if one of ``shared`` differs.
            EndedError: on ranks without an error, if the first that has one says that its data have ended.
            CollectiveError: on ranks without an error, if other ranks have one or are about to take another step.
        """
        if self.size == 1:
            return
        digest = self._digests.get(what)
        if digest is None:
            digest = int.from_bytes(hashlib.sha256(what.encode()).digest()[:7], "big")
            self._digests[what] = digest
        number = hash(tuple(shared.values())) >> 2 if shared else 0  # of integers, so the same in every process
        self._ours[:] = digest, -digest, error is not None, number, -number
        failure = None if error is None else "".join(traceback.format_exception(error))
        with current_watch().waiting(what, patience_s, failure):
            self._comm.Allreduce(self._ours, self._theirs, self._mpi.MAX)
            if not self._theirs[2] and self._theirs[0] == -self._theirs[1]:
                if self._theirs[3] != -self._theirs[4]:
                    raise DifferenceError(self._comm.allgather(dict(shared or {})))
                return
            described = None if error is None else f"{type(error).__name__}: {error}"
            said = self._comm.allgather((what, described, ended))
        if error is not None:
            note_told(error)
            return
        for rank, (step, message, has_ended) in enumerate(said):
            if message is not None:
                kind = EndedError if has_ended else CollectiveError
                heard = kind(f"{what}: cannot go on, since rank {rank} failed in {step}: {message}")
                heard.failed_rank = rank
                raise heard
        ranks: dict[str, list[str]] = {}
        for rank, step in enumerate(_where_apart([step for step, *_ in said])):
            ranks.setdefault(step, []).append(str(rank))
        parts = "; ".join(f"{step} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for step, who in ranks.items())
        raise CollectiveError(
            f"All {self.size} ranks must take the same step. Got {parts}. Run the same program everywhere, and let no "
            "call of tensoropt depend on the rank, nor on the order of a set, which differs between processes."
        )

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step's local part, which fails on all ranks if it fails on one; collective at its end."""
        try:
            with working(what):
                yield
        except Exception as error:
            self.meet(what, error)
            raise
        self.meet(what)
