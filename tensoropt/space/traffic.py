"""Bytes that devices send one another in a step of a plan."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tensoropt.layout import Layout, Mesh, Step, StepKind
from tensoropt.plan.plan import Plan
from tensoropt.plan.reuse import reverse_steps
from tensoropt.space.space import SearchSpace

__all__ = ["sent_bytes"]


def sent_bytes(plan: Plan, space: SearchSpace) -> float:
    """What all devices together send in a training step (FlexFlow figure 7b), between operators.

    Tensors and gradients are counted as collectives send them (:meth:`Step.bytes_sent`), copies that are made again in
    the backward pass, and gradients of tables as the rows that they are. What an operator exchanges inside itself
    (statistics of a softmax or of a batch) is not.

    Args:
        plan: the strategy.
        space: that it is of.
    """
    graph, rules = space.graph, space.rules
    sent = functools.cache(functools.partial(_sent, plan.mesh))
    total = 0.0
    for edge in graph.edges():
        if edge.consumer not in graph.training:
            continue
        spec = graph.spec(edge.tensor)
        size = (spec.shape, max(1, spec.itemsize), max(1, spec.sum_itemsize))
        given = plan.configuration(edge.tensor.op).output_layouts(rules[edge.tensor.op], edge.tensor.index)
        wanted = plan.configuration(edge.consumer).input_layouts(rules[edge.consumer], edge.position)
        entry = plan.edge(edge)
        total += (2 if entry.keep == "before" else 1) * sent(given.value, entry.forward, *size)
        if entry.keep == "after":
            total += sent(wanted.value, reverse_steps(given.value, entry.forward), *size)
        elements = space.row_elements(edge)
        if elements is not None:
            total += _rows_sent(plan.mesh, wanted.gradient, given.gradient, elements * spec.itemsize)
        else:
            total += sent(wanted.gradient, entry.backward, *size)
    return total


def _sent(
    mesh: Mesh, layout: Layout, steps: Sequence[Step], shape: tuple[int, ...], whole_itemsize: int, sum_itemsize: int
) -> float:
    """What all devices send in steps that begin at a layout; parts of sums have elements of their own size."""
    total = 0.0
    for step in steps:
        itemsize = sum_itemsize if layout.partial else whole_itemsize
        if step.kind is StepKind.PERMUTE:
            moved = sum(source != rank for rank, source in enumerate(step.permutation(layout, mesh)))
            total += moved * step.bytes_in(layout, shape, itemsize, mesh)
        elif layout.at or step.at or step.to_at:
            total += sum(step.bytes_sent(layout, shape, itemsize, mesh, rank) for rank in range(mesh.size))
        else:
            total += mesh.size * step.bytes_sent(layout, shape, itemsize, mesh)
        layout = step.apply(layout)
    return total


def _rows_sent(mesh: Mesh, made: Layout, need: Layout, size_bytes: float) -> float:
    """The same of a gradient that is given as rows: they are gathered over the axes to sum over.

    As :func:`tensoropt.space.rows.rows_seconds`, of which this is the amount.
    """
    held = size_bytes / mesh.extent(made.used_axes)
    summed = tuple(axis for axis in made.partial if axis not in need.partial)
    groups = []
    for dim, (have, want) in enumerate(zip(made.dims, need.dims, strict=True)):
        if dim == 0:
            same = 0
            while same < min(len(have), len(want)) and have[same] == want[same]:
                same += 1
            groups.append((*summed, *(have[same:] if have != want else ())))
        elif have != want:
            groups.append(have)
    total = 0.0
    for group in groups:
        members = mesh.extent(group)
        total += mesh.size * (members - 1) * held
        held *= members
    return total
