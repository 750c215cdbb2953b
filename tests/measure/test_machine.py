"""Ranks on hosts: what cores they have, and whose turn it is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tensoropt.measure.machine import Machine, Rank

pytestmark = pytest.mark.pure


def _machines(hosts: str, affinities: Sequence[tuple[int, ...]]) -> list[Machine]:
    """Every rank's, with barriers between threads."""
    ranks = [Rank(host, "cpu", cores, 2**30, ()) for host, cores in zip(hosts, affinities, strict=True)]
    come: Counter[int] = Counter()
    lock = threading.Lock()

    def communicator(rank: int) -> Any:
        own = 0

        def begin() -> Any:
            nonlocal own
            meeting, own = own, own + 1
            with lock:
                come[meeting] += 1
            return SimpleNamespace(Test=lambda: come[meeting] == len(ranks))

        return SimpleNamespace(rank=rank, Ibarrier=begin)

    return [Machine(communicator(rank), ranks) for rank in range(len(ranks))]


def test_ranks_of_a_host_have_parts_of_the_cores_that_they_share() -> None:
    machine = _machines("abab", [(0,), (0, 1), (0,), (2,)])[0]
    assert machine.cores == [0.5, 2.0, 0.5, 1.0]
    assert machine.crowding == 2.0
    assert _machines("aa", [(0, 1), (0, 1)])[0].crowding == 1.0


def test_ranks_share_the_memory_of_a_card_or_else_of_a_host() -> None:
    places = [("a", ""), ("a", ""), ("b", "0000:01:00.0"), ("b", "0000:01:00.0"), ("b", "0000:02:00.0")]
    comm: Any = SimpleNamespace(rank=0)
    ranks = [Rank(host, "cpu", (0,), 2**30, (), card) for host, card in places]
    machine = Machine(comm, ranks)
    assert machine.sharing == [2, 2, 2, 2, 1] and machine.crowding == 3.0  # three ranks of b share a core
    assert Machine(comm, [Rank("b", "cpu", (rank,), 2**30, (), "0000:01:00.0") for rank in range(4)]).crowding == 4.0


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_no_more_ranks_than_cores_run_in_a_turn(cores: int) -> None:
    inside: set[int] = set()
    together: list[int] = []

    def run(machine: Machine) -> None:
        for _ in range(2):
            with machine.in_turn():
                inside.add(machine.comm.rank)
                time.sleep(0.01)
                together.append(len(inside))
                inside.discard(machine.comm.rank)
        with machine.at_once():
            pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, _machines("aaaa", [tuple(range(cores))] * 4)))
    assert len(together) == 8 and max(together) <= cores
