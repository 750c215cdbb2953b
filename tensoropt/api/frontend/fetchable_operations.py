"""Finds the operations of a model that may be fetched."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tensoropt.api.frontend.effects import makes_handle, saves, takes_handle, varies
from tensoropt.api.frontend.initializers import initializers
from tensoropt.api.frontend.input_pipelines import without_pipelines
from tensoropt.api.frontend.rewriting.rewrite import is_rewritten
from tensoropt.api.frontend.stand_ins import indices_of
from tensoropt.api.frontend.walks import needs, reached
from tensoropt.api.mirror.model import Model
from tensoropt.graph.registry import has_rule, traits

__all__ = ["fetchable", "fetchable_operations", "given_names", "taking_variable"]


def fetchable_operations(model: Model) -> frozenset[str]:
    """Names of the operations that a user may fetch, and of the operators that are gradients."""
    model = without_pipelines(model)
    initial = {initializer.name for initializer in initializers(model.graph).values()}
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    inside = inside.union(*(rows.inside for rows in model.merged_rows))
    placeholders = (op.name for op in model.graph.get_operations() if traits(op).must_be_fed)
    return frozenset((*fetchable(model.graph, initial, inside), *given_names(model), *placeholders))


def given_names(model: Model) -> set[str]:
    """Names of what devices have in a way of their own."""
    given = {name for call in model.gradient_calls for one in call.outputs for name in (one.name, indices_of(one))}
    return given | {
        name for rows in model.merged_rows for name in (rows.merged_values, rows.merged_indices, *rows.inside)
    }


def fetchable(tf_graph: Any, initial: Collection[str], given: Collection[str]) -> list[str]:
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
            or _gives_of_variable(op)
            or any(tensor.op.name in barred for tensor in op.inputs)
            or any(control.name in barred for control in op.control_inputs)
        ):
            barred.add(op.name)
        elif not traits(op).must_be_fed:
            result.append(op.name)
    only_initial = _feeds_only(tf_graph, initial)
    return [name for name in result if name not in only_initial]


def taking_variable(tf_graph: Any, name: str) -> Any:
    """The operation without a rule that takes a variable itself and that an operation needs; None if there is none."""
    needed = reached([tf_graph.get_operation_by_name(name)], needs)
    return next((op for op in needed if _gives_of_variable(op) and varies(op)), None)


def _gives_of_variable(op: Any) -> bool:
    return bool(op.outputs and takes_handle(op) and not has_rule(op.type) and not is_rewritten(op))


def _feeds_only(tf_graph: Any, initial: Collection[str]) -> set[str]:
    """Operations that nothing but initializers read."""
    only = set(initial)
    for op in reversed(tf_graph.get_operations()):
        consumers = [consumer for tensor in op.outputs for consumer in tensor.consumers()]
        if consumers and not makes_handle(op) and all(consumer.name in only for consumer in consumers):
            only.add(op.name)
    return only
