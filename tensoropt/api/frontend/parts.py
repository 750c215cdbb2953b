"""The pass that chooses a part of a model: operations that are asked for, or of training, with all that they need."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from tensoropt.api.frontend.effects import has_effect, saves
from tensoropt.api.frontend.initializers import initializers
from tensoropt.api.frontend.source import Part, Source
from tensoropt.api.frontend.stand_ins import indices_of
from tensoropt.api.frontend.walks import reached
from tensoropt.api.mirror.model import Model
from tensoropt.graph.registry import traits

__all__ = ["choose_part", "needed_by_training", "part_of", "training_roots"]


def choose_part(source: Source) -> Source:
    """Leaves out what those operations do not need that were asked for."""
    only = source.request.only
    return source if only is None else replace(source, part=part_of(source.model, only))


def part_of(model: Model, names: Iterable[str], given: Container[str] = (), fed: Container[str] = ()) -> Part:
    """The part of a model that some operations are.

    Args:
        model: the model.
        names: of operations, or of operators that are gradients.
        given: names of tensors that are there already, of which nothing is needed.
        fed: names of placeholders that are fed, of whose defaults nothing is needed.
    """
    graph = model.graph
    outputs = [(call, output) for call in model.gradient_calls for output in call.outputs]
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    gradients = {name: found for found in outputs for name in (found[1].name, indices_of(found[1]))}
    by_tensor = {name: output for _, output in outputs for name in (output.values, output.indices) if name is not None}
    by_op: dict[str, list[str]] = {}
    for name, output in by_tensor.items():
        by_op.setdefault(name.split(":")[0], []).append(output.name)
    merged = {name: rows for rows in model.merged_rows for name in (rows.merged_values, rows.merged_indices)}

    def made_by(tensor: Any) -> list[str]:
        if tensor.name in given:
            return []
        output = by_tensor.get(tensor.name)
        return [tensor.op.name] if output is None else [output.name]

    def waited(operations: Iterable[Any]) -> list[str]:
        """Returns the names of control inputs, with our gradient operators in place of TensorFlow's operations."""
        return [name for op in operations for name in by_op.get(op.name) or ([] if op.name in inside else [op.name])]

    def made(tensors: Iterable[str]) -> list[str]:
        return [name for tensor in tensors for name in made_by(graph.get_tensor_by_name(tensor))]

    def needs(name: str) -> list[str]:
        if name in gradients:
            call, output = gradients[name]
            both = [output.name, *([] if output.indices is None else [indices_of(output)])]
            source = made([output.source]) if ":" in output.source else [output.source]
            tensors = [graph.get_tensor_by_name(each) for each in (output.values, output.indices) if each is not None]
            controls = [x.name for tensor in tensors for x in tensor.op.control_inputs if x.name not in inside]
            return [*both, *made([*call.losses, *call.stopped]), *source, *controls]
        if name in merged:
            rows = merged[name]
            return [rows.merged_values, rows.merged_indices, *made([rows.values, rows.indices])]
        if name in fed:
            return []
        op = graph.get_operation_by_name(name)
        return [*(name for tensor in op.inputs for name in made_by(tensor)), *waited(op.control_inputs)]

    found = reached((name for given in names for name in by_op.get(given, [given])), needs)
    calls = [replace(call, outputs=tuple(o for o in call.outputs if o.name in found)) for call in model.gradient_calls]
    calls = [call for call in calls if call.outputs]
    return Part(
        frozenset(found),
        tuple(calls),
        tuple(rows for rows in model.merged_rows if rows.merged_values in found),
    )


def needed_by_training(model: Model) -> frozenset[str]:
    """Names of the operations, and of the operators that are gradients, that a training step needs.

    Args:
        model: the model, without pipelines; it has gradients.
    """
    outputs = [output for call in model.gradient_calls for output in call.outputs]
    tensors = [name for output in outputs for name in (output.values, output.indices) if name is not None]
    initial = {initializer.name for initializer in initializers(model.graph).values()}
    sources = {output.source for output in outputs}
    roots = training_roots(model.graph, [name.split(":")[0] for name in tensors], sources, initial)
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    names = [op.name for op in roots if op.name not in inside] or [output.name for output in outputs]
    return part_of(model, names).operations


def training_roots(
    graph: Any, gradients: Iterable[str], differentiated_by: Container[str], initializers: Container[str]
) -> list[Any]:
    """The operations of a training step that change something: those after a gradient, and updates of variables.

    Args:
        graph: a ``tf.Graph``.
        gradients: names of the operations that give gradients.
        differentiated_by: names of the variables that losses are differentiated by.
        initializers: names of operations that give variables their initial values.
    """

    def after(op: Any) -> list[Any]:
        readers = [*(consumer for tensor in op.outputs for consumer in tensor.consumers()), *op._control_outputs]
        return [reader for reader in readers if reader.name not in initializers]

    given = [graph.get_operation_by_name(name) for name in gradients]
    seen = reached((reader for one in given for reader in after(one)), after)
    found = [op for op in seen if has_effect(op) and not saves(op)]
    for op in graph.get_operations():
        by_loss = traits(op).updates and any(tensor.op.name in differentiated_by for tensor in op.inputs)
        if by_loss and op not in seen:
            found.append(op)
    return found
