"""The ranks of a job on their hosts: what each has, and how they take turns where they outnumber the cores."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tensoropt.cluster import host
from tensoropt.exec.engines.graphics_cards import has_driver

__all__ = ["COLD_WORK_BYTES", "WARM_BYTES", "Communicator", "Machine", "Rank"]

_T = TypeVar("_T")

WARM_BYTES = 2**18
"""Data below this size, made some operators ago, is still in a core's own cache."""
COLD_WORK_BYTES = 2**23
"""Several times the size of a core's own cache: writing so much evicts all earlier data from it."""

_POLL_S = 2e-4
# What decides how many threads NumPy computes with.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Communicator(Protocol):
    """The interface of an mpi4py communicator of all ranks, as far as measuring needs it."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        ...

    def allgather(self, value: _T, /) -> list[_T]:
        """Every rank's value, on all of them."""
        ...

    def bcast(self, value: _T, /, root: int = 0) -> _T:
        """The root's value, on all ranks."""
        ...

    def Ibarrier(self) -> Any:
        """A request whose ``Test()`` says whether all ranks have come here."""
        ...


@dataclass(frozen=True, slots=True)
class Rank:
    """The description of a rank's process and host.

    Attributes:
        host: its name.
        cpu: the processor's name; where the rank computes on a graphics card, the card's.
        affinity: numbers of the processors that the rank may run on.
        memory_bytes: that new allocations can use, on the host or else on the card.
        environment: the variables that say with how many threads NumPy computes.
        card: where on its host the card is; empty without one.
    """

    host: str
    cpu: str
    affinity: tuple[int, ...]
    memory_bytes: int
    environment: tuple[str, ...]
    card: str = ""

    @classmethod
    def of_this_process(cls) -> Rank:
        """Describes this process."""
        card = None
        if has_driver():
            from tensoropt.measure.card import card_of_this_process  # takes TensorFlow

            card = card_of_this_process()
        return cls(
            os.uname().nodename,
            host.cpu_model() if card is None else card.name,
            host.affinity(),
            host.available_memory_bytes() if card is None else card.memory_bytes,
            tuple(os.environ.get(name, "") for name in _THREADS),
            "" if card is None else card.address,
        )


class Machine:
    """The ranks' hosts, and this rank's place among them.

    Attributes:
        comm: of all ranks.
        ranks: what each says of itself.
        hosts: the name of each rank's.
        sharing: how many ranks share each rank's memory: its card's, or else its host's.
        cores: of each rank; those that share a core have equal parts of it.
        crowding: by how much a rank's work takes longer because ranks share cores or cards.
    """

    def __init__(self, comm: Communicator, ranks: Sequence[Rank]) -> None:
        """Takes what :meth:`of` gathers."""
        self.comm = comm
        self.ranks = tuple(ranks)
        self.hosts = [rank.host for rank in ranks]
        memories = [(rank.host, rank.card) for rank in ranks]
        self.sharing = [memories.count(memory) for memory in memories]
        self.cores = [0.0] * len(ranks)
        for name in dict.fromkeys(self.hosts):
            members = [index for index, other in enumerate(self.hosts) if other == name]
            shares = host.cores_per_rank([ranks[index].affinity for index in members])
            for index, share in zip(members, shares, strict=True):
                self.cores[index] = share
        on_cards = (several for rank, several in zip(ranks, self.sharing, strict=True) if rank.card)
        self.crowding = max(1.0, 1.0 / min(self.cores), *on_cards)
        # How many turns ranks take, so that no more run at once than there are cores or cards; which is this rank's.
        self._turns = math.ceil(self.crowding - 1e-9)
        mine = self.hosts[comm.rank]
        self._turn = self.hosts[: comm.rank].count(mine) // -(-self.hosts.count(mine) // self._turns)

    @classmethod
    def of(cls, comm: Communicator) -> Machine:
        """Collective over ``comm``."""
        return cls(comm, comm.allgather(Rank.of_this_process()))

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """This rank's turn: at most as many ranks as cores or cards are in it at the same time. Collective."""
        for _ in range(self._turn):
            self._meet()
        self._meet()
        yield
        for _ in range(self._turns - self._turn):
            self._meet()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """All ranks are in it at the same time, also those that share a core or a card. Collective."""
        self._meet()
        yield
        self._meet()

    def _meet(self) -> None:
        """A barrier that leaves the core to those who work."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_S)
