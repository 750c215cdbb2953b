"""The verifier: what every graph must satisfy before anything is planned on it."""

from __future__ import annotations

from tensoropt.errors import GraphError
from tensoropt.graph.graph import Graph

__all__ = ["verify_graph"]


def verify_graph(graph: Graph) -> None:
    """Checks the invariants of :class:`Graph`.

    Raises:
        GraphError: if an operator reads something that does not exist or comes later, if a name in ``training``
            or an edge in ``differentiable`` does not exist, or if a differentiable edge carries integers.
    """
    seen: set[str] = set()
    for op in graph.operators:
        for position, tensor in enumerate(op.inputs):
            if tensor.op not in graph:
                raise GraphError(f"{op}: input {position} is '{tensor}', which is not in the graph. Import it too.")
            if tensor.op not in seen:
                raise GraphError(
                    f"{op}: input {position} is '{tensor}', which comes later. Operators must be in topological "
                    "order; a loop must be unrolled or kept inside one op."
                )
            graph.spec(tensor)
        for name in op.control_inputs:
            if name not in seen:
                raise GraphError(f"{op}: must run after '{name}', which is not before it in the graph.")
        seen.add(op.name)
    unknown = sorted(graph.training - seen)
    if unknown:
        raise GraphError(f"Graph: training names {unknown}, which are not in the graph.")
    for edge in sorted(graph.differentiable):
        if graph[edge.consumer].inputs[edge.position : edge.position + 1] != (edge.tensor,):
            raise GraphError(f"Graph: edge {edge} is called differentiable but does not exist.")
        if not graph.spec(edge.tensor).is_differentiable:
            raise GraphError(f"Graph: edge {edge} carries {graph.spec(edge.tensor).dtype} and cannot have a gradient.")
