"""The hosts of a job's ranks, and how ranks take turns where they outnumber the cores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.cluster import probe

__all__ = ["Machine", "at_once"]

_POLL_S = 2e-4


@dataclass(frozen=True, slots=True)
class Machine:
    """The ranks' hosts.

    Attributes:
        key: describes them; what is measured is kept under it.
        crowding: by how much a rank's work takes longer because ranks share cores.
        turns: how many turns ranks take, so that no more run at once than there are cores.
        turn: this rank's.
    """

    key: Mapping[str, Any]
    crowding: float
    turns: int
    turn: int

    @classmethod
    def of(cls, comm: Any) -> Machine:
        """Collective over ``comm``."""
        mine = (os.uname().nodename, probe.cpu_model(), probe.affinity())
        ranks = comm.allgather(mine)
        hosts = [host for host, _, _ in ranks]
        shares = [0.0] * len(ranks)
        for host in sorted(set(hosts)):
            members = [index for index, other in enumerate(hosts) if other == host]
            for index, share in zip(members, probe.cores_per_rank([ranks[i][2] for i in members]), strict=True):
                shares[index] = share
        crowding = max(1.0, 1.0 / min(shares))
        turns = int(np.ceil(crowding - 1e-9))
        place = hosts[: comm.rank].count(hosts[comm.rank])
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS")
        key = {
            "hosts": sorted(set(hosts)),
            "ranks_per_host": max(hosts.count(host) for host in hosts),
            "cpus": sorted({cpu for _, cpu, _ in ranks}),
            "cores": min(shares),
            "tensorflow": tf.__version__,
            "environment": [os.environ.get(name, "") for name in names],
        }
        per_turn = -(-hosts.count(hosts[comm.rank]) // turns)
        return cls(key, crowding, turns, place // per_turn)

    @contextlib.contextmanager
    def together(self, comm: Any) -> Iterator[None]:
        """This rank's turn: at most as many ranks as cores are in it at the same time."""
        for _ in range(self.turn):
            _meet(comm)
        _meet(comm)
        yield
        for _ in range(self.turns - self.turn):
            _meet(comm)


@contextlib.contextmanager
def at_once(comm: Any) -> Iterator[None]:
    """All ranks are in it at the same time, also those that share a core."""
    _meet(comm)
    yield
    _meet(comm)


def _meet(comm: Any) -> None:
    """A barrier that leaves the core to those who work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)
