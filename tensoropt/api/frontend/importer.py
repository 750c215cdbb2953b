"""Reads a TensorFlow graph into ours: the one importer behind every front end."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tensoropt.api.frontend.device_graph import indices_of
from tensoropt.api.frontend.effects import (
    has_effect,
    saves,
)
from tensoropt.api.frontend.reader import Reader
from tensoropt.api.mirror.model import GradientCall, MergedRows
from tensoropt.errors import GraphError
from tensoropt.graph.differentiation import differentiated_edges
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId
from tensoropt.graph.verify import verify_graph

__all__ = ["import_graph", "import_operators", "training_roots"]


def import_graph(
    graph: Any,
    *,
    gradients: Sequence[GradientCall] = (),
    merged: Sequence[MergedRows] = (),
    others: Iterable[str] = (),
    initializers: Container[str] = (),
    only: Container[str] | None = None,
    sources: Mapping[str, Any] | None = None,
) -> Graph:
    """The logical graph of a training step, and of whatever else may be fetched.

    A training step is all that changes something and comes after a gradient, and every update of a variable that a loss
    is differentiated by; without any, the gradients; without these, all that may be fetched.

    Args:
        graph: a ``tf.Graph`` whose needed tensors have static shapes: a model's, by :func:`device_graph`.
        gradients: the differentiations in it.
        merged: what merges rows of gradients in it.
        others: names of operations that may be fetched; what cannot be imported of them is left out.
        initializers: names of operations that give variables their initial values.
        only: names of operations; others are no part of the training step.
        sources: the user's operations behind those of ``graph``, by name, where these are others.

    Raises:
        GraphError: naming the user's op and line, if a tensor has no static shape or a dtype that cannot be moved,
            an operand that must be fixed is not, or a gradient is differentiated.
    """
    reader = Reader(graph, gradients, merged, sources or {}, fetches=only is not None)
    outputs = [output for call in gradients for output in call.outputs]
    given = [name for output in outputs for name in (output.name, indices_of(output) if output.indices else None)]
    roots = training_roots(graph, filter(None, given), {output.source for output in outputs}, initializers)
    roots = [op for op in roots if only is None or op.name in only]
    operators = reader.operators(roots)
    if not roots:
        operators = reader.gradients(reader.gradient_names)
    training = {op.name for op in operators}
    known = set(training)
    for name in others:
        if name in known:
            continue
        try:
            more = reader.operators([graph.get_operation_by_name(name)], known=known)
        except GraphError:
            continue  # it is outside of training; fetching it will say that it is not in the plan's graph
        operators += more
        known |= {op.name for op in more}
    for name in reader.gradient_names:
        try:
            more = reader.gradients([name], known=known)
        except GraphError:
            continue
        operators += more
        known |= {op.name for op in more}
    operators = _store_whole(reader.in_order(operators))
    if not training:
        training = {op.name for op in operators}
    operators, training = _with_fanouts(operators, training)
    differentiable = differentiated_edges(Graph(tuple(operators), frozenset(training)))
    result = Graph(tuple(_without_gradients(operators, differentiable)), frozenset(training), differentiable)
    verify_graph(result)
    return result


def import_operators(
    graph: Any, roots: Sequence[Any], *, known: Iterable[str] = (), sources: Mapping[str, Any] | None = None
) -> list[Operator]:
    """The operators that ``roots`` (``tf.Operation``) need, in the order in which they were built."""
    return Reader(graph, (), (), sources or {}).operators(roots, known=known)


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
    given = [graph.get_operation_by_name(name) for name in gradients]
    pending = [consumer for one in given for tensor in one.outputs for consumer in tensor.consumers()]
    pending += [op for one in given for op in one._control_outputs]
    seen: set[str] = set()
    found = []
    while pending:
        op = pending.pop()
        if op.name in seen or op.name in initializers:
            continue
        seen.add(op.name)
        if has_effect(op) and not saves(op):
            found.append(op)
        pending += [consumer for tensor in op.outputs for consumer in tensor.consumers()]
        pending += op._control_outputs
    for op in graph.get_operations():
        by_loss = traits(op).updates and any(tensor.op.name in differentiated_by for tensor in op.inputs)
        if by_loss and op.name not in seen:
            found.append(op)
    return found


def _store_whole(operators: list[Operator]) -> list[Operator]:
    """Says of variables that an operator without a rule takes itself, and of what uses those where they are stored,
    that they are to be whole."""
    whole = {op.inputs[place].op for op in operators if not has_rule(op.type) for place in op.handles}

    def is_whole(op: Operator) -> bool:
        return op.name in whole or any(op.inputs[place].op in whole for place in op.handles)

    said = {"whole": True}
    return [replace(op, attrs=MappingProxyType({**op.attrs, **said})) if is_whole(op) else op for op in operators]


def _with_fanouts(operators: list[Operator], training: set[str]) -> tuple[list[Operator], set[str]]:
    """Gives each tensor that several operators of training read one fan-out, and each reader of a constant its own.

    Operators outside of training read what training reads, so that they do not change its graph.
    """
    readers: dict[TensorId, list[tuple[str, int]]] = {}
    for op in operators:
        for position, tensor in enumerate(op.inputs):
            if op.name in training:
                readers.setdefault(tensor, []).append((op.name, position))
    renamed: dict[tuple[str, int], TensorId] = {}
    result: list[Operator] = []
    training = set(training)
    by_name = {op.name: op for op in operators}
    pinned = {(op.name, place) for op in operators for place in op.handles}
    for op in operators:
        inputs = tuple(renamed.get((op.name, position), tensor) for position, tensor in enumerate(op.inputs))
        result.append(replace(op, inputs=inputs))
        for index, spec in enumerate(op.outputs):
            tensor = TensorId(op.name, index)
            users = [user for user in readers.get(tensor, ()) if user not in pinned]
            if len(users) < 2:
                continue
            # They cost nothing to make, and a shared one would tie its consumers together.
            if traits(op).is_constant:
                copied = [user for user in users[1:] if spec.shape or not traits(by_name[user[0]]).on_variable]
                for number, user in enumerate(copied, start=1):
                    copy = f"{op.name}/copy{number}"
                    result.append(replace(op, name=copy))
                    training.add(copy)
                    renamed[user] = TensorId(copy)
                continue
            fanout = f"{op.name}/fanout{index}"
            result.append(Operator(fanout, "Fanout", (tensor,), (spec,), source=by_name[op.name].source))
            training.add(fanout)
            renamed |= {user: TensorId(fanout) for user in users}
    return result, training


def _without_gradients(operators: Iterable[Operator], differentiable: Container[Edge]) -> list[Operator]:
    """Says of fan-outs that bring no gradient back that they do not."""
    said = MappingProxyType({"gradient": False})
    return [
        replace(op, attrs=said) if traits(op).is_fanout and Edge(op.inputs[0], op.name, 0) not in differentiable else op
        for op in operators
    ]
