"""Collecting the hardware that an MPI job runs on."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import probe
from tensoropt.cluster.benchmark import fitted_levels, measure_profile
from tensoropt.cluster.cache import load_topology, store_topology
from tensoropt.cluster.device import Device
from tensoropt.cluster.topology import Level, Topology
from tensoropt.errors import ClusterError
from tensoropt.stages import doing

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["collect"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

# How long a rank that failed inside a collective waits for the others to leave theirs, before it ends the
# job.
_FAILURE_GRACE_S = 10.0
# Memory is rounded down to this, so that it stays the same from run to run where it nearly does.
_MEMORY_STEP_BYTES = 64 * 2**20
# Running an op that computes nothing in TensorFlow's CPU executor; a profile of ops replaces this guess.
_CPU_OP_OVERHEAD_S = 5e-6


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one rank says of itself."""

    host: str
    cpu: str
    affinity: tuple[int, ...]
    memory_bytes: int
    environment: tuple[str, ...]


def collect(
    comm: MPI.Comm,
    *,
    refresh: bool = False,
    measure: Callable[[tuple[int, ...]], ClosableMeasure] | None = None,
    engine: str = "mpi4py",
    method: str = "back to back",
    budget_s: float = 6.0,
) -> Topology:
    """The topology of the ranks of ``comm``, the same on all of them. Collective over ``comm``.

    Hosts, cores and memory are looked up on every call; computation, memory and collectives are measured once
    and cached per hosts, ranks per host, processor, MPI version and engine (see ``cache.cache_directory``).

    Args:
        comm: an mpi4py communicator; rank ``r`` is device ``r``.
        refresh: measure even if the cache has it.
        measure: given the factor mesh, makes what runs the collectives of the engine that will train; called and
            closed on all ranks, and only if there is something to measure. mpi4py's own if None.
        engine: the name under which what ``measure`` measures is cached.
        method: how ``measure`` does it, a part of that name.
        budget_s: seconds for measuring collectives.

    Raises:
        ClusterError: on every rank, if collecting fails on any.
    """
    control = comm.Dup()  # so that no message of ours meets one of the caller's
    try:
        return _collect(control, refresh, measure, (engine, method), budget_s)
    finally:
        # Freeing is collective, and every way out of _collect, return or raise, is taken by all ranks.
        control.Free()


def _collect(
    comm: MPI.Comm,
    refresh: bool,
    measure: Callable[[tuple[int, ...]], ClosableMeasure] | None,
    measured_by: tuple[str, str],
    budget_s: float,
) -> Topology:
    from mpi4py import MPI

    ranks = _on_every_rank(comm, "describing the host", _describe)
    hosts = [rank.host for rank in ranks]
    key = {
        "hosts": list(dict.fromkeys(hosts)),
        "ranks": [list(dict.fromkeys(hosts)).index(host) for host in hosts],
        "cpus": sorted({rank.cpu for rank in ranks}),
        "cores": _cores(ranks),
        "environment": sorted({"\n".join(rank.environment) for rank in ranks}),
        "mpi": MPI.Get_library_version().strip("\0\n "),
        "engine": measured_by[0],
        "method": measured_by[1],
    }
    cached = _on_every_rank(
        comm, "reading the cache", lambda: load_topology(key) if comm.rank == 0 and not refresh else None
    )[0]
    if cached is None:
        topology = _measure_topology(comm, ranks, measure, budget_s)
        _on_every_rank(comm, "writing the cache", lambda: store_topology(key, topology) if comm.rank == 0 else None)
    else:
        topology = cached
    # Other programs come and go, so a remembered figure could promise memory that is gone.
    device = dataclasses.replace(topology.device, memory_bytes=_memory_per_rank_bytes(ranks))
    return dataclasses.replace(topology, device=device)


def _describe() -> _Rank:
    from mpi4py import MPI

    return _Rank(
        MPI.Get_processor_name(),
        probe.cpu_model(),
        probe.affinity(),
        probe.available_memory_bytes(),
        tuple(os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")),
    )


def _cores(ranks: Sequence[_Rank]) -> list[float]:
    """Cores of every rank, in the order of ranks."""
    cores = [0.0] * len(ranks)
    for host in dict.fromkeys(rank.host for rank in ranks):
        members = [index for index, rank in enumerate(ranks) if rank.host == host]
        for index, share in zip(members, probe.cores_per_rank([ranks[i].affinity for i in members]), strict=True):
            cores[index] = share
    return cores


def _memory_per_rank_bytes(ranks: Sequence[_Rank]) -> int:
    """The least that any rank can have: every host's memory is shared evenly by its ranks."""
    hosts = [rank.host for rank in ranks]
    least = min(rank.memory_bytes // hosts.count(rank.host) for rank in ranks)
    return max(least // _MEMORY_STEP_BYTES * _MEMORY_STEP_BYTES, 1)


def level_sizes(hosts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the levels for ranks on ``hosts``, one name per rank.

    Hosts make a level of their own if each has a contiguous run of equally many ranks. Otherwise, after a
    warning, all ranks are one flat level, as if every one were a host.
    """
    names = list(dict.fromkeys(hosts))
    per_host = len(hosts) // len(names)
    regular = list(hosts) == [name for name in names for _ in range(per_host)]
    if not regular:
        counts = ", ".join(f"{name}: {hosts.count(name)}" for name in names)
        _LOG.warning(
            "Ranks are not contiguous on hosts, or not equally many on each (%s): planning with one flat "
            "level, which "
            "does not tell links inside hosts from links between them. Start equally many ranks per host, "
            "host by "
            "host (mpirun --map-by slot).",
            counts,
        )
        return (("rank", len(hosts)),)
    if len(names) == 1:
        return (("device", per_host),)
    return (("host", len(names)),) if per_host == 1 else (("host", len(names)), ("device", per_host))


def _measure_topology(
    comm: MPI.Comm,
    ranks: Sequence[_Rank],
    measure: Callable[[tuple[int, ...]], ClosableMeasure] | None,
    budget_s: float,
) -> Topology:
    start_s = time.perf_counter()
    doing("measuring computation")
    comm.Barrier()  # all ranks compute at the same time, as they will when they train
    speeds = _on_every_rank(
        comm,
        "measuring computation",
        lambda: (
            probe.measure_flops_per_s("float32", 0.1),
            probe.measure_flops_per_s("float64", 0.05),
            probe.measure_memory_bandwidth_bytes_per_s(0.1),
        ),
    )
    # The slowest rank sets the pace of all.
    float32_flops_per_s, float64_flops_per_s, memory_bandwidth_bytes_per_s = (
        min(column) for column in zip(*speeds, strict=True)
    )
    hosts = [rank.host for rank in ranks]
    device = Device(
        f"{ranks[0].cpu}, {min(_cores(ranks)):.3g} cores",
        {"float32": float32_flops_per_s, "float64": float64_flops_per_s},
        memory_bandwidth_bytes_per_s,
        _memory_per_rank_bytes(ranks),
        _CPU_OP_OVERHEAD_S,
    )
    sizes = _on_every_rank(comm, "ordering ranks", lambda: level_sizes(hosts) if comm.rank == 0 else None)[0]
    # Until links are measured they are as fast as memory, which is right for the only level of a single rank.
    levels = tuple(Level(name, size, 0.0, memory_bandwidth_bytes_per_s) for name, size in sizes or ())
    unmeasured = Topology(f"{len(hosts)} ranks on {len(set(hosts))} hosts", levels, device)
    mesh = unmeasured.factor_mesh()
    doing("making ready to measure collectives")
    measuring = _MpiCollectives(comm, mesh) if measure is None or len(ranks) == 1 else measure(mesh)
    doing("measuring collectives")
    try:
        profile = measure_profile(
            unmeasured,
            measuring,
            _Ranks(comm),
            budget_s=budget_s,
            max_output_bytes=device.memory_bytes // 8,
        )
    finally:
        measuring.close()
    topology = dataclasses.replace(unmeasured, profile=profile if profile.entries else None)
    topology = dataclasses.replace(topology, levels=fitted_levels(topology))
    if comm.rank == 0:
        _LOG.debug("Measured %s in %.1f s.", topology, time.perf_counter() - start_s)
    # Clocks and rounding differ between ranks; the plan must not.
    return Topology.from_json(json.loads(comm.bcast(json.dumps(topology.to_json()) if comm.rank == 0 else None)))


def _on_every_rank(comm: MPI.Comm, what: str, function: Callable[[], _T]) -> list[_T]:
    """Every rank's result of a function without communication; an error of any rank is raised on all."""
    value: _T | None = None
    failure = None
    try:
        value = function()
    except Exception as error:  # whatever it is, the other ranks must hear of it instead of waiting
        failure = error
    answers: list[tuple[_T, str | None]] = comm.allgather((value, _described(failure)))
    _raise_first(what, [answer[1] for answer in answers], failure)
    return [answer[0] for answer in answers]


def _described(error: Exception | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _raise_first(what: str, messages: Sequence[str | None], mine: Exception | None) -> None:
    """Raises what failed first, on every rank, from this rank's own error if it has one."""
    failed = [rank for rank, message in enumerate(messages) if message is not None]
    if failed:
        heard = ClusterError(
            f"Collecting the hardware: {what} failed on {len(failed)} of {len(messages)} ranks, first on rank "
            f"{failed[0]}: {messages[failed[0]]}. See that rank's traceback, or give a topology file."
        )
        heard.failed_rank = None if mine is not None else failed[0]
        raise heard from mine


class ClosableMeasure(Protocol):
    """A ``benchmark.Measure`` that holds something."""

    def __call__(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float: ...

    def close(self) -> None:
        """Gives it back. Collective."""


class _Ranks:
    """Barriers and agreement over a communicator, for ``measure_profile``."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm

    def barrier(self) -> None:
        self._comm.Barrier()

    def agree(self, values: Sequence[float], error: Exception | None) -> list[float]:
        """The maxima over ranks; after an error, ClusterError on all ranks, or the end of the job.

        Ranks whose collective waits for the failed rank's part never come here: then only ending the job
        frees them.
        """
        from mpi4py import MPI

        mine = np.array([0.0 if error is None else 1.0, *values])
        largest = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, largest, MPI.MAX)
        if error is None:
            request.Wait()
        else:
            deadline_s = time.monotonic() + _FAILURE_GRACE_S
            while not request.Test():
                if time.monotonic() > deadline_s:
                    traceback.print_exception(error, file=sys.stderr)
                    sys.stderr.write(
                        f"tensoropt: rank {self._comm.rank} failed while measuring collectives, and other ranks wait "
                        "for it: ending the job.\n"
                    )
                    sys.stderr.flush()
                    self._comm.Abort(1)
                time.sleep(0.01)
        if largest[0] > 0:
            _raise_first("measuring collectives", self._comm.allgather(_described(error)), error)
        return [float(value) for value in largest[1:]]


class _MpiCollectives:
    """mpi4py's collectives over groups of mesh axes, as ``benchmark.Measure``."""

    def __init__(self, comm: MPI.Comm, mesh: tuple[int, ...]) -> None:
        self._comm = comm
        self._mesh = mesh
        self._groups: dict[tuple[int, ...], MPI.Comm] = {}
        self._calls = 0
        self._in = np.empty(0, dtype=np.float32)
        self._out = np.empty(0, dtype=np.float32)

    def __call__(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        group = self._group(axes)
        # Buffers are kept, so that no first touch of their pages is measured.
        self._in = _at_least(self._in, size_bytes // 4)
        self._out = _at_least(self._out, size_bytes // 4 * (group.size if kind == "all_gather" else 1))
        start_s = time.perf_counter()
        for _ in range(calls):
            self._run(kind, group, self._in[: size_bytes // 4])
        return (time.perf_counter() - start_s) / calls

    def _run(self, kind: str, group: MPI.Comm, array: NDArray[np.float32]) -> None:
        from mpi4py import MPI

        out = self._out[: array.size * (group.size if kind == "all_gather" else 1)]
        self._calls += 1
        if kind == "all_reduce":
            group.Allreduce(array, out, MPI.SUM)
        elif kind == "all_gather":
            group.Allgather(array, out)
        elif kind == "reduce_scatter":
            group.Reduce_scatter_block(array, out[: array.size // group.size], MPI.SUM)
        elif kind == "all_to_all":
            group.Alltoall(array, out)
        elif kind == "broadcast":
            # A root that changes cannot run ahead of the others.
            group.Bcast(array, root=self._calls % group.size)
        elif kind == "permute":
            # Half-way round the group, so that every piece crosses its outermost level.
            step = group.size // 2
            group.Sendrecv(array, (group.rank + step) % group.size, 0, out, (group.rank - step) % group.size, 0)
        else:
            raise ClusterError(f"Collective {kind!r}: mpi4py's measurement does not know it. Pass measure=.")

    def _group(self, axes: tuple[int, ...]) -> MPI.Comm:
        if axes not in self._groups:
            coordinates = np.unravel_index(self._comm.rank, self._mesh)
            others = [axis for axis in range(len(self._mesh)) if axis not in axes]
            color, position = (
                int(np.ravel_multi_index([coordinates[a] for a in chosen], [self._mesh[a] for a in chosen]))
                if chosen
                else 0
                for chosen in (others, axes)
            )
            self._groups[axes] = self._comm.Split(color, position)
        return self._groups[axes]

    def close(self) -> None:
        """Frees the communicators. Collective."""
        for axes in sorted(self._groups):
            self._groups[axes].Free()
        self._groups.clear()


def _at_least(buffer: NDArray[np.float32], elements: int) -> NDArray[np.float32]:
    return buffer if buffer.size >= elements else np.ones(elements, dtype=np.float32)
