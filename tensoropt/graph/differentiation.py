"""Which edges gradients flow back along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensoropt.errors import GraphError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId

__all__ = ["differentiated_edges"]


def differentiated_edges(graph: Graph, operators: Iterable[Operator] | None = None) -> frozenset[Edge]:
    """Edges on a path of floating-point tensors from what a loss is differentiated by to the loss.

    Args:
        graph: all operators.
        operators: whose gradients are wanted; by default all of the graph's.

    Raises:
        GraphError: a gradient along a path is not known.
    """
    calls: dict[int, list[Operator]] = {}
    for op in graph.operators if operators is None else operators:
        if traits(op).is_gradient:
            calls.setdefault(op.attrs["call"], []).append(op)
    return frozenset(edge for gradients in calls.values() for edge in _paths(graph, gradients))


def _paths(graph: Graph, gradients: Sequence[Operator]) -> list[Edge]:
    """The edges of one differentiation."""
    stopped = set(gradients[0].attrs["stopped"])
    moved = {tensor for op in gradients for tensor in op.inputs}
    for op in graph.operators:
        # A gradient depends on all that its losses depend on.
        read = [TensorId(name) for name in op.attrs["losses"]] if traits(op).is_gradient else op.inputs
        if traits(op).blocks_gradient or not any(tensor in moved for tensor in read):
            continue
        tensors = (TensorId(op.name, i) for i, spec in enumerate(op.outputs) if spec.is_differentiable)
        moved |= {tensor for tensor in tensors if str(tensor) not in stopped}
    leads: set[str] = set(gradients[0].attrs["losses"])
    edges: list[Edge] = []
    for op in reversed(graph.operators):
        if op.name not in leads or traits(op).blocks_gradient:
            continue
        if traits(op).is_gradient:
            if len(op.outputs) > 1:
                raise GraphError(
                    f"{op}: is differentiated again, for '{gradients[0].name}' ({gradients[0].source}), and it is "
                    "given as rows, of which devices know no second gradient. Make the lookup by one_hot and matmul, "
                    "or stop the gradient with tensoropt.stop_gradient if it is meant as a constant."
                )
            leads |= {*op.attrs["losses"]}
            continue
        for position, tensor in enumerate(op.inputs):
            if tensor not in moved:
                continue
            if position in op.handles and not has_rule(op.type):
                raise GraphError(
                    f"{op}: the loss depends on variable '{tensor.op}' through it, and it has no rule, so its gradient "
                    "is unknown here. Compute it from the variable's value (read_value())."
                )
            edges.append(Edge(tensor, op.name, position))
            leads.add(tensor.op)
    return edges
