"""The last passes, over operators: which variables stay whole, who has a copy of a tensor, where gradients flow."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import MappingProxyType

from tensoropt.api.frontend.rewriting.rewriter import free_name
from tensoropt.api.frontend.source import Source
from tensoropt.graph.differentiation import differentiated_edges
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId

__all__ = ["fan_out", "mark_differentiable", "store_whole"]


def store_whole(source: Source) -> Source:
    """Marks variables that an operator without a rule takes itself, and what uses those where they are stored."""
    operators = source.operators
    whole = {op.inputs[place].op for op in operators if not has_rule(op.type) for place in op.handles}

    def is_whole(op: Operator) -> bool:
        return op.name in whole or any(op.inputs[place].op in whole for place in op.handles)

    marked = [
        replace(op, attrs=MappingProxyType({**op.attrs, "whole": True})) if is_whole(op) else op for op in operators
    ]
    return replace(source, operators=tuple(marked))


def fan_out(source: Source) -> Source:
    """Gives each tensor that several operators of training read one fan-out, and each reader of a constant its own.

    A constant that losses are differentiated by has one fan-out, too: its gradient is that of all readers. Operators
    outside of training read what training reads, so that they do not change its graph.
    """
    operators = source.operators
    readers: dict[TensorId, list[tuple[str, int]]] = {}
    for op in operators:
        for position, tensor in enumerate(op.inputs):
            if op.name in source.training:
                readers.setdefault(tensor, []).append((op.name, position))
    renamed: dict[tuple[str, int], TensorId] = {}
    result: list[Operator] = []
    training = set(source.training)
    by_name = {op.name: op for op in operators}
    sources = {tensor for op in operators if traits(op).is_gradient for tensor in op.inputs}
    pinned = {(op.name, place) for op in operators for place in op.handles}
    names = {op.name for op in operators}  # a script may have some of ours
    for op in operators:
        inputs = tuple(renamed.get((op.name, position), tensor) for position, tensor in enumerate(op.inputs))
        result.append(op if inputs == op.inputs else replace(op, inputs=inputs))
        for index, spec in enumerate(op.outputs):
            tensor = TensorId(op.name, index)
            users = [user for user in readers.get(tensor, ()) if user not in pinned]
            if len(users) < 2:
                continue
            # They cost nothing to make, and a shared one would tie its consumers together.
            if traits(op).is_constant and tensor not in sources:
                copied = [user for user in users[1:] if spec.shape or not traits(by_name[user[0]]).on_variable]
                free = (name for n in itertools.count(1) if (name := f"{op.name}/copy{n}") not in names)
                for user, copy in zip(copied, free, strict=False):
                    result.append(replace(op, name=copy))
                    training.add(copy)
                    renamed[user] = TensorId(copy)
                continue
            fanout = free_name(f"{op.name}/fanout{index}", names)
            result.append(Operator(fanout, "Fanout", (tensor,), (spec,), source=by_name[op.name].source))
            training.add(fanout)
            renamed |= {user: TensorId(fanout) for user in users}
    return replace(source, operators=tuple(result), training=frozenset(training))


def mark_differentiable(source: Source) -> Source:
    """Finds the edges over which gradients flow, and marks fan-outs that bring none back."""
    differentiable = differentiated_edges(Graph(source.operators, source.training))
    said = MappingProxyType({"gradient": False})
    marked = [
        replace(op, attrs=said) if traits(op).is_fanout and Edge(op.inputs[0], op.name, 0) not in differentiable else op
        for op in source.operators
    ]
    return replace(source, operators=tuple(marked), differentiable=differentiable)
