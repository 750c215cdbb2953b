"""The steps of a job but the search: ``init``, ``build_execution_graph``, ``run`` (TensorOpt section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensoropt.api.arguments import as_topology
from tensoropt.api.find.deferred_plan import DeferredPlan, as_plan
from tensoropt.api.session import runs
from tensoropt.api.session.job import asked_ranks, current_job
from tensoropt.cluster import Topology
from tensoropt.errors import EngineError, PlanError
from tensoropt.plan.plan import Plan
from tensoropt.search.parallelism import ParallelismProfile

__all__ = ["build_execution_graph", "init", "run", "world_rank", "world_size"]

_ENGINE = "tensorflow"


def init(topology: Topology | str | None = None, *, refresh: bool = False) -> Topology:
    """Starts MPI and collects the hardware: hosts, ranks per host, memory, and how fast collectives are.

    After it, an exception that nobody catches on one rank ends the whole job, its traceback first.

    Args:
        topology: used instead of collecting, or a preset's name; must have as many devices as the job has ranks.
        refresh: measure again instead of using what was cached on disk.

    Returns:
        The topology.

    Raises:
        EngineError: if there is no MPI.
        ClusterError: if the hardware cannot be described.
        PlanError: if ``topology`` is of another size.
    """
    given = None if topology is None else as_topology("init", topology)
    return current_job().start(given, refresh)


def world_rank() -> int:
    """This process's rank (``tensoropt.rank`` is TensorFlow's)."""
    return asked_ranks().rank


def world_size() -> int:
    """How many ranks the job has (``tensoropt.size`` is TensorFlow's)."""
    return asked_ranks().size


def build_execution_graph(
    engine: str = "tensorflow", plan: Plan | None = None, *, collectives: str = "auto", config: Any = None
) -> None:
    """Builds this rank's part of the plan, with variables at their initial values.

    Args:
        engine: what runs the local graph (TensorOpt, listing 1): ``tensorflow``, as there is no other.
        plan: from :func:`find_strategy`. Where that waits for the first training run, so does this.
        collectives: ``auto``, ``mpi``, ``mpi4py`` or ``horovod``; ``TENSOROPT_COLLECTIVES`` wins.
        config: ``tf.compat.v1.ConfigProto`` of the local session; what a script gives a Session counts too.

    Raises:
        EngineError: an unknown engine, or collectives that cannot be used here.
        PlanError: a plan for another graph or device count.
        CollectiveError: if ranks built different models or have different plans.
        SessionError: if a session of the script has a config that says otherwise.
    """
    job = current_job()
    with job.world.step("build_execution_graph"):
        if engine != _ENGINE:
            raise EngineError(
                f"build_execution_graph: engine must be {_ENGINE!r}, which runs the local graph, got {engine!r}. What "
                "does the collectives is chosen by collectives='auto'."
            )
        if isinstance(plan, ParallelismProfile):
            raise PlanError(
                "build_execution_graph: plan must be a Plan, got a ParallelismProfile. Start the job with the number "
                "of ranks that you choose from it, and give what find_strategy('mini_time') returns."
            )
        given: Any = plan
        deferred = given if isinstance(given, DeferredPlan) and given.plan is None else None
        if deferred is None:
            given = as_plan(given)
            if not isinstance(given, Plan):
                raise PlanError(
                    f"build_execution_graph: plan must be a Plan, got {given!r}. Give what find_strategy returned."
                )
            imported = job.imported_model()
        config = job.configured(config)
    if deferred is not None:
        job.build_later(deferred, collectives)
    else:
        job.build(given, imported, collectives, config)


def run(fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
    """Runs operations and evaluates tensors, on all ranks together.

    All ranks call it with the same fetches in the same order.

    Args:
        fetches: a tensor, variable or operation of the model, its name, or a nest of them.
        feed_dict: arrays by placeholder: the whole batch, the same on every rank, or this rank's share, the
            ``rank``-th part of the first dimension.

    Returns:
        What was fetched, in the same structure: whole values of tensors, on every rank; None for operations.

    Raises:
        SessionError: before :func:`build_execution_graph`, or for something that was not planned.
        FeedError: for a missing feed, or a wrong shape or dtype.
    """
    return runs.run(current_job(), fetches, feed_dict)
