"""The times of a space's operators on this job's devices: from the cache, and measured where the cache lacks them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.cluster import Topology
from tensoropt.cost import Curve, OpProfile, OpTime
from tensoropt.errors import PlanError
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, Guard
from tensoropt.exec.engines.settings import MOST_S, number_setting
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.measure.cache import OPERATORS
from tensoropt.measure.candidates import Candidate, Space, candidates_of, in_batches, likeliest_first, runs_of
from tensoropt.measure.curves import CURVES, Update, iteration_seconds, measure_curves, updates_of
from tensoropt.measure.machine import Communicator, Machine
from tensoropt.measure.probe_batch import Measured
from tensoropt.measure.probe_seconds import run_probes
from tensoropt.stages import came_to, counting, doing

__all__ = ["MEASURING_OPERATORS", "keep_operators", "measure_operators"]

MEASURING_OPERATORS = "measuring operators"
# Another number is given to other ways of measuring, so that what was measured before is measured anew.
_PROBES = 2
_BUDGET_VARIABLE = "TENSOROPT_PROFILE_SECONDS"
_BUDGET_S = 30.0
_ROUNDS_VARIABLE = "TENSOROPT_PROFILE_ROUNDS"
_MOST_ROUNDS = 1000
# What decides how fast TensorFlow computes, beside the machine.
_ENVIRONMENT = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS")
# An operator that needs more of a device's memory than this, with its gradients, is not measured.
_MEMORY_SHARE = 0.2


def measure_operators(
    comm: Communicator,
    guard: Guard,
    topology: Topology,
    space: Space,
    *,
    refresh: bool = False,
) -> OpProfile:
    """Measures what is not known yet. Collective.

    What is most likely to be chosen is measured first: configurations in which an operator is nearly as fast as in any,
    and of those the ones that take longest. What there is no time for is left to the analytic model. There are
    TENSOROPT_PROFILE_SECONDS for it, 30 by default. If there is time, all is measured as often as
    TENSOROPT_PROFILE_ROUNDS says, which is once by default, and medians count: a machine may be slow for some seconds.

    Args:
        comm: of all ranks.
        guard: of all ranks.
        topology: that the ranks are on.
        space: whose operators and configurations are to be known.
        refresh: measure even what the cache has.

    Raises:
        PlanError: a variable of the environment is not what it must be.
        CollectiveError: if measuring fails on another rank.
    """
    guard.meet(MEASURING_OPERATORS)
    try:
        return _measure(comm, guard, topology, space, updates_of(space.graph), refresh, _budget_s(), _rounds())
    except Exception as error:
        # The others may wait for this rank's turn.
        guard.meet(MEASURING_OPERATORS, error, patience_s=FAILURE_PATIENCE_S)
        raise


def _measure(
    comm: Communicator,
    guard: Guard,
    topology: Topology,
    space: Space,
    updates: Mapping[str, Update],
    refresh: bool,
    budget_s: float,
    rounds: int,
) -> OpProfile:
    doing("looking for what is to be measured")
    machine = Machine.of(comm)
    key = _key(machine)
    uncache_products(space.graph, topology.device_count)
    candidates = candidates_of(topology, space, comm.rank)
    choice: Any = None
    if comm.rank == 0:
        choice = (*_choose(topology, key, candidates, updates, refresh), rounds)
    known, chosen, lacks_curves, rounds = comm.bcast(choice)
    if not chosen and not lacks_curves:
        came_to(f"all {len(candidates)} operators were measured before")
        return known
    found = _Found()
    start = time.perf_counter()
    order = {key: position for position, key in enumerate(candidates)}
    batches = in_batches([(key, candidates[key]) for key in chosen])
    with counting(rounds * len(batches) + lacks_curves, "batches of operators") as advance:
        if lacks_curves:
            found.iteration_s = iteration_seconds(machine, guard)
            found.curves.append(measure_curves(machine, updates))
            advance()
        for number, batch in enumerate(rounds * batches):
            spent_s = time.perf_counter() - start
            if not comm.bcast(spent_s * (number + 1) <= budget_s * max(number, 1)):
                break  # another batch would take as long as those before, and more than there is
            if found.curves and number and number % len(batches) == 0:
                found.curves.append(measure_curves(machine, updates))
            batch.sort(key=lambda item: order[item[0]])  # runs are like steps then
            found.add(batch, run_probes(machine, [candidate.as_repeated for _, candidate in batch], runs_of(batch)))
            advance()
    profile = known.with_more(found.profile(candidates))
    if comm.rank == 0:
        OPERATORS.store(key, profile)
    left = len(candidates.keys() - profile.times.keys())
    came_to(f"measured {len(found.seconds)} of {len(candidates)} operators, {left} are left to estimates")
    return comm.bcast(profile)


def keep_operators(comm: Communicator, profile: OpProfile) -> None:
    """Keeps a profile as what was measured of this job's devices, for the next search. Collective."""
    key = _key(Machine.of(comm))
    if comm.rank == 0:
        OPERATORS.store(key, profile)


def _key(machine: Machine) -> dict[str, Any]:
    """Returns the key under which the measurements of this machine are cached."""
    return {
        "hosts": sorted(set(machine.hosts)),
        "cpus": sorted({rank.cpu for rank in machine.ranks}),
        "cores": min(machine.cores),
        "sharing": max(machine.sharing),
        "tensorflow": tf.__version__,
        "probes": _PROBES,
        "environment": [os.environ.get(name, "") for name in _ENVIRONMENT],
    }


def _choose(
    topology: Topology,
    key: Mapping[str, Any],
    candidates: Mapping[str, Candidate],
    updates: Mapping[str, Update],
    refresh: bool,
) -> tuple[OpProfile, list[str], bool]:
    """Returns the cached profile, the keys to measure with the likeliest first, and whether to measure the curves."""
    known = (None if refresh else OPERATORS.load(key)) or OpProfile()
    room = topology.device.memory_bytes * _MEMORY_SHARE
    missing = [
        key
        for key, candidate in candidates.items()
        if key not in known.times and key not in known.refused and candidate.size_bytes <= room
    ]
    curves = (*CURVES, *(f"update {name}" for name in updates))
    return known, likeliest_first(candidates, missing), any(name not in known.curves for name in curves)


@dataclass(slots=True)
class _Found:
    """The measurements of some rounds.

    Attributes:
        seconds: by ``profile_key``, forward and backward in each round.
        measured: by ``profile_key``, the last measurement on this rank.
        refused: keys of operators that cannot be measured by themselves.
        curves: of each round.
        iteration_s: of a step that computes nothing.
    """

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    curves: list[dict[str, Curve]] = field(default_factory=list)
    iteration_s: float = 0.0

    def add(
        self, batch: Sequence[tuple[str, Candidate]], entries: Sequence[tuple[float, float, Measured] | None]
    ) -> None:
        """Adds what ``run_probes`` found of a batch."""
        for (key, _), entry in zip(batch, entries, strict=True):
            if entry is None:
                self.refused.add(key)
                continue
            forward_s, backward_s, self.measured[key] = entry
            self.seconds.setdefault(key, []).append((forward_s, backward_s))

    def profile(self, candidates: Mapping[str, Candidate]) -> OpProfile:
        """The rounds' medians."""
        times = {}
        for key, seconds in self.seconds.items():
            candidate, alone = candidates[key], self.measured[key]
            forward_s, backward_s = np.median(seconds, axis=0).tolist()
            times[key] = OpTime(
                candidate.probe.op.type,
                forward_s,
                backward_s,
                candidate.analytic_s,
                alone.forward_reduced_bytes,
                alone.backward_reduced_bytes,
                alone.scratch_bytes,
                candidate.whole,
            )
        return OpProfile(times, _medians(self.curves), self.iteration_s, frozenset(self.refused))


def _medians(rounds: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Curves that were measured in several rounds."""
    if not rounds:
        return {}
    every = {name: [curves[name] for curves in rounds] for name in rounds[0]}
    return {
        name: Curve(found[0].sizes_bytes, tuple(np.median([curve.seconds for curve in found], axis=0).tolist()))
        for name, found in every.items()
    }


def _budget_s() -> float:
    return number_setting(_BUDGET_VARIABLE, _BUDGET_S, MOST_S, PlanError, "a number of seconds from 0")


def _rounds() -> int:
    wanted = "a whole number from 1"
    return int(number_setting(_ROUNDS_VARIABLE, 1, _MOST_ROUNDS, PlanError, wanted, least=1, whole=True))
