"""The hardware that an MPI job runs on: what its ranks say of their hosts, how fast they compute and talk."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from tensoropt.cluster import COLLECTIVE_KINDS, Device, Level, Topology
from tensoropt.errors import ClusterError
from tensoropt.measure.cache import TOPOLOGIES
from tensoropt.measure.collective_sizes import METHOD, measure_profile, measured_groups
from tensoropt.measure.computation import measure_flops_per_s, measure_memory_bandwidth_bytes_per_s
from tensoropt.measure.levels import fitted_levels, level_sizes
from tensoropt.measure.machine import Machine, Rank
from tensoropt.stages import doing

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["collect"]

_log = logging.getLogger("tensoropt")
_T = TypeVar("_T")

# How long a rank that failed inside a collective waits for the others to leave theirs, before it ends the
# job.
_FAILURE_GRACE_S = 10.0
# Memory is rounded down to this, so that it stays the same from run to run where it nearly does.
_MEMORY_STEP_BYTES = 64 * 2**20
# Running an op that computes nothing in TensorFlow's CPU executor; a profile of ops replaces this guess.
_CPU_OP_OVERHEAD_S = 5e-6
# For measuring collectives. Within a host half a second for each kind over each group tells as much as a whole one;
# on a network large messages take longer, and messages of other jobs come in between.
_BUDGET_S = 6.0
_BUDGET_OF_ONE_S = 0.5


def collect(
    comm: MPI.Comm,
    *,
    refresh: bool = False,
    measure: Callable[[tuple[int, ...], bool], ClosableMeasure] | None = None,
    engine: str | None = None,
    budget_s: float | None = None,
) -> Topology:
    """The topology of the ranks of ``comm``, the same on all of them. Collective over ``comm``.

    Hosts, cores and memory are looked up on every call; computation, memory and collectives are measured once
    and cached per hosts, ranks per host, processor, MPI version and engine (see ``cache.TOPOLOGIES``).

    Args:
        comm: an mpi4py communicator; rank ``r`` is device ``r``.
        refresh: measure even if the cache has it.
        measure: given the factor mesh and whether ranks share cores, makes what runs collectives; called and closed on
            all ranks, and only if there is something to measure. By default those of the engine that will train.
        engine: the name under which what ``measure`` measures is cached.
        budget_s: seconds for measuring collectives; by default `_BUDGET_S`, or less where few are to be measured.

    Raises:
        ClusterError: on every rank, if collecting fails on any.
        EngineError: there is no such engine as TENSOROPT_COLLECTIVES says.
    """
    if engine is None:
        from tensoropt.exec.engines.select import engine_name  # takes TensorFlow

        engine = engine_name()
    control = comm.Dup()  # so that no message of ours meets one of the caller's
    try:
        return _collect(control, refresh, measure or _of_the_engine, engine, budget_s)
    finally:
        # Freeing is collective, and every way out of _collect, return or raise, is taken by all ranks.
        control.Free()


def _of_the_engine(mesh: tuple[int, ...], crowded: bool) -> ClosableMeasure:
    from tensoropt.exec.engines.select import make_engine
    from tensoropt.measure.collective_seconds import EngineMeasurement

    return EngineMeasurement(make_engine(mesh_shape=mesh), crowded=crowded)


def _collect(
    comm: MPI.Comm,
    refresh: bool,
    measure: Callable[[tuple[int, ...], bool], ClosableMeasure],
    engine: str,
    budget_s: float | None,
) -> Topology:
    from tensoropt.exec.engines.launch import mpi_settings, mpi_version

    machine = Machine(comm, _on_every_rank(comm, "describing the host", Rank.of_this_process))
    hosts = list(dict.fromkeys(machine.hosts))
    key = {
        "hosts": hosts,
        "ranks": [hosts.index(host) for host in machine.hosts],
        "cpus": sorted({rank.cpu for rank in machine.ranks}),
        "cores": machine.cores,
        "sharing": machine.sharing,
        "environment": sorted({"\n".join(rank.environment) for rank in machine.ranks}),
        "mpi": mpi_version(),
        "mpi_settings": mpi_settings(),
        "engine": engine,
        "method": METHOD,
        "kinds": list(COLLECTIVE_KINDS),
    }
    topology = _on_every_rank(
        comm, "reading the cache", lambda: TOPOLOGIES.load(key) if comm.rank == 0 and not refresh else None
    )[0]
    if topology is None:
        measured = topology = _measure_topology(comm, machine, measure, budget_s)
        _on_every_rank(comm, "writing the cache", lambda: TOPOLOGIES.store(key, measured) if comm.rank == 0 else None)
    # Other programs come and go, so a remembered figure could promise memory that is gone.
    device = dataclasses.replace(topology.device, memory_bytes=_memory_per_rank_bytes(machine))
    return dataclasses.replace(topology, device=device)


def _memory_per_rank_bytes(machine: Machine) -> int:
    """The least that any rank can have: every host's or card's memory is shared evenly by its ranks."""
    least = min(rank.memory_bytes // several for rank, several in zip(machine.ranks, machine.sharing, strict=True))
    return max(least // _MEMORY_STEP_BYTES * _MEMORY_STEP_BYTES, 1)


def _measure_topology(
    comm: MPI.Comm,
    machine: Machine,
    measure: Callable[[tuple[int, ...], bool], ClosableMeasure],
    budget_s: float | None,
) -> Topology:
    start_s = time.perf_counter()
    doing("measuring computation")
    comm.Barrier()  # all ranks compute at the same time, as they will when they train
    speeds = _on_every_rank(
        comm,
        "measuring computation",
        _speeds_of_the_card if machine.ranks[comm.rank].card else _speeds_of_the_processor,
    )
    # The slowest rank sets the pace of all.
    float32_flops_per_s, float64_flops_per_s, memory_bandwidth_bytes_per_s = (
        min(column) for column in zip(*speeds, strict=True)
    )
    hosts = machine.hosts
    device = Device(
        f"{machine.ranks[0].cpu}, {_counted(min(machine.cores), 'core')}",
        {"float32": float32_flops_per_s, "float64": float64_flops_per_s},
        memory_bandwidth_bytes_per_s,
        _memory_per_rank_bytes(machine),
        _CPU_OP_OVERHEAD_S,
    )
    sizes = _on_every_rank(comm, "ordering ranks", lambda: level_sizes(hosts) if comm.rank == 0 else None)[0]
    # Until links are measured they are as fast as memory, which is right for the only level of a single rank.
    levels = tuple(Level(name, size, 0.0, memory_bandwidth_bytes_per_s) for name, size in sizes or ())
    name = f"{_counted(len(hosts), 'rank')} on {_counted(len(set(hosts)), 'host')}"
    unmeasured = Topology(name, levels, device)
    topology = unmeasured
    if len(hosts) > 1:
        doing("making ready to measure collectives")
        measuring = measure(unmeasured.factor_mesh(), machine.crowding > 1)
        doing("measuring collectives")
        if budget_s is None:
            measured = len(measured_groups(unmeasured)) * len(COLLECTIVE_KINDS)
            budget_s = min(_BUDGET_S, measured * _BUDGET_OF_ONE_S) if len(set(hosts)) == 1 else _BUDGET_S
        try:
            profile = measure_profile(
                unmeasured, measuring, _Ranks(comm), budget_s=budget_s, max_output_bytes=device.memory_bytes // 8
            )
        finally:
            measuring.close()
        topology = dataclasses.replace(unmeasured, profile=profile)
        topology = dataclasses.replace(topology, levels=fitted_levels(topology))
    if comm.rank == 0:
        _log.debug("Measured %s in %.1f s.", topology, time.perf_counter() - start_s)
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


def _speeds_of_the_processor() -> tuple[float, float, float]:
    return (
        measure_flops_per_s("float32", 0.1),
        measure_flops_per_s("float64", 0.05),
        measure_memory_bandwidth_bytes_per_s(0.1),
    )


def _speeds_of_the_card() -> tuple[float, float, float]:
    from tensoropt.measure.card import card_speeds  # takes TensorFlow

    return card_speeds()


def _counted(number: float, what: str) -> str:
    return f"{number:.3g} {what}{'' if number == 1 else 's'}"
