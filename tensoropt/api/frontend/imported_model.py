"""Imports a model as its logical graph, and checks a saved plan against the model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.effects import makes_handle
from tensoropt.api.frontend.pipeline import run_passes
from tensoropt.api.frontend.reader import noted_tensors
from tensoropt.api.frontend.source import Request
from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError, PlanError
from tensoropt.graph.graph import Graph
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = [
    "MINI_PARALLELISM",
    "ImportedModel",
    "check_device_count",
    "import_model",
    "load_plan",
    "storable_variables",
]

MINI_PARALLELISM = "mini_parallelism"


@dataclass(frozen=True)
class ImportedModel:
    """The logical graph of a model.

    Attributes:
        graph: ours.
        tf_graph: TensorFlow's, in which every shape is known.
        steps: the operations that optimizers made to apply gradients.
        noted: what operators of ours give in the place of TensorFlow's tensors, by the names of these.
        shapes: of placeholders that leave sizes open, by name, as they are in the graph.
    """

    graph: Graph
    tf_graph: Any
    steps: tuple[str, ...]
    noted: Mapping[str, TensorId] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


@collecting_new_objects()
def import_model(
    model: Model,
    batch_size: int | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    only: Collection[str] | None = None,
) -> ImportedModel:
    """Imports the model under construction.

    Args:
        model: the model.
        batch_size: size of the first dimension of placeholders that leave it open.
        shapes: of placeholders, by name, instead of their own.
        only: names of operations, or of operators that are gradients; nothing but these and what they need is imported.
            By default all that trains and all that can be fetched.

    Raises:
        GraphError: if nothing was built, a size is unknown or 0, or TensorFlow cannot infer the other shapes from those
            that were given; for ``only`` also if one of them cannot be planned.
    """
    if not model.graph.get_operations():
        raise GraphError("The model is empty: build it with tensoropt's calls before find_strategy.")
    source, graph = run_passes(model, Request(batch_size, shapes, None if only is None else frozenset(only)))
    for name in sorted(source.request.only or ()):
        if name in source.refused and name not in graph:
            raise source.refused[name]
    names = [op.name for op in model.graph.get_collection("train_op")]
    steps = tuple(dict.fromkeys(name for name in names if name in graph))
    noted = noted_tensors(source.part.gradients, source.part.merged)
    return ImportedModel(graph, source.graph, steps, noted, source.shapes)


def storable_variables(model: Model) -> frozenset[str]:
    """Names of the variables whose shapes are known."""
    handles = [op for op in model.graph.get_operations() if makes_handle(op)]
    return frozenset(op.name for op in handles if tf.TensorShape(op.get_attr("shape")).is_fully_defined())


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
    return plan.of(graph)


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
