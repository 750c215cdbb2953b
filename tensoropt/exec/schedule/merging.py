"""Keeps TensorFlow from merging ops that must not become one.

On CPUs TensorFlow merges a convolution with the addition of a bias to what it gives, with the padding of what it
reads, and the gradient of its filter with that of the bias. It does not look at what lies between the two: where one
waits for something that waits for the other one, such as a copy of the bias that is gathered only once the convolution
is done, or activations that are gathered again after the bias's gradient was summed, the merged op waits for itself. It
never runs, nor does anything after it, and TensorFlow ends the step as if nothing were missing.

And where both wait for the same op, as copies of weights for a later micro-batch do, it takes that op for a third input
of the convolution and ends the process (``MergeConv2DWithBiasAdd`` of TensorFlow's ``mkl_layout_pass.cc``).

Two ops that wait for different ones are not merged. So one of them waits for an op of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import tensorflow as tf

from tensoropt.exec.schedule.segments import needed_ops, sources_of
from tensoropt.graph.registry import merged_gradient_kernels, traits

__all__ = ["prevent_merging"]


def prevent_merging(targets: Iterable[Any], first: int) -> int:
    """Adds to a program that is complete what keeps apart those ops that would wait for themselves as one.

    Args:
        targets: the operations that the program runs.
        first: how many ops the graph had before the program.

    Returns:
        How many ops wait for one of their own now.
    """
    number = needed_ops(targets, first)
    live = dict.fromkeys(sorted(number, key=number.__getitem__))
    merged = _merged(live)
    if not merged:
        return 0
    before = {op: [source for source in sources_of(op) if source in live] for op in live}
    alike = [group for group in merged if _wait_alike(group)]
    added = sum(map(_keep_apart, alike))
    merged = [group for group in merged if group not in alike]
    while True:
        circles = _circles(before, merged)
        circular = [group for group in merged if group[0] in circles]
        if not circular:
            return added
        # Those that wait for themselves whatever else is merged; a circle may also go through several.
        for group in [group for group in circular if _circles(before, [group])] or circular[:1]:
            merged.remove(group)
            added += _keep_apart(group)


def _keep_apart(group: Sequence[Any]) -> int:
    """Makes each op of a group but the last wait for an op of its own; returns how many do."""
    ops = [op for op in group if not _is_passing(op)][:-1]
    for op in ops:
        with op.graph.as_default(), tf.control_dependencies(None), tf.name_scope("apart"):
            op._add_control_input(tf.timestamp().op)
    return len(ops)


def _wait_alike(group: Sequence[Any]) -> bool:
    """Tells whether ops, one of which reads the other, wait for one op, without what passes tensors on."""
    waits = [_waits(op) for op in group if not _is_passing(op)] if traits(group[-1]).merged_with else []
    return any(not one.isdisjoint(other) for one, other in itertools.combinations(waits, 2))


def _waits(op: Any) -> set[Any]:
    """What an op waits for without reading it, and what ops do that only pass its inputs on."""
    found = set(op.control_inputs)
    for tensor in op.inputs:
        while _is_passing(tensor.op):
            found.update(tensor.op.control_inputs)
            tensor = tensor.op.inputs[tensor.value_index]
    return found


def _merged(live: Mapping[Any, None]) -> list[Sequence[Any]]:
    """Ops that TensorFlow may make one of, with those that pass what is between them; each op once."""
    group_of: dict[Any, list[Any]] = {}
    gradients: dict[Any, list[Any]] = {}
    for op in live:
        if op.type in merged_gradient_kernels():
            source, _ = _passed(op.inputs[-1])
            gradients.setdefault(source.ref(), []).append(op)
        elif traits(op).merged_with:
            source, passing = _passed(op.inputs[0])
            if source.op in live and source.op.type in traits(op).merged_with:
                group = group_of.setdefault(source.op, [source.op])
                group += [*(each for each in passing if each not in group_of), op]
                group_of.update((each, group) for each in (*passing, op))
    found = [group for group in gradients.values() if len({op.type for op in group}) > 1]
    return [*dict.fromkeys(tuple(group) for group in group_of.values()), *(tuple(group) for group in found)]


def _circles(before: Mapping[Any, Sequence[Any]], merged: Sequence[Sequence[Any]]) -> set[Any]:
    """The ops that wait for themselves if each group is one op, its first."""
    first = {op: group[0] for group in merged for op in group}
    graph = nx.DiGraph()
    for op, sources in before.items():
        graph.add_edges_from((first.get(source, source), first.get(op, op)) for source in sources)
    return {op for part in nx.strongly_connected_components(graph) if len(part) > 1 for op in part}


def _is_passing(op: Any) -> bool:
    """Tells whether TensorFlow's optimizer removes an op, so that its readers read the op's input."""
    own = traits(op)
    return own.alias and not own.has_effect


def _passed(tensor: Any) -> tuple[Any, list[Any]]:
    """The tensor that one is, but for ops that only pass it on, and those ops."""
    passing = []
    while _is_passing(tensor.op) and not tensor.op.control_inputs:
        source = tensor.op.inputs[tensor.value_index]
        if source.shape != tensor.shape:
            break
        passing.append(tensor.op)
        tensor = source
    return tensor, passing
