"""From the model to a plan: import, search, choice."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensoropt.api.importer import import_graph, static_shapes
from tensoropt.api.model import Model
from tensoropt.cluster import Topology
from tensoropt.cost import AnalyticCost
from tensoropt.errors import GraphError, InfeasibleError, PlanError
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.search.data_parallel import data_parallel
from tensoropt.search.options import OPTIONS, choose
from tensoropt.search.result import Frontier
from tensoropt.search.space import SearchSpace, feed_layout

__all__ = ["FEEDS", "ImportedModel", "Strategy", "import_model", "search"]

_log = logging.getLogger("tensoropt")
FEEDS = ("data_parallel", "global")
_DATA_PARALLEL = "data_parallel"
# TensorOpt section 4.1 leaves a tenth of a device's memory to the runtime.
_RESERVE = 0.1
_STATEFUL_OUTSIDE = ("VarIsInitializedOp", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "Assert", "PrintV2")


@dataclass(frozen=True)
class ImportedModel:
    """The logical graph of a model with its training steps' tensors.

    Attributes:
        graph: ours.
        tf_graph: TensorFlow's, in which every shape is known.
        slots: for each trained variable, how many tensors of its shape the optimizers keep.
        steps: the operations of the training steps that there were.
    """

    graph: Graph
    tf_graph: Any
    slots: Mapping[str, int]
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Strategy:
    """What a search found: the plan that was chosen, and the frontier that it was chosen from, if any."""

    plan: Plan
    frontier: Frontier | None
    space: SearchSpace


def import_model(model: Model, batch_size: int | None = None) -> ImportedModel:
    """Imports the model under construction.

    Args:
        model: the model.
        batch_size: size of the first dimension of placeholders that leave it open.

    Raises:
        GraphError: if nothing was built, or a size is unknown.
    """
    tf_graph = model.graph
    if not tf_graph.get_operations():
        raise GraphError("The model is empty: build it with tensoropt's calls before find_strategy.")
    open_shapes = {}
    for op in tf_graph.get_operations():
        if op.type == "Placeholder" and not op.outputs[0].shape.is_fully_defined():
            shape = op.outputs[0].shape
            if batch_size is None or shape.rank is None or any(size is None for size in shape.as_list()[1:]):
                raise GraphError(
                    f"Placeholder '{op.name}': its shape is {shape}, but planning needs every size. Give it a full "
                    "shape, or find_strategy(batch_size=…) if only the first dimension is open."
                )
            open_shapes[op.name] = [batch_size, *shape.as_list()[1:]]
    if open_shapes:
        tf_graph = static_shapes(tf_graph, open_shapes)
    steps = model.train_steps
    with tf_graph.as_default():
        variables = tf.compat.v1.global_variables()
    initializers = {variable.initializer.name for variable in variables}
    trained = [name for step in steps for name in step.variables]
    updates = [op for step in steps for op in _control_inputs(tf_graph, step.op)]
    updates += [step.global_step for step in steps if step.global_step is not None]
    graph = import_graph(
        tf_graph,
        losses=[step.loss for step in steps],
        parameters=[name for step in steps for name in step.optimizer.tensors.values()],
        trainable=trained,
        updates=updates,
        others=_fetchable(tf_graph, initializers),
        sources=model.graph,
    )
    # Steps of one optimizer share its slots; every optimizer has its own.
    counts = {(name, step.optimizer_index): step.optimizer.slot_count for step in steps for name in step.variables}
    slots: dict[str, int] = {}
    for (name, _), count in counts.items():
        slots[name] = slots.get(name, 0) + count
    return ImportedModel(graph, tf_graph, slots, tuple(step.op for step in steps))


def search(
    imported: ImportedModel,
    topology: Topology,
    option: str,
    *,
    memory_bytes: float | None = None,
    feed: str = _DATA_PARALLEL,
) -> Strategy:
    """Searches a plan (TensorOpt section 4.1).

    Args:
        imported: the model.
        topology: the devices.
        option: ``mini_time``, ``mini_memory``, ``turning_point`` or ``data_parallel``.
        memory_bytes: limit per device; the topology's less a tenth by default.
        feed: how inputs come: ``data_parallel``, each rank its share of the batch (TensorOpt section 4.2), or
            ``global``, every rank the whole.

    Raises:
        PlanError: an unknown option or way to feed, or a batch that the devices do not divide.
        InfeasibleError: nothing fits in the memory; the message says what would.
    """
    options = (*sorted(OPTIONS), _DATA_PARALLEL)
    if option not in options:
        raise PlanError(
            f"find_strategy: option {option!r} is unknown. Use one of {', '.join(map(repr, options))}, a Plan, or the "
            "path of a saved one."
        )
    if feed not in FEEDS:
        raise PlanError(f"find_strategy: feed {feed!r} is unknown. Use one of {', '.join(map(repr, FEEDS))}.")
    cost = AnalyticCost(topology)
    _warn_of_missing_rules(imported.graph, cost)
    allowed = _fed(imported.graph, cost.mesh) if feed == "data_parallel" else {}
    space = SearchSpace(imported.graph, cost, slots=imported.slots, allowed=allowed)
    limit = topology.device.memory_bytes * (1 - _RESERVE) if memory_bytes is None else float(memory_bytes)
    notes = {"feed": feed, "memory_limit_bytes": limit, "topology": topology.fingerprint()}
    if option == _DATA_PARALLEL:
        plan = space.plan(space.assignment(data_parallel(space)), option, notes)
        if plan.memory_bytes > limit:
            raise InfeasibleError(
                f"find_strategy(option='data_parallel'): needs {plan.memory_bytes:,.0f} bytes per device, the limit is "
                f"{limit:,.0f}. Data parallelism holds all variables on every device: use option='mini_time', or a "
                "smaller batch."
            )
        return Strategy(plan, None, space)
    frontier = track_frontier(space.problem)
    try:
        point = choose(frontier, option, limit)
    except InfeasibleError as error:
        raise InfeasibleError(f"find_strategy(option={option!r}): {error}") from error
    heuristic = [str(step) for step in frontier.eliminations if step.kind == "heuristic"]
    notes |= {"exact": frontier.exact, "heuristic_eliminations": heuristic, "search_seconds": frontier.seconds}
    if heuristic:
        _log.info("the search fixed %d operators by heuristics: %s", len(heuristic), "; ".join(heuristic))
    return Strategy(space.plan(point.assignment, option, notes), frontier, space)


def load_plan(source: Plan | str | os.PathLike[str], graph: Graph, devices: int) -> Plan:
    """A plan that was made before, checked against the graph and the number of devices.

    Raises:
        PlanError: if it is for another graph or another number of devices.
    """
    plan = source if isinstance(source, Plan) else _read_plan(source)
    if plan.mesh.size != devices:
        raise PlanError(
            f"Plan: is for {plan.mesh.size} devices, this job has {devices}. Run it with mpirun -n {plan.mesh.size}, "
            "or call find_strategy with an option instead."
        )
    plan.check(graph)
    return plan


def _read_plan(path: str | os.PathLike[str]) -> Plan:
    try:
        return Plan.load(path)
    except PlanError as error:
        raise PlanError(f"find_strategy(option='{os.fspath(path)}'): {error}") from error


def _control_inputs(tf_graph: Any, name: str) -> list[str]:
    return [op.name for op in tf_graph.get_operation_by_name(name).control_inputs]


def _fetchable(tf_graph: Any, initializers: set[str]) -> list[str]:
    """Operations that a user may fetch beside training: all but what initialises, saves or checks."""
    barred: set[str] = set()
    result = []
    for op in tf_graph.get_operations():
        if (
            op.name in initializers
            or op.type in _STATEFUL_OUTSIDE
            or any(tensor.op.name in barred for tensor in op.inputs)
            or any(control.name in barred for control in op.control_inputs)
        ):
            barred.add(op.name)
        elif op.type != "Placeholder":
            result.append(op.name)
    only_initial = _feeds_only(tf_graph, initializers)
    return [name for name in result if name not in only_initial]


def _feeds_only(tf_graph: Any, initializers: set[str]) -> set[str]:
    """Operations that nothing but initializers read."""
    only = set(initializers)
    for op in reversed(tf_graph.get_operations()):
        consumers = [consumer for tensor in op.outputs for consumer in tensor.consumers()]
        if consumers and op.type != "VarHandleOp" and all(consumer.name in only for consumer in consumers):
            only.add(op.name)
    return only


def _fed(graph: Graph, mesh: Mesh) -> dict[str, tuple[Configuration, ...]]:
    """Placeholders of training with the one configuration in which each rank loads its share of the batch."""
    result: dict[str, tuple[Configuration, ...]] = {}
    for op in graph.of_type("Placeholder", "PlaceholderWithDefault"):
        spec = op.outputs[0]
        if not spec.shape or op.name not in graph.training or mesh.size == 1:
            continue
        if feed_layout(spec, mesh) is None:
            raise PlanError(
                f"{op}: its batch of {spec.shape[0]} cannot be shared by {mesh.size} devices: "
                f"{spec.shape[0]} % {mesh.size} != 0. Use a batch that {mesh.size} divides, another number of ranks, "
                "or find_strategy(feed='global'), by which every rank is fed the whole batch."
            )
        result[op.name] = (Configuration(("d0",) * len(mesh.axes)),)
    return result


def _warn_of_missing_rules(graph: Graph, cost: AnalyticCost) -> None:
    missing: dict[str, list[Operator]] = {}
    for op in graph.operators:
        if not has_rule(op.type) and op.name in graph.training:
            missing.setdefault(op.type, []).append(op)
    for op_type, operators in sorted(missing.items()):
        size = sum(spec.size_bytes for op in operators for spec in (*graph.input_specs(op), *op.outputs))
        _log.warning(
            "%s has no rule: %d operators (first: %s) run replicated, every device doing all of their work on "
            "%s bytes of tensors, about %.3g s per step",
            op_type,
            len(operators),
            operators[0],
            f"{size:,}",
            cost.traffic_seconds(size),
        )


def sink_of(tensor_name: str) -> TensorId:
    """The operator that holds a whole loss or optimizer parameter on every device."""
    return TensorId(f"{tensor_name}/sink")
