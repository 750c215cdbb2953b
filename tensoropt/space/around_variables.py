"""Operators around a trained variable, such as slots and updates, which take the variable's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits

if TYPE_CHECKING:
    from tensoropt.space.space import SearchSpace

__all__ = ["Beside", "around_variables", "is_heavy"]

_HEAVY = 8.0
"""Floating-point operations per element that goes in or out, from which an operator decides for itself."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The leader of an operator: the operator whose configuration it follows.

    Attributes:
        leader: the leader's name.
        edge: the edge between leader and follower.
        reads: whether the follower reads the leader's output; if not, the leader reads the follower's.
    """

    leader: str
    edge: Edge
    reads: bool


def is_heavy(space: SearchSpace, op: Operator) -> bool:
    """Tells whether an operator is a lookup, or does much work per element, as products and convolutions do."""
    rule = space.rules[op.name]
    tensors = (*space.graph.input_specs(op), *op.outputs)
    return rule.sparse_input is not None or rule.flops > _HEAVY * sum(spec.elements for spec in tensors)


def around_variables(space: SearchSpace) -> dict[str, Beside]:
    """The operators around trained variables by name, each after the one that it goes along with.

    These are updates, what is computed point by point on the way to them, and other variables that take part, such as
    optimizers' slots: whatever is joined to a trained variable by tensors of its shape through which no gradient flows.
    """
    graph, by_name = space.graph, {op.name: op for op in space.operators}
    trained = {op.inputs[0].op for op in space.operators if traits(op).is_gradient}
    activations = _activations(graph)  # of a moving copy of the variable, they are computed as any other
    around: dict[str, list[tuple[str, Edge]]] = {name: [] for name in by_name}
    for edge in space.edges:
        reader = by_name[edge.consumer]
        if traits(reader).rows is not None and edge.position not in reader.handles:
            continue  # rows are no variable, though there may be as many of them
        # A scalar is one of the updated variable's own only where it is updated, too: rates are scalars of all.
        is_own = graph.spec(edge.tensor).shape or edge.position in space.rules[edge.consumer].pinned
        if is_own and edge not in graph.differentiable:
            around[edge.tensor.op].append((edge.consumer, edge))
            around[edge.consumer].append((edge.tensor.op, edge))
    found: dict[str, Beside] = {}
    pending = [op.name for op in space.operators if op.name in trained and traits(op).is_variable]
    shapes = {name: by_name[name].outputs[0].shape for name in pending}
    for name in pending:  # which grows
        for other, edge in around[name]:
            if graph.spec(edge.tensor).shape != shapes[name] or other in found or other in trained:
                continue
            if is_heavy(space, by_name[other]) or traits(by_name[other]).is_input or other in activations:
                continue
            found[other], shapes[other] = Beside(name, edge, edge.consumer == other), shapes[name]
            pending.append(other)
    return found


def _activations(graph: Graph) -> frozenset[str]:
    """The names of what is computed from samples without a gradient; a number that is fed, such as a rate, is none."""
    late, found = graph.after_gradients(), set[str]()
    for op in graph.operators:
        is_fed = traits(op).is_input and bool(op.outputs[0].shape)
        if is_fed or (op.name not in late and any(tensor.op in found for tensor in op.inputs)):
            found.add(op.name)
    return frozenset(found)
