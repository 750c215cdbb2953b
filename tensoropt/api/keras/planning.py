"""``tensoropt.keras.plan``, ``frontier`` and ``compare``: what training would be, without devices or MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from tensoropt.api.arguments import SearchArguments, check_names, check_sizes
from tensoropt.api.keras.parallelize import checked
from tensoropt.api.session.job import current_job
from tensoropt.cluster import Topology
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint
from tensoropt.search.comparison import Comparison
from tensoropt.search.parallelism import ParallelismProfile
from tensoropt.search.registry import Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tensoropt.api.functions.planning import Planning

__all__ = ["compare", "frontier", "plan"]


@overload
def plan(
    model: Any,
    topology: Topology | str | None = None,
    *,
    option: Literal["profiling"],
    batch_size: int | None = None,
    example: Any = None,
    layout_map: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    **find_strategy_arguments: Unpack[SearchArguments],
) -> ParallelismProfile: ...


@overload
def plan(
    model: Any,
    topology: Topology | str | None = None,
    *,
    option: str | os.PathLike[str] | Plan | FrontierPoint = "mini_time",
    batch_size: int | None = None,
    example: Any = None,
    layout_map: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    **find_strategy_arguments: Unpack[SearchArguments],
) -> Plan: ...


def plan(
    model: Any,
    topology: Topology | str | None = None,
    *,
    option: Any = "mini_time",
    batch_size: int | None = None,
    example: Any = None,
    layout_map: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    **find_strategy_arguments: Unpack[SearchArguments],
) -> Plan | ParallelismProfile:
    """Searches the plan by which a compiled Keras model would train on a cluster. Nothing runs.

    With ``topology`` it needs neither MPI nor devices. The plan is an option of :func:`parallelize`, also by the path
    that ``plan.save`` was given, on as many ranks, if batches are like the example.

    Args:
        model: of Keras 3 on TensorFlow, after ``compile``. Its optimizer makes its variables, as it does in ``fit``.
        topology: the cluster, or the name of a preset; by default this job's own.
        option: see :func:`tensoropt.find_strategy`; ``profiling`` gives a table.
        batch_size: samples of a step, of all devices together.
        example: a batch as ``fit`` makes it: ``(x, y)`` or ``(x, y, sample_weight)`` of arrays or ``tf.TensorSpec``. By
            default ``x`` is what the model says of its inputs, and ``y`` what its losses compare with its outputs.
        layout_map: see :func:`parallelize`.
        mesh: see there.
        find_strategy_arguments: others of ``find_strategy`` (``memory_bytes``, ``search``, ``costs``).

    Returns:
        The plan; for ``profiling`` the profile.

    Raises:
        SessionError: for what is no such model, or an unknown argument.
        PlanError: no batch size, a model that does not say what it takes, and what ``find_strategy`` raises.
        TensorOptError: what ``find_strategy`` raises.
    """
    check_names("plan", find_strategy_arguments, SearchArguments)
    planning, arguments = _traced("plan", model, topology, batch_size, example, layout_map, mesh, option)
    return planning.strategy(option, {**arguments, **find_strategy_arguments})


def frontier(
    model: Any,
    topology: Topology | str | None = None,
    *,
    batch_size: int | None = None,
    example: Any = None,
    layout_map: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    costs: str | None = None,
    recompute: bool = False,
    micro_batches: int = 1,
) -> Frontier:
    """All strategies for training a Keras model that are worth having: the trade-off between time and memory.

    A point of it, such as ``frontier.turning_point()``, is an option of :func:`plan` with the same model and batch.

    Args:
        model: see :func:`plan`.
        topology: see there.
        batch_size: see there.
        example: see there.
        layout_map: see :func:`parallelize`.
        mesh: see there.
        costs: see :func:`tensoropt.find_strategy`.
        recompute: see there.
        micro_batches: how many a step has, see there.

    Raises:
        SessionError: for what is no such model.
        PlanError: no batch size, or a model that does not say what it takes.
        TensorOptError: what :func:`tensoropt.find_frontier` raises.
    """
    planning, arguments = _traced("frontier", model, topology, batch_size, example, layout_map, mesh, "mini_time")
    return planning.frontier({**arguments, "costs": costs, "recompute": recompute, "micro_batches": micro_batches})


def compare(
    model: Any,
    topology: Topology | str | None = None,
    *,
    methods: Sequence[str | Options] | None = None,
    memory_bytes: float | None = None,
    batch_size: int | None = None,
    example: Any = None,
    costs: str | None = None,
    overlap: bool = False,
    recompute: bool = False,
    micro_batches: int = 1,
) -> Comparison:
    """Compares the strategies that all searches and baselines choose for training a Keras model, by predicted cost.

    Args:
        model: see :func:`plan`.
        topology: see there.
        methods: see :func:`tensoropt.compare`.
        memory_bytes: see there.
        batch_size: see :func:`plan`.
        example: see there.
        costs: see :func:`tensoropt.find_strategy`.
        overlap: see :func:`tensoropt.compare`.
        recompute: see there.
        micro_batches: see there.

    Returns:
        The table; ``plan("megatron")`` of it is an option of :func:`plan` and :func:`parallelize`.

    Raises:
        SessionError: for what is no such model.
        PlanError: no batch size, or a model that does not say what it takes.
        TensorOptError: what :func:`tensoropt.compare` raises.
    """
    planning, arguments = _traced("compare", model, topology, batch_size, example, None, None, "mini_time")
    asked = {"methods": methods, "memory_bytes": memory_bytes, "costs": costs, "overlap": overlap}
    steps = {"recompute": recompute, "micro_batches": micro_batches}
    return planning.compare({**arguments, **asked, **steps})


def _traced(
    caller: str,
    model: Any,
    topology: Topology | str | None,
    batch_size: int | None,
    example: Any,
    layout_map: Mapping[str, Any] | None,
    mesh: Mapping[str, int] | None,
    option: Any,
) -> tuple[Planning, dict[str, Any]]:
    """The step of training, traced as ``fit`` traces it, and what ``find_strategy`` is to be told."""
    checked(caller, model)
    from tensoropt.api.functions.function import traced_step
    from tensoropt.api.functions.planning import Planning
    from tensoropt.api.keras import batches, keras_internals
    from tensoropt.api.keras.layout_pins import layout_pins

    check_sizes(caller, batch_size, None)
    pins = layout_pins(layout_map, mesh, option)
    batch = batches.batch_of(model, example)
    size = batch_size if batch_size is not None else batches.size_of(example)
    if size is None:
        raise PlanError(f"{caller}: the size of a batch is unknown. Give batch_size=64, or an example of arrays.")
    if topology is None and not isinstance(option, FrontierPoint):  # a point says which cluster it is for
        current_job().start_once()
    planning = Planning()
    if pins is not None:
        planning.pin(lambda variables: pins.of(model, variables))
    step = keras_internals.step_of(model, "train")
    traced_step(planning, step, (batch,), {}, "train", autograph=False, rows=lambda given: given or size)
    return planning, {"topology": topology, "batch_size": size, "feed": "global"}
