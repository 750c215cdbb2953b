"""What each rank does in the tests of collection: ``collection_ranks.py SCENARIO``; rank 0 prints JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from tensoropt.cluster import host
from tensoropt.errors import ClusterError
from tensoropt.measure import hardware
from tensoropt.measure.hardware import collect
from tensoropt.storage import cache_directory

COMM = MPI.COMM_WORLD


class Made:
    """An engine's measurement that is a function."""

    def __init__(self, function: Callable[..., float]) -> None:
        self.function = function

    def __call__(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        return self.function(kind, axes, size_bytes, calls)

    def close(self) -> None:
        pass


def addition(kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
    """A rank adds the buffer to another one, whatever the collective: it takes time, and waits for nobody."""
    array = np.ones(size_bytes // 4, np.float32)
    out = np.empty_like(array)
    start_s = time.perf_counter()
    for _ in range(calls):
        np.add(array, array, out=out)
    return (time.perf_counter() - start_s) / calls


def made(mesh: tuple[int, ...], crowded: bool) -> Made:
    return Made(addition)


def error_of(function: Callable[[], object]) -> list[str]:
    """The ClusterError's text on every rank."""
    try:
        function()
    except ClusterError as error:
        text = str(error)
    else:
        text = ""
    return COMM.allgather(text)


def healthy() -> dict[str, object]:
    start_s = time.perf_counter()
    first = collect(COMM, budget_s=1.0, engine="numpy", measure=made)
    measured_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    second = collect(COMM, budget_s=1.0, engine="numpy", measure=made)
    cached_s = time.perf_counter() - start_s
    COMM.Barrier()
    if COMM.rank == 0:
        for path in cache_directory().iterdir():
            path.write_text("damaged", encoding="utf-8")
    COMM.Barrier()
    third = collect(COMM, budget_s=0.2, engine="numpy", measure=made)
    refreshed = collect(COMM, budget_s=0.2, engine="numpy", measure=made, refresh=True)
    other_engine = collect(COMM, budget_s=0.0, engine="invented", measure=lambda mesh, crowded: Made(lambda *_: 1e-5))
    os.environ["OMPI_MCA_btl_tcp_links"] = "2"
    other_messages = collect(COMM, budget_s=0.2, engine="numpy", measure=made)
    everything = (first, second, third, refreshed, other_engine, other_messages)
    return {
        "topology": first.to_json(),
        "equal": COMM.allgather([t.fingerprint() for t in everything]),
        "same_profile": [first.profile == other.profile for other in everything[1:]],
        "measured_s": measured_s,
        "cached_s": cached_s,
        "files": len(list(cache_directory().iterdir())),
    }


def failing() -> dict[str, object]:
    def broken(kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        raise RuntimeError(f"no {kind} here")

    everywhere = error_of(
        lambda: collect(COMM, measure=lambda mesh, crowded: Made(broken), engine="broken", budget_s=0.1)
    )

    def late(kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        if COMM.rank == 2 and kind == "broadcast":
            raise RuntimeError("rank 2 cannot broadcast")
        return 1e-5

    without_waiting = error_of(
        lambda: collect(COMM, measure=lambda mesh, crowded: Made(late), engine="late", budget_s=0.1)
    )

    def unreadable() -> str:
        if COMM.rank in (1, 3):
            raise OSError("no such file: cpuinfo")
        return "cpu"

    host.cpu_model = unreadable  # type: ignore[assignment]
    local = error_of(lambda: collect(COMM, engine="numpy", measure=made))
    return {"everywhere": everywhere, "without_waiting": without_waiting, "local": local}


def deserting() -> dict[str, object]:
    """Rank 1 fails where the others wait for it: nothing but the end of the job helps."""
    hardware._FAILURE_GRACE_S = 0.5

    def measure(kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        if COMM.rank == 1:
            raise RuntimeError("rank 1 deserts")
        COMM.Barrier()
        return 1e-5

    collect(COMM, measure=lambda mesh, crowded: Made(measure), engine="deserting")
    return {}


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    result = {"healthy": healthy, "failing": failing, "deserting": deserting}[sys.argv[1]]()
    if COMM.rank == 0:
        print(json.dumps(result))
