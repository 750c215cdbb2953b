"""From the model to its logical graph, and from a saved plan to one that is checked against it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.effects import makes_handle, saves, takes_handle
from tensoropt.api.frontend.importer import import_graph, static_shapes
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError, PlanError
from tensoropt.graph.graph import Graph
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = ["MINI_PARALLELISM", "ImportedModel", "check_device_count", "import_model", "load_plan", "sink_of"]

MINI_PARALLELISM = "mini_parallelism"


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


def import_model(
    model: Model, batch_size: int | None = None, *, shapes: Mapping[str, Sequence[int]] | None = None
) -> ImportedModel:
    """Imports the model under construction.

    Args:
        model: the model.
        batch_size: size of the first dimension of placeholders that leave it open.
        shapes: of placeholders, by name, instead of their own.

    Raises:
        GraphError: if nothing was built, or a size is unknown or 0.
    """
    tf_graph = model.graph
    if not tf_graph.get_operations():
        raise GraphError("The model is empty: build it with tensoropt's calls before find_strategy.")
    open_shapes = {name: list(shape) for name, shape in (shapes or {}).items()}
    for op in tf_graph.get_operations():
        if op.name not in open_shapes and traits(op).must_be_fed and not op.outputs[0].shape.is_fully_defined():
            shape = op.outputs[0].shape
            if batch_size is None or shape.rank is None or any(size is None for size in shape.as_list()[1:]):
                raise GraphError(
                    f"Placeholder '{op.name}': its shape is {shape}, but planning needs every size. Give it a full "
                    "shape, or find_strategy(batch_size=…) if only the first dimension is open."
                )
            open_shapes[op.name] = [batch_size, *shape.as_list()[1:]]
        if traits(op).must_be_fed and 0 in (op.outputs[0].shape.as_list() if op.outputs[0].shape.rank else ()):
            raise GraphError(
                f"Placeholder '{op.name}': every size must be at least 1, got the shape {op.outputs[0].shape}. Give it "
                "a batch that has samples."
            )
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


def load_plan(source: Plan | str | os.PathLike[str], graph: Graph, devices: int, *, runs: bool = True) -> Plan:
    """A plan that was made before, checked against the graph and the number of devices.

    Args:
        source: the plan, or the path of its file.
        graph: the logical graph.
        devices: how many there are.
        runs: whether it must be one that executes, and not for planning alone.

    Raises:
        PlanError: if it is for another graph or another number of devices, or does not execute.
    """
    plan = source if isinstance(source, Plan) else _read_plan(source)
    check_device_count(plan, devices)
    plan.check(graph, runs=runs)
    return plan


def check_device_count(plan: Plan, devices: int) -> None:
    """Checks that a plan can run on a job's devices: all of them, or fewer if it was made to need few.

    Raises:
        PlanError: if it cannot.
    """
    if plan.mesh.size == devices or (plan.mesh.size < devices and plan.option == MINI_PARALLELISM):
        return
    raise PlanError(
        f"Plan: is for {plan.mesh.size} devices, this job has {devices}. Run it with mpirun -n {plan.mesh.size}, or "
        "call find_strategy with an option instead"
        + (
            f"; only plans of option='{MINI_PARALLELISM}' leave ranks without work."
            if plan.mesh.size < devices
            else "."
        )
    )


def _read_plan(path: str | os.PathLike[str]) -> Plan:
    try:
        return Plan.load(path)
    except PlanError as error:
        raise PlanError(f"find_strategy(option='{os.fspath(path)}'): {error}") from error


def _control_inputs(tf_graph: Any, name: str) -> list[str]:
    return [op.name for op in tf_graph.get_operation_by_name(name).control_inputs]


def _fetchable(tf_graph: Any, initializers: set[str]) -> list[str]:
    """Operations that a user may fetch beside training: all but what initialises, saves, or asks for that."""
    barred: set[str] = set()
    result = []
    for op in tf_graph.get_operations():
        if (
            op.name in initializers
            or saves(op)
            or (op.outputs and takes_handle(op) and not has_rule(op.type))
            or any(tensor.op.name in barred for tensor in op.inputs)
            or any(control.name in barred for control in op.control_inputs)
        ):
            barred.add(op.name)
        elif not traits(op).must_be_fed:
            result.append(op.name)
    only_initial = _feeds_only(tf_graph, initializers)
    return [name for name in result if name not in only_initial]


def _feeds_only(tf_graph: Any, initializers: set[str]) -> set[str]:
    """Operations that nothing but initializers read."""
    only = set(initializers)
    for op in reversed(tf_graph.get_operations()):
        consumers = [consumer for tensor in op.outputs for consumer in tensor.consumers()]
        if consumers and not makes_handle(op) and all(consumer.name in only for consumer in consumers):
            only.add(op.name)
    return only


def sink_of(tensor_name: str) -> TensorId:
    """The operator that holds a whole loss or optimizer parameter on every device."""
    return TensorId(f"{tensor_name}/sink")
