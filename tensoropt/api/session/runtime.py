"""The steps of a job but the search: ``init``, ``build_execution_graph``, ``run`` (TensorOpt section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tensoropt.api.arguments import as_topology
from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.job import current_job
from tensoropt.cluster import Topology
from tensoropt.errors import EngineError, PlanError, SessionError
from tensoropt.plan.plan import Plan
from tensoropt.search.parallelism import ParallelismProfile

__all__ = ["Session", "build_execution_graph", "init", "run", "world_rank", "world_size"]

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
    return current_job().rank


def world_size() -> int:
    """How many ranks the job has (``tensoropt.size`` is TensorFlow's)."""
    return current_job().size


def build_execution_graph(
    engine: str = "tensorflow", plan: Plan | None = None, *, collectives: str = "auto", config: Any = None
) -> None:
    """Builds this rank's part of the plan, with variables at their initial values.

    Args:
        engine: what runs the local graph (TensorOpt, listing 1): ``tensorflow``, as there is no other.
        plan: from :func:`find_strategy`.
        collectives: ``auto``, ``mpi``, ``mpi4py`` or ``horovod``; ``TENSOROPT_COLLECTIVES`` wins.
        config: ``tf.compat.v1.ConfigProto`` of the local session.

    Raises:
        EngineError: an unknown engine, or collectives that cannot be used here.
        PlanError: a plan for another graph or device count.
        CollectiveError: if ranks built different models or have different plans.
    """
    job = current_job()
    with job.step("build_execution_graph"):
        if engine != _ENGINE:
            raise EngineError(
                f"build_execution_graph: engine must be {_ENGINE!r}, which runs the local graph, got {engine!r}. What "
                "does the collectives is chosen by collectives=…"
            )
        if isinstance(plan, ParallelismProfile):
            raise PlanError(
                "build_execution_graph: plan must be a Plan, got a ParallelismProfile. Start the job with the number "
                "of ranks that you choose from it, and give what find_strategy('mini_time') returns."
            )
        if not isinstance(plan, Plan):
            raise PlanError(
                f"build_execution_graph: plan must be a Plan, got {plan!r}. Give what find_strategy returned."
            )
        imported = job.imported_model()
    job.build(plan, imported, collectives, config)


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
    return current_job().run(fetches, feed_dict)


class Session:
    """``tf.compat.v1.Session`` for a job that has its execution graph.

    Example::

        with tensoropt.Session() as session:
            session.run(tensoropt.global_variables_initializer())
            session.run(train_op, feed_dict={...})
    """

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        """Takes ``tf.compat.v1.Session``'s arguments; only the defaults have a meaning here.

        Raises:
            SessionError: for a target or a graph of one's own, or a config, which build_execution_graph takes.
        """
        if target or graph not in (None, current_model().graph) or config is not None:
            raise SessionError(
                "Session: a target, another graph or a config cannot be given here. The execution graph is the one "
                "that build_execution_graph made; give it config=… there."
            )
        current_job().require_executor("Session")

    @property
    def graph(self) -> Any:
        """The logical graph, a ``tf.Graph``."""
        return current_model().graph

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """See :func:`run`."""
        return run(fetches, feed_dict)

    def close(self) -> None:
        """Does nothing: the variables live as long as the execution graph."""

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
