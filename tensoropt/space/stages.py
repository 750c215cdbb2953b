"""The layers of a graph, and consecutive layers for each of several devices."""

from __future__ import annotations

import numpy as np

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.problem import FloatArray, IntArray
from tensoropt.space.propagation import activations, parameter_side, weight_of
from tensoropt.space.space import SearchSpace

__all__ = ["is_recurrent", "stages"]


def stages(space: SearchSpace, devices: int) -> dict[str, int]:
    """For every operator that is computed from samples the device of its layer.

    A layer begins with weights: all operators that multiply by the same weights are of one layer, such as the steps of
    a recurrent one, and what follows them is of the latest layer that it reads. Layers stay in the order of the graph.
    All from the first to the last lookup in one table are one layer, as rows of gradients stay on their device.
    The device that has the most to compute has as little as consecutive layers allow.

    Args:
        space: the graph's search space.
        devices: how many.

    Returns:
        Devices from 0, ascending along every path.
    """
    layer_of = _joined(space, _layers(space))
    count = 1 + max(layer_of.values(), default=0)
    whole = Configuration((None,) * len(space.mesh.axes))
    work = np.zeros(count)
    for op in space.operators:
        choices = space.choices(op.name)
        if op.name in layer_of and whole in choices:
            work[layer_of[op.name]] += space.node_costs(op.name, choices.index(whole))[0]
    stage = _balanced(work, devices)
    return {name: int(stage[layer]) for name, layer in layer_of.items()}


def is_recurrent(space: SearchSpace) -> bool:
    """Tells whether some weights are used in several products one after another, as in a recurrent layer."""
    still = parameter_side(space)
    behind: dict[str, set[str]] = {}  # the weights behind an operator
    for op in space.operators:
        found: set[str] = set().union(*(behind.get(tensor.op, ()) for tensor in op.inputs))
        weight = weight_of(op, still)
        if weight is not None:
            key = f"{op.type} {op.inputs[weight].op}"
            if key in found:
                return True
            found = {*found, key}
        behind[op.name] = found
    return False


def _layers(space: SearchSpace) -> dict[str, int]:
    still = parameter_side(space)
    number: dict[str, int] = {}
    result: dict[str, int] = {}
    for op in space.operators:
        if op.name in still:
            continue
        layer = max((result[tensor.op] for tensor in op.inputs if tensor.op in result), default=0)
        weight = _filters(op, still) if traits(op).is_convolution else weight_of(op, still)
        if weight is not None:
            layer = max(layer, number.setdefault(op.inputs[weight].op, len(number)))
        elif activations(op, still):
            layer = max(layer, number.setdefault(op.name, len(number)))
        result[op.name] = layer
    return result


def _joined(space: SearchSpace, layer_of: dict[str, int]) -> dict[str, int]:
    """The layers, with those as one between which gradients would be sent as rows."""
    graph, at, readers = space.graph, dict(layer_of), dict[str, list[int]]()
    for edge in reversed(space.edges):  # a lookup of constants is where it is read
        if edge.tensor.op not in layer_of and edge.consumer in at:
            at[edge.tensor.op] = min(at[edge.consumer], at.get(edge.tensor.op, at[edge.consumer]))
    for edge in space.edges:
        looks_up = space.row_elements(edge) is not None and not traits(graph[edge.consumer]).is_fanout
        if looks_up and edge.consumer in at:
            table = edge.tensor.op
            while traits(graph[table]).is_fanout:
                table = graph[table].inputs[0].op
            readers.setdefault(table, []).append(at[edge.consumer])
    begins = np.ones(1 + max(layer_of.values(), default=0), np.int64)
    for layers in readers.values():
        begins[min(layers) + 1 : max(layers) + 1] = 0
    number = np.cumsum(begins) - 1
    return {name: int(number[layer]) for name, layer in layer_of.items()}


def _filters(op: Operator, still: frozenset[str]) -> int | None:
    found = [position for position, tensor in enumerate(op.inputs) if tensor.op in still]
    return found[0] if found else None


def _balanced(work: FloatArray, devices: int) -> IntArray:
    """Consecutive layers per device, such that the greatest sum is the least possible.

    Returns:
        ``(layers,)`` devices, ascending; of equally good ones that which gives the first devices the most layers.
    """
    layers = len(work)
    before = np.concatenate([[0.0], np.cumsum(work)])
    # least[d, n]: of the first n layers on d devices, the greatest sum; cut[d, n]: where the last device's begin.
    least = np.full((devices + 1, layers + 1), np.inf)
    cut = np.zeros((devices + 1, layers + 1), np.int64)
    least[0, 0] = 0.0
    for device in range(1, devices + 1):
        for end in range(layers + 1):
            worst = np.maximum(least[device - 1, : end + 1], before[end] - before[: end + 1])
            cut[device, end] = end - int(np.argmin(worst[::-1]))
            least[device, end] = worst[cut[device, end]]
    result = np.zeros(layers, np.int64)
    end = layers
    for device in range(devices, 0, -1):
        start = int(cut[device, end])
        result[start:end] = device - 1
        end = start
    return result
