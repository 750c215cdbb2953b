"""Chooses the costs that a search uses: measured on the devices of the job, or analytic for any others.

Measurements are kept per machine in the cache directory, so that a model is measured once.
"""

from __future__ import annotations

from tensoropt.api.find.planner import Planner
from tensoropt.api.session.job import Job
from tensoropt.cluster import Topology
from tensoropt.errors import MicroBatchError, PlanError, did_you_mean
from tensoropt.exec.engines.settings import setting
from tensoropt.measure.operators import MEASURING_OPERATORS, measure_operators
from tensoropt.plan.plan import Plan
from tensoropt.stages import stage

__all__ = ["COSTS", "check_costs", "settle_costs", "settle_costs_of"]

COSTS = ("measured", "analytic")
_VARIABLE = "TENSOROPT_COSTS"


def check_costs(costs: str | None) -> str | None:
    """``costs``, or what the environment variable TENSOROPT_COSTS says; None to choose by what there is.

    Raises:
        PlanError: one of them is neither.
    """
    given = {"find_strategy: costs": costs, _VARIABLE: setting(_VARIABLE) or None}
    for source, name in given.items():
        if name is not None and name not in COSTS:
            raise PlanError(
                f"{source} must be one of {', '.join(map(repr, COSTS))}, got {name!r}.{did_you_mean(name, COSTS)} "
                "Leave it out to have it chosen."
            )
    return given[_VARIABLE] or costs


def settle_costs(job: Job, planner: Planner, topology: Topology, costs: str | None) -> None:
    """Makes a planner use measured costs where possible, and measures those that are missing. Collective.

    Args:
        job: the current job.
        planner: for its model.
        topology: the cluster that is planned for.
        costs: ``measured`` or ``analytic``; None measures if the devices are the job's. TENSOROPT_COSTS wins.

    Raises:
        PlanError: another name, or measured costs of devices that are not here.
        CollectiveError: if measuring fails on another rank.
    """
    chosen = check_costs(costs)
    reason = _unmeasurable(job, topology)
    if chosen == "measured" and reason is not None and job.rehearsal is None:
        raise PlanError(
            f"find_strategy(costs='measured'): {reason}. Call tensoropt.init() under mpirun and leave topology out, or "
            "use costs='analytic'."
        )
    guard = job.world.guard
    if chosen == "analytic" or reason is not None or guard is None:
        planner.calibrate(None)
        return
    if planner.undivided(topology.device_count) is not None:
        return  # the search will say so
    try:
        space = planner.space(topology)
    except MicroBatchError:
        return  # as here
    with stage("profiling", MEASURING_OPERATORS):
        profile = measure_operators(job.world.comm, guard, topology, space, refresh=job.remeasure)
    planner.calibrate(profile)
    job.remeasure = False


def settle_costs_of(job: Job, planner: Planner, topology: Topology, plan: Plan) -> bool:
    """Measures the operators of a plan in the sizes that its micro-batches give them, where these are not known.

    Before a search of whole batches and others, only those of whole batches are measured: all numbers of micro-batches
    would take many times as long. But small pieces take longer than their share of large ones. Collective.

    Args:
        job: the current job.
        planner: that found the plan.
        topology: the cluster that it was found for.
        plan: the same on all ranks.

    Returns:
        True if something was measured, so that another plan may be better.

    Raises:
        CollectiveError: if measuring fails on another rank.
    """
    guard, known = job.world.guard, planner.profile
    is_here = guard is not None and plan.mesh.size == topology.device_count
    if guard is None or known is None or plan.micro_batches == 1 or not is_here:
        return False
    with stage("profiling", MEASURING_OPERATORS):
        space = planner.of_plan(plan).space_of(topology, plan)
        profile = measure_operators(job.world.comm, guard, topology, space)
    planner.calibrate(profile)
    return profile.times.keys() != known.times.keys()


def _unmeasurable(job: Job, topology: Topology) -> str | None:
    """Why operators cannot be measured for a topology; None if they can."""
    if job.world.guard is None:
        return "operators are measured on the devices of a job, and there is none"
    if job.topology is None or topology.fingerprint() != job.topology.fingerprint():
        return f"{topology} is not what this job runs on"
    if topology.device_count > 1 and topology.profile is None:
        return f"the collectives of {topology} were not measured"
    return None
