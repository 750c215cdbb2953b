"""The operators of a search space that may be made again in the backward pass, and the states that follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.plan.in_time import InTime
from tensoropt.plan.recomputation import made_by, why_not_again
from tensoropt.plan.tensor_reuse import backward_readers
from tensoropt.space.choices import Choices, State
from tensoropt.space.keeping import Keeping

__all__ = ["fanned_out", "states_of"]


def states_of(
    graph: Graph, rules: Mapping[str, OpRule], keeping: Keeping, steps: InTime | None = None
) -> dict[str, tuple[State, ...]]:
    """The states that operators may be in, by name; those that are not named are always kept.

    Left out is what could be made again but is worth keeping: what is computed from variables alone, which changes once
    a step, and the stream that layers add to. With it whole chains of layers would look free, as costs that add up do
    not have what is there for a moment.
    """
    free = {op.name for op in graph.operators if why_not_again(graph, op, steps) is None}
    free -= _of_variables(graph) | _streams(graph, rules)
    result: dict[str, tuple[State, ...]] = dict.fromkeys(free, (State.KEPT, State.AGAIN))
    for op in graph.operators:
        if not traits(op).is_fanout or op.name not in graph.training:
            continue
        into = Edge(op.inputs[0], op.name, 0)
        passed = (State.PASSED,) if made_by(graph, into.tensor).name in free else ()
        if keeping.reads(into):
            result[op.name] = (State.KEPT, *passed)
        elif backward_readers(graph, rules, into, free):
            result[op.name] = (State.UNREAD, State.KEPT, *passed)
    return result


def fanned_out(
    graph: Graph,
    rules: Mapping[str, OpRule],
    states: Mapping[str, tuple[State, ...]],
    op: Operator,
    again: Collection[str],
    index: int,
    choices: Choices,
) -> int:
    """A configuration's number, in the state of a fan-out that follows from what is made again; others stay."""
    if not traits(op).is_fanout or op.name not in states:
        return index
    into = Edge(op.inputs[0], op.name, 0)
    wanted = State.PASSED if made_by(graph, into.tensor).name in again else State.KEPT
    if not backward_readers(graph, rules, into, again):
        wanted = State.UNREAD if State.UNREAD in states[op.name] else State.KEPT
    alike = (choices.patterns == choices.patterns[index]).all(axis=1) & (choices.states == wanted)
    return int(np.flatnonzero(alike)[0])


def _of_variables(graph: Graph) -> set[str]:
    """The operators that read nothing but variables, constants and what is computed from these."""
    found: set[str] = set()
    for op in graph.operators:
        own = traits(op)
        if own.is_variable or own.is_constant or (op.inputs and all(tensor.op in found for tensor in op.inputs)):
            found.add(op.name)
    return found


def _streams(graph: Graph, rules: Mapping[str, OpRule]) -> set[str]:
    """The operators that carry a model from layer to layer.

    These are sums of a tensor and of what is computed from it, as in residual layers, and products through which alone
    the gradient reaches all that comes before.
    """
    aside = _of_variables(graph)
    found: set[str] = set()
    origins: dict[str, frozenset[str]] = {}  # the fan-outs that an operator is computed from
    last: dict[TensorId, int] = {}  # where each tensor with a gradient is read last
    for place, op in enumerate(graph.operators):
        for position, tensor in enumerate(op.inputs):
            if Edge(tensor, op.name, position) in graph.differentiable and tensor.op not in aside:
                last[tensor] = place
    alive: dict[TensorId, int] = {}
    for place, op in enumerate(graph.operators):
        before = frozenset().union(*(origins.get(tensor.op, frozenset()) for tensor in op.inputs))
        origins[op.name] = before | {op.name} if traits(op).is_fanout else before
        joined = [
            tensor
            for position, tensor in enumerate(op.inputs)
            if Edge(tensor, op.name, position) in graph.differentiable and tensor.op not in aside
        ]
        if traits(op).passes_gradient and len(joined) > 1:
            for tensor in joined:
                others = [other for other in joined if other != tensor]
                if traits(graph[tensor.op]).is_fanout and any(tensor.op in origins[other.op] for other in others):
                    found.add(op.name)
        alive = {tensor: until for tensor, until in alive.items() if until > place}
        made = {TensorId(op.name, index) for index in range(len(op.outputs))} & last.keys()
        alive |= {tensor: last[tensor] for tensor in made}
        if made and alive.keys() == made and traits(op).work is not None:
            found.add(op.name)
    return found
