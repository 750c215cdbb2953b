"""The layers of a graph, and consecutive layers for each of several devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import StepKind
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.problem import FloatArray, IntArray
from tensoropt.space.propagation import activations, parameter_side, weight_of
from tensoropt.space.space import SearchSpace

__all__ = ["is_recurrent", "small_stages", "stages"]

# How many lengths of the longest part are tried.
_LIMITS = 64


def stages(space: SearchSpace, axes: tuple[int, ...], *, as_pipeline: bool = False, rounds: int = 1) -> dict[str, int]:
    """For every operator that is computed from samples the device of its layer.

    A layer begins with weights: all operators that multiply by the same weights are of one layer, such as the steps of
    a recurrent one, and what follows them is of the latest layer that it reads. Layers stay in the order of the graph.
    All from the first to the last lookup in one table are one layer, as rows of gradients stay on their device.
    The device that has the most to compute has as little as consecutive layers allow. Of a pipeline the step is as
    short as they allow, of which micro-batches wait for the busiest stage, where each stage also sends what crosses its
    borders.

    Args:
        space: the graph's search space.
        axes: the mesh axes along which the devices differ.
        as_pipeline: whether micro-batches go through them one behind the other.
        rounds: how often a micro-batch goes through all devices, of each of which it then has as many parts: more are
            sent, and devices rest less (interleaved stages of Megatron). One where there are fewer layers than parts.

    Returns:
        Devices from 0, ascending along every path, once in each round.
    """
    layer_of = _joined(space, _layers(space))
    count = 1 + max(layer_of.values(), default=0)
    whole = Configuration((None,) * len(space.mesh.axes))
    work = np.zeros(count)
    for op in space.operators:
        choices = space.choices(op.name)
        if op.name in layer_of and whole in choices:
            work[layer_of[op.name]] += space.node_costs(op.name, choices.index(whole))[0]
    cuts = _cut_seconds(space, layer_of, axes) if as_pipeline else np.zeros(count + 1)
    times = space.steps.times if as_pipeline and space.steps is not None else 1
    devices = space.mesh.extent(axes)
    parts = rounds * devices if rounds * devices <= count else devices  # each part has a layer at least
    stage = _partition(work, cuts, parts, times) % devices
    return {name: int(stage[layer]) for name, layer in layer_of.items()}


def small_stages(space: SearchSpace, axes: tuple[int, ...]) -> dict[str, int]:
    """For every operator that is computed from samples the device of its layer in a pipeline; see :func:`stages`.

    Of all consecutive layers for the devices these are the ones by which the fullest device holds the least, if each
    operator had the strategy of least memory: what belongs to variables once, activations of so many micro-batches as
    a device has begun at once, the first device of most.
    """
    layer_of = _joined(space, _layers(space))
    once, each = _least_bytes(space, layer_of)
    devices = space.mesh.extent(axes)
    times = 1 if space.steps is None else space.steps.times
    if len(once) < devices:
        return {name: min(layer, devices - 1) for name, layer in layer_of.items()}
    held = [_of_parts(once + min(times, devices - device) * each) for device in range(devices)]
    for part in held:
        np.fill_diagonal(part, np.inf)
    stage = np.repeat(np.arange(devices), np.diff(_ends(held, np.maximum)))
    return {name: int(stage[layer]) for name, layer in layer_of.items()}


def _least_bytes(space: SearchSpace, layer_of: dict[str, int]) -> tuple[FloatArray, FloatArray]:
    """``(layers,)`` each: the least bytes of what belongs to variables, and of what a micro-batch leaves."""
    at = _where_read(space, layer_of)
    once, each = (np.zeros(1 + max(layer_of.values(), default=0)) for _ in range(2))
    for place, op in enumerate(space.operators):
        memory_bytes = space.problem.node_tables(place)[1]
        if op.name in at:
            (each if op.name in layer_of else once)[at[op.name]] += memory_bytes.min()
    return once, each


def _of_parts(amounts: FloatArray) -> FloatArray:
    """``[start, end]``: the sum of the amounts of layers from start to before end; +inf if that comes before."""
    before = np.concatenate([[0.0], np.cumsum(amounts)])
    starts = np.arange(len(before))
    return np.where(starts[:, None] <= starts, before - before[:, None], np.inf)


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
            layer = max(layer, number.setdefault(_table(space.graph, op.inputs[weight].op), len(number)))
        elif activations(op, still):
            layer = max(layer, number.setdefault(op.name, len(number)))
        result[op.name] = layer
    return result


def _where_read(space: SearchSpace, layer_of: dict[str, int]) -> dict[str, int]:
    """The layers, and of what depends on no sample that of its first reader."""
    at = dict(layer_of)
    for edge in reversed(space.edges):
        if edge.tensor.op not in layer_of and edge.consumer in at:
            at[edge.tensor.op] = min(at[edge.consumer], at.get(edge.tensor.op, at[edge.consumer]))
    return at


def _joined(space: SearchSpace, layer_of: dict[str, int]) -> dict[str, int]:
    """The layers, with those as one between which gradients would be sent as rows."""
    graph, at, readers = space.graph, _where_read(space, layer_of), dict[str, list[int]]()
    for edge in space.edges:
        looks_up = space.row_elements(edge) is not None and not traits(graph[edge.consumer]).hands_rows_on
        if looks_up and edge.consumer in at:
            readers.setdefault(_table(graph, edge.tensor.op), []).append(at[edge.consumer])
    begins = np.ones(1 + max(layer_of.values(), default=0), np.int64)
    for layers in readers.values():
        begins[min(layers) + 1 : max(layers) + 1] = 0
    number = np.cumsum(begins) - 1
    return {name: int(number[layer]) for name, layer in layer_of.items()}


def _table(graph: Graph, name: str) -> str:
    """What is looked up in, behind operators that pass its rows on."""
    while traits(graph[name]).hands_rows_on:
        name = graph[name].inputs[0].op
    return name


def _filters(op: Operator, still: frozenset[str]) -> int | None:
    found = [position for position, tensor in enumerate(op.inputs) if tensor.op in still]
    return found[0] if found else None


def _cut_seconds(space: SearchSpace, layer_of: dict[str, int], axes: tuple[int, ...]) -> FloatArray:
    """The seconds in which a step sends whole tensors, and gradients back, that are read behind a border of layers.

    Returns:
        ``(layers + 1,)``: by the layer behind the border; 0 before the first and behind the last one.
    """
    graph = space.graph
    last: dict[TensorId, int] = {}  # the last layer that reads a tensor, or what passes it on
    returns: set[TensorId] = set()
    for edge in space.edges:
        tensor = edge.tensor
        while traits(graph[tensor.op]).is_fanout:
            tensor = graph[tensor.op].inputs[0]
        if tensor.op in layer_of and edge.consumer in layer_of:
            last[tensor] = max(last.get(tensor, 0), layer_of[edge.consumer])
            if edge in graph.differentiable:
                returns.add(tensor)
    cuts = np.zeros(2 + max(layer_of.values(), default=0))
    for tensor, end in last.items():
        begin, spec = layer_of[tensor.op], graph.spec(tensor)
        if begin < end:
            size = np.array([float(max(1, spec.itemsize) * spec.elements)])
            sent_s = space.repeats(tensor.op) * float(space.cost.step_seconds(StepKind.SEND, axes, size)[0])
            cuts[begin + 1 : end + 1] += sent_s * (1 + (tensor in returns))
    return cuts


def _partition(work: FloatArray, cuts: FloatArray, devices: int, times: int) -> IntArray:
    """Consecutive layers per device, such that micro-batches take the least possible time to go through all devices.

    The first micro-batch takes its time in all parts, each further one that in the longest part. With one micro-batch
    the longest part is as short as possible, as if there were a great many. Longer parts are tried where less is sent
    if these are cut: all that there may be, or of many some of each length. Then the time may be longer than the least
    by what two tried lengths differ.

    Args:
        work: ``(layers,)`` seconds.
        cuts: ``(layers + 1,)`` seconds that a cut before each layer adds to the parts on both of its sides.
        devices: how many.
        times: micro-batches.

    Returns:
        ``(layers,)`` devices, ascending; of equally good ones that which gives the first devices the most layers.
    """
    part = _of_parts(work)
    starts = np.arange(len(part))
    part[starts[:, None] < starts] += (cuts[:, None] + cuts)[starts[:, None] < starts]
    if times > 1 and devices <= len(work):  # one that rests all the time is none of a pipeline
        np.fill_diagonal(part, np.inf)
    ends = _ends([part] * devices, np.maximum)
    if times == 1 or not cuts.any():
        return np.repeat(np.arange(devices), np.diff(ends))
    longest = part[ends[:-1], ends[1:]].max()
    best_s = np.inf
    limits = np.unique(part[(part >= longest) & np.isfinite(part)])
    for limit in np.append(limits[:: -(-len(limits) // _LIMITS)], limits[-1]):
        found = _ends([np.where(part <= limit, part, np.inf)] * devices, np.add)
        parts = part[found[:-1], found[1:]]
        if (seconds := parts.sum() + (times - 1) * parts.max()) < best_s:
            best_s, ends = seconds, found
    return np.repeat(np.arange(devices), np.diff(ends))


def _ends(parts: Sequence[FloatArray], join: np.ufunc) -> IntArray:
    """``(devices + 1,)`` borders of consecutive layers, such that their joined costs are the least possible.

    Args:
        parts: for each device the costs ``[start, end]`` of layers from start to before end.
        join: what costs of devices add up to.
    """
    devices, count = len(parts), len(parts[0])
    least = np.full(count, np.inf)
    least[0] = 0.0
    cut = np.zeros((devices, count), np.int64)
    for device, part in enumerate(parts):
        joined = join(least[:, None], part)
        cut[device] = count - 1 - np.argmin(joined[::-1], axis=0)  # of equal ones the latest
        least = joined[cut[device], np.arange(count)]
    ends = np.full(devices + 1, count - 1)
    for device in range(devices - 1, -1, -1):
        ends[device] = cut[device, ends[device + 1]]
    return ends
