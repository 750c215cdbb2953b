"""From the model to its logical graph, and from a saved plan to one that is checked against it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.device_graph import Part, device_graph, indices_of, part_of, without_pipelines
from tensoropt.api.frontend.effects import makes_handle, saves, takes_handle
from tensoropt.api.frontend.importer import import_graph
from tensoropt.api.frontend.initializers import initializers
from tensoropt.api.frontend.pipelines import pipelines_of
from tensoropt.api.frontend.placeholders import filled_shapes, needed_by_training
from tensoropt.api.frontend.reader import Reader, noted_tensors
from tensoropt.api.frontend.rewriting.rewrite import is_rewritten, needs_rewriting, rewritten
from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError, PlanError
from tensoropt.graph.graph import Graph
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = [
    "MINI_PARALLELISM",
    "ImportedModel",
    "check_device_count",
    "fetchable_operations",
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
    """

    graph: Graph
    tf_graph: Any
    steps: tuple[str, ...]
    noted: Mapping[str, TensorId] = field(default_factory=dict)


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
    sources: Mapping[str, Any] = {op.name: op for op in model.graph.get_operations()}
    own = sources.keys()
    sources = {
        **sources,
        **model.origins,
        **{place: tensor.op for place, tensor in pipelines_of(model.graph).elements.items()},
    }
    model = without_pipelines(model)
    part = None if only is None else part_of(model, only)
    full = filled_shapes(model, batch_size, shapes, None if part is None else part.operations)
    initial = {initializer.name for initializer in initializers(model.graph).values()}
    misfits: set[str] = set()
    while True:
        try:
            tf_graph, origins = _of_full_shapes(model, full, part)
            break
        except ValueError as error:
            more = _beside_training(model, str(error)) if only is None else frozenset()
            if not more - misfits:
                sizes = ", ".join(f"'{name}' {tuple(shape)}" for name, shape in full.items())
                raise GraphError(
                    f"The model: its shapes do not go together with placeholders {sizes}: {error} Feed batches that "
                    "fit, and write no batch size into the model (a reshape to [-1, …] takes any)."
                ) from error
            # Such as what acts on one observation, where a whole batch trains: it is imported when it is run.
            misfits |= more
            part = part_of(model, sorted((fetchable_operations(model) | initial) - misfits))
    sources = {**sources, **origins}
    calls, merged = (model.gradient_calls, model.merged_rows) if part is None else (part.gradients, part.merged)
    fetched = (name for name in _fetchable(tf_graph, initial, _given(model)) if name in own)
    graph = import_graph(
        tf_graph,
        gradients=calls,
        merged=merged,
        others=fetched if only is None else sorted(only),
        only=None if part is None or only is None else part.operations,
        initializers=initial,
        sources=sources,
    )
    for name in sorted(set(only or ()) - {op.name for op in graph.operators}):  # says why not
        Reader(tf_graph, calls, merged, sources, fetches=True).operators([tf_graph.get_operation_by_name(name)])
    names = [op.name for op in model.graph.get_collection("train_op")]
    steps = tuple(dict.fromkeys(name for name in names if name in graph))
    return ImportedModel(graph, tf_graph, steps, noted_tensors(calls, merged))


def _of_full_shapes(
    model: Model, shapes: Mapping[str, Sequence[int]], part: Part | None
) -> tuple[Any, Mapping[str, Any]]:
    """The model's graph of static shapes, and the user's operations behind those that were made.

    Raises:
        ValueError: TensorFlow finds that the shapes do not go together.
    """
    if needs_rewriting(model):
        made = rewritten(model, shapes, part)
        return made.graph, made.origins
    return device_graph(model, shapes, part), {}


def _beside_training(model: Model, error: str) -> frozenset[str]:
    """The operation that TensorFlow's error names, and all that need it; nothing if training is among these.

    Args:
        model: the model.
        error: what TensorFlow says of shapes.
    """
    graph = model.graph
    found = re.search(r"\{\{node ([^}]+)\}\}", error)
    if not model.gradient_calls or found is None or found[1] not in {op.name for op in graph.get_operations()}:
        return frozenset()
    left_out: set[str] = set()
    pending = [graph.get_operation_by_name(found[1])]
    while pending:
        op = pending.pop()
        if op.name not in left_out:
            left_out.add(op.name)
            pending += [*(reader for tensor in op.outputs for reader in tensor.consumers()), *op._control_outputs]
    return frozenset() if left_out & needed_by_training(model) else frozenset(left_out)


def fetchable_operations(model: Model) -> frozenset[str]:
    """Names of the operations that a user may fetch, and of the operators that are gradients."""
    model = without_pipelines(model)
    initial = {initializer.name for initializer in initializers(model.graph).values()}
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    inside = inside.union(*(rows.inside for rows in model.merged_rows))
    placeholders = (op.name for op in model.graph.get_operations() if traits(op).must_be_fed)
    return frozenset((*_fetchable(model.graph, initial, inside), *_given(model), *placeholders))


def storable_variables(model: Model) -> frozenset[str]:
    """Names of the variables whose shapes are known."""
    handles = [op for op in model.graph.get_operations() if makes_handle(op)]
    return frozenset(op.name for op in handles if tf.TensorShape(op.get_attr("shape")).is_fully_defined())


def _given(model: Model) -> set[str]:
    """Names of what devices have in a way of their own."""
    given = {name for call in model.gradient_calls for one in call.outputs for name in (one.name, indices_of(one))}
    return given | {
        name for rows in model.merged_rows for name in (rows.merged_values, rows.merged_indices, *rows.inside)
    }


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


def _fetchable(tf_graph: Any, initial: set[str], given: Collection[str]) -> list[str]:
    """Operations that a user may fetch beside training: all but what initialises, saves, or asks for that.

    Nor what is ``given`` in the graph of devices.
    """
    barred: set[str] = set()
    result = []
    for op in tf_graph.get_operations():
        if op.name in given:
            continue
        if (
            op.name in initial
            or saves(op)
            or (op.outputs and takes_handle(op) and not has_rule(op.type) and not is_rewritten(op))
            or any(tensor.op.name in barred for tensor in op.inputs)
            or any(control.name in barred for control in op.control_inputs)
        ):
            barred.add(op.name)
        elif not traits(op).must_be_fed:
            result.append(op.name)
    only_initial = _feeds_only(tf_graph, initial)
    return [name for name in result if name not in only_initial]


def _feeds_only(tf_graph: Any, initial: set[str]) -> set[str]:
    """Operations that nothing but initializers read."""
    only = set(initial)
    for op in reversed(tf_graph.get_operations()):
        consumers = [consumer for tensor in op.outputs for consumer in tensor.consumers()]
        if consumers and not makes_handle(op) and all(consumer.name in only for consumer in consumers):
            only.add(op.name)
    return only
