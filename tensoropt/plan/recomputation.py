"""Recomputation: operators whose outputs are not kept, but made again from their inputs in the backward pass."""

from __future__ import annotations

from collections.abc import Callable

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, is_declared, traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.in_time import InTime

__all__ = ["made_by", "why_not_again"]


def why_not_again(graph: Graph, op: Operator, steps: InTime | None = None) -> str | None:
    """The reason why an operator cannot be made again, as the middle of a sentence; None if it can.

    It must be an ordinary op of the forward pass that gives the same numbers whenever it is built from the same inputs.
    """
    if graph.is_differentiated_twice:
        return "a gradient is differentiated, and that of what is made again cannot be"
    if op.name not in graph.training:
        return "it is no part of the training step"
    if steps is not None and not steps.is_each(op.name):
        return "it runs once, and all micro-batches read what it gives"
    if traits(op).role is not None or not op.outputs or not op.inputs:
        return "it computes nothing from inputs"
    if not is_declared(op, graph.input_specs(op)) or declaration(op.type).lower is None:
        return "it has no rule by which it could be built twice"
    if declaration(op.type).shared or op.handles or op.control_inputs or op.body is not None or traits(op).has_effect:
        return "it has a state, an effect or an order in which it must run"
    if op.name in graph.after_gradients():
        return "it comes after the gradients"
    return None


def made_by(graph: Graph, tensor: TensorId, apart: Callable[[Edge], bool] | None = None) -> Operator:
    """The operator that makes a tensor, behind fan-outs that only pass it on.

    Args:
        graph: the logical graph.
        tensor: one of its tensors.
        apart: whether an edge brings its tensor from other devices; a fan-out that got it so counts as what makes it.
    """
    op = graph[tensor.op]
    while traits(op).is_fanout:
        if apart is not None and apart(Edge(op.inputs[0], op.name, 0)):
            return op
        op = graph[op.inputs[0].op]
    return op
