"""Which costs a search goes by: measured on the devices of the job, or analytic for any others.

What is measured is kept per machine in the cache directory, so that a model is measured once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensoropt.api.candidates import Candidate, candidates_of, in_batches, likeliest_first, runs_of
from tensoropt.api.curves import (
    CURVES,
    iteration_seconds,
    measure_curves,
    optimizer_key,
    run_probes,
)
from tensoropt.api.machine import Machine
from tensoropt.api.model import OptimizerSpec
from tensoropt.cluster import Topology
from tensoropt.cluster.cache import load_document, store_document, warn_of_damage
from tensoropt.cost import Curve, OpProfile, OpTime
from tensoropt.errors import ClusterError, PlanError
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, Guard
from tensoropt.exec.engines.settings import setting
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.primitive_cache import uncache_products
from tensoropt.search.space import SearchSpace
from tensoropt.stages import came_to, counting, doing, stage

__all__ = ["COSTS", "check_costs", "measure_profile_of", "optimizer_key", "settle_costs"]

_log = logging.getLogger("tensoropt")
COSTS = ("measured", "analytic")
_VARIABLE = "TENSOROPT_COSTS"
_BUDGET_VARIABLE = "TENSOROPT_PROFILE_SECONDS"
_BUDGET_S = 30.0
_ROUNDS_VARIABLE = "TENSOROPT_PROFILE_ROUNDS"
# An operator that needs more of a device's memory than this, with its gradients, is not measured.
_MEMORY_SHARE = 0.2


def check_costs(costs: str | None) -> str | None:
    """``costs``, or what the environment variable TENSOROPT_COSTS says; None to choose by what there is.

    Raises:
        PlanError: if it is neither.
    """
    chosen = setting(_VARIABLE) or costs
    if chosen is not None and chosen not in COSTS:
        source = _VARIABLE if setting(_VARIABLE) else "find_strategy: costs"
        raise PlanError(f"{source} must be one of {', '.join(map(repr, COSTS))}, got {chosen!r}.")
    return chosen


def settle_costs(job: Any, planner: Any, topology: Topology, costs: str | None) -> None:
    """Lets a planner go by measured costs where they can be had, and measures what is missing. Collective.

    Args:
        job: the current job.
        planner: a ``Planner``.
        topology: what is planned for.
        costs: ``measured`` or ``analytic``; None measures if the devices are the job's. TENSOROPT_COSTS wins.

    Raises:
        PlanError: another name, or measured costs of devices that are not here.
        CollectiveError: if measuring fails on another rank.
    """
    chosen = check_costs(costs)
    reason = _unmeasurable(job, topology)
    if chosen == "measured" and reason is not None:
        raise PlanError(
            f"find_strategy(costs='measured'): {reason}. Call tensoropt.init() under mpirun and leave topology out, or "
            "use costs='analytic'."
        )
    if chosen == "analytic" or reason is not None:
        planner.calibrate(None)
        return
    if planner.undivided(topology.device_count) is not None:
        return  # the search will say so
    optimizers = list({optimizer_key(step.optimizer): step.optimizer for step in planner.model.train_steps}.values())
    with stage("profiling"):
        with current_watch().working("listing operators to measure"):
            space = planner.space(topology)
        planner.calibrate(measure_profile_of(job, topology, space, optimizers, refresh=job.remeasure))
    job.remeasure = False


def _unmeasurable(job: Any, topology: Topology) -> str | None:
    """Why operators cannot be measured for a topology; None if they can."""
    if job.comm is None or job.guard is None:
        return "operators are measured on the devices of a job, and there is none"
    if job.topology is None or topology.fingerprint() != job.topology.fingerprint():
        return f"{topology} is not what this job runs on"
    if topology.device_count > 1 and topology.profile is None:
        return f"the collectives of {topology} were not measured"
    return None


def measure_profile_of(
    job: Any,
    topology: Topology,
    space: SearchSpace,
    optimizers: Sequence[OptimizerSpec],
    *,
    refresh: bool = False,
    budget_s: float | None = None,
) -> OpProfile:
    """What operators of a space take on this job's devices: from the cache, and measured where it lacks something.

    Collective over the job. What is most likely to be chosen is measured first: configurations in which an operator is
    nearly as fast as in any, and of those the ones that take longest. What the budget has no time for is left to the
    analytic model.

    Args:
        job: has ``comm`` and ``guard``.
        topology: the job's.
        space: whose operators and configurations are to be known.
        optimizers: whose updates are.
        refresh: measure even what the cache has.
        budget_s: seconds for measuring; the environment variable TENSOROPT_PROFILE_SECONDS, or 30, by default. If there
            is time, all is measured as often as TENSOROPT_PROFILE_ROUNDS says, which is once by default, and medians
            count: a machine may be slow for some seconds.

    Raises:
        CollectiveError: if measuring fails on another rank.
    """
    guard: Guard = job.guard
    what = "measuring operators"
    guard.meet(what)
    try:
        with current_watch().working(what):
            budget_s = _budget_s() if budget_s is None else budget_s
            return _measure(job, topology, space, optimizers, refresh, budget_s, _rounds())
    except Exception as error:
        # The others may wait for this rank's turn.
        guard.meet(what, error, patience_s=FAILURE_PATIENCE_S)
        raise


def _measure(
    job: Any,
    topology: Topology,
    space: SearchSpace,
    optimizers: Sequence[OptimizerSpec],
    refresh: bool,
    budget_s: float,
    rounds: int,
) -> OpProfile:
    doing("looking for what is to be measured")
    comm = job.comm
    machine = Machine.of(comm)
    uncache_products(space.graph, topology.device_count)
    candidates = candidates_of(topology, space, comm.rank)
    names = [f"update {optimizer_key(spec)}" for spec in optimizers]
    known, chosen, curves = comm.bcast(
        _choose(topology, machine, candidates, names, refresh) if comm.rank == 0 else None, root=0
    )
    if not chosen and not curves:
        came_to(f"all {len(candidates)} operators were measured before")
        return known
    start = time.perf_counter()
    order = {key: position for position, key in enumerate(candidates)}
    batches = in_batches([(key, candidates[key]) for key in chosen])
    rounds = comm.bcast(rounds, root=0)
    seconds: dict[str, list[tuple[float, float]]] = {}
    times: dict[str, OpTime] = {}
    refused: set[str] = set()
    lines: list[dict[str, Curve]] = []
    iteration_s = 0.0
    with counting(rounds * len(batches) + bool(curves), "batches of operators") as advance:
        if curves:
            iteration_s = iteration_seconds(comm, job.guard)
            lines.append(measure_curves(machine, comm, optimizers))
            advance()
        for number, batch in enumerate(rounds * batches):
            spent_s = time.perf_counter() - start
            if not comm.bcast(spent_s * (number + 1) <= budget_s * max(number, 1), root=0):
                break  # another batch would take as long as those before, and more than there is
            if lines and number and number % len(batches) == 0:
                lines.append(measure_curves(machine, comm, optimizers))
            batch.sort(key=lambda item: order[item[0]])  # runs are like steps then
            measured = run_probes(machine, comm, [candidate.probe for _, candidate in batch], runs_of(batch))
            for (key, candidate), entry in zip(batch, measured, strict=True):
                if entry is None:
                    refused.add(key)
                    continue
                forward_s, backward_s, alone = entry
                seconds.setdefault(key, []).append((forward_s, backward_s))
                forward_s, backward_s = np.median(seconds[key], axis=0).tolist()
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
            advance()
    profile = known.with_more(OpProfile(times, _medians(lines), iteration_s, frozenset(refused)))
    if comm.rank == 0:
        store_document("ops", machine.key, profile.to_json())
    left = len(candidates.keys() - profile.times.keys())
    came_to(f"measured {len(times)} of {len(candidates)} operators, {left} are left to estimates")
    return comm.bcast(profile, root=0)


# ------------------------------------------------------------------------------------------------------- what to do


def _choose(
    topology: Topology,
    machine: Machine,
    candidates: Mapping[str, Candidate],
    updates: Sequence[str],
    refresh: bool,
) -> tuple[OpProfile, list[str], bool]:
    """What is known, and what to measure: operators, the likeliest ones first, and whether the curves."""
    known = OpProfile()
    document = None if refresh else load_document("ops", machine.key)
    if document is not None:
        try:
            known = OpProfile.from_json(document)
        except ClusterError as error:
            warn_of_damage("profile of operators", error)
    room = topology.device.memory_bytes * _MEMORY_SHARE
    missing = [
        key
        for key, candidate in candidates.items()
        if key not in known.times and key not in known.refused and candidate.size_bytes <= room
    ]
    return known, likeliest_first(candidates, missing), any(name not in known.curves for name in (*CURVES, *updates))


def _budget_s() -> float:
    text = setting(_BUDGET_VARIABLE)
    try:
        value = float(text) if text else _BUDGET_S
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise PlanError(f"{_BUDGET_VARIABLE}: must be a number of seconds from 0, got {text!r}. Leave it unset for 30.")
    return value


def _medians(rounds: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Curves that were measured in several rounds."""
    if not rounds:
        return {}
    every = {name: [curves[name] for curves in rounds] for name in rounds[0]}
    return {
        name: Curve(found[0].sizes_bytes, tuple(np.median([curve.seconds for curve in found], axis=0).tolist()))
        for name, found in every.items()
    }


def _rounds() -> int:
    text = setting(_ROUNDS_VARIABLE) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise PlanError(f"{_ROUNDS_VARIABLE}: must be a whole number from 1, got {text!r}. Leave it unset for 1.")
    return int(text)
