"""``explain``, ``report`` and ``diff``: where a plan's time and memory go, why it is so, and how two plans differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from tensoropt.api.arguments import where_to_plan
from tensoropt.api.find.device_counts import profile
from tensoropt.api.find.planner import Planner
from tensoropt.api.find.plans import loaded
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.costs import settle_costs
from tensoropt.api.session.job import job_of, planned_as
from tensoropt.api.session.measuring import Measuring
from tensoropt.cluster import Topology
from tensoropt.errors import PlanError
from tensoropt.logs import is_speaker
from tensoropt.plan.plan import Plan
from tensoropt.search.alternatives import explained
from tensoropt.search.explanation import Explanation
from tensoropt.search.measurement import Measurement
from tensoropt.search.plan_difference import Difference
from tensoropt.search.plan_page import plan_page
from tensoropt.space.peak import memory_course, scratch_of
from tensoropt.stages import stage
from tensoropt.viz.page import Page

__all__ = ["diff", "explain", "report"]

_Told = TypeVar("_Told")

_NO_CLUSTER = "the plan's cluster is not here: give topology="


def explain(plan: Plan | str | os.PathLike[str], topology: Topology | str | None = None) -> Explanation:
    """Explains where a plan's time and memory go, and why the plan was chosen. Nothing runs.

    A plan alone, also one from a file, says by what parts its step and a device's memory add up, where the peak is, and
    which collectives take longest. Where its model is here, too (a script's, or that of a Keras model or function that
    was planned), every layer that is split has its runner-up: the fastest strategy in which the layer's main operator
    is split otherwise, and all else as suits that best; and data parallelism, Megatron's and ZeRO's layouts say what
    they would cost and why they lose.

    Args:
        plan: what ``find_strategy`` or a comparison's ``plan(method)`` returned, the ``tensoropt_plan`` of a function
            or Keras model, one of ``tensoropt.keras.plan``, or the path of a file.
        topology: the cluster that the plan is for, or a preset's name, if it is neither the job's nor that of the last
            search.

    Returns:
        The explanation: ``show()`` prints it, ``to_json()`` gives it as text, and its attributes are plain values.

    Raises:
        PlanError: it is no plan, one that says nothing of its operators, or one for another cluster.
        ClusterError: no preset is called so.
    """
    return _told("explain", plan, topology, _explained, Explanation.of)


def report(
    plan: Plan | str | os.PathLike[str],
    path: str | os.PathLike[str] = "report.html",
    topology: Topology | str | None = None,
    *,
    measured: Measuring | None = None,
) -> None:
    """Writes a plan's report: one file of HTML that needs no network. Nothing runs; rank 0 writes.

    What :func:`explain` says, and where the plan's model is here, too, the frontier that the plan is a point of or
    beside, with known layouts and each strategy's splits; what other numbers of devices take; and what a device holds
    over the step. In a notebook a plan or a frontier that is the last value of a cell shows a short form of it.

    Args:
        plan: as of :func:`explain`.
        path: the file.
        topology: as of :func:`explain`.
        measured: steps that ran by the plan, which then stand beside what is predicted.

    Raises:
        PlanError: as of :func:`explain`, or another plan was measured.
        SessionError: the block of ``measured`` is not over.
        PlotError: Plotly is missing, or there can be no such file.
    """

    steps = None if measured is None else measured.result

    def whole(given: Plan, planner: Planner, where: Topology) -> None:
        _page(given, planner, where, steps).save(path)

    def alone(given: Plan, missing: str | None = None) -> None:
        if is_speaker():
            told = Explanation.of(given) if missing is None else Explanation.of(given, missing)
            plan_page(given, told, measured=steps).save(path)

    _told("report", plan, topology, whole, alone)


def diff(one: Plan | str | os.PathLike[str], other: Plan | str | os.PathLike[str]) -> Difference:
    """Compares two plans: the layers that they split or store differently, and their parts of time and memory.

    Args:
        one: a plan, or the path of a file; its model need not be here.
        other: another one, which may be for another cluster.

    Returns:
        The difference: ``show()`` prints it, ``to_json()`` gives it as text.

    Raises:
        PlanError: one of them is no plan, or says nothing of its operators.
    """
    plans = [loaded(plan) for plan in (one, other)]
    for plan in plans:
        planned_as("diff", plan)  # which tells a plan from anything else
    return Difference.of(plans[0], plans[1])


def _told(
    name: str,
    plan: Plan | str | os.PathLike[str],
    topology: Topology | str | None,
    whole: Callable[[Plan, Planner, Topology], _Told],
    alone: Callable[..., _Told],
) -> _Told:
    """Returns the account of a plan: with its model where that is here, else from the plan alone.

    Args:
        name: of the function that was called.
        plan: its argument.
        topology: its argument.
        whole: makes the account on rank 0, with the model's planner, and the plan's cluster.
        alone: makes the account of a plan by itself, given the reason why there is no more.
    """
    given: Plan = loaded(plan)
    is_here = planned_as(name, given) is not None
    noted, feed = given.notes.get("topology"), str(given.notes.get("feed", "data_parallel"))
    if not is_here:  # the model is gone
        if given.graph is None:
            return alone(given)
        if topology is None:
            return alone(given, _NO_CLUSTER)
        where = where_to_plan(name, topology, None)
        _check_cluster(name, given, where)
        return whole(given, Planner(ImportedModel(given.graph, None, ()), feed, Model()).of_plan(given), where)
    what = f"{name}({given.option})"
    with job_of(name, given) as job:
        cluster = None if topology is None else where_to_plan(name, topology, None)
        with job.world.step(what):
            if cluster is not None:
                _check_cluster(name, given, cluster)
            elif job.topology is not None and job.topology.fingerprint() == noted:
                cluster = job.topology
            planner = job.planner(feed)
        if cluster is not None:
            settle_costs(job, planner.of_plan(given), cluster, given.notes.get("costs"))

        def make() -> _Told:
            known = cluster or planner.searched_on(str(noted))
            return alone(given, _NO_CLUSTER) if known is None else whole(given, planner.of_plan(given), known)

        with stage(name):
            return job.world.on_rank_0(what, make)


def _page(plan: Plan, planner: Planner, topology: Topology, measured: Measurement | None) -> Page:
    """All that a model's planner knows of a plan."""
    space = planner.space(topology)
    limit_bytes = plan.notes.get("memory_limit_bytes")
    return plan_page(
        plan,
        _explained(plan, planner, topology),
        course=memory_course(
            space.graph, space.rules, plan, scratch_of(space.cost, space.graph, space.rules), space.steps
        ),
        frontier=planner.frontier(topology),
        space=space,
        profile=profile(planner, topology, None, limit_bytes, None, planner.micro_batches),
        limit_bytes=limit_bytes,
        measured=measured,
    )


def _explained(plan: Plan, planner: Planner, topology: Topology) -> Explanation:
    return explained(plan, planner.space(topology), lambda name: planner.find(topology, name))


def _check_cluster(name: str, plan: Plan, topology: Topology) -> None:
    noted: Any = plan.notes.get("topology")
    if topology.fingerprint() != noted or topology.device_count != plan.mesh.size:
        raise PlanError(
            f"{name}: the plan is for {plan.mesh.size} devices of a cluster with the fingerprint {noted}, topology= "
            f"is {topology} with {topology.fingerprint()}. Leave it out, or give the one that the plan was made for."
        )
