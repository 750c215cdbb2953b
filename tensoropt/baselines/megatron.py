"""Megatron's tensor parallelism (Shoeybi et al. 2019): products split by columns, then by rows, inside of hosts."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

import numpy as np

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.logical_dimensions import logical_dimensions
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.search.registry import register_baseline
from tensoropt.space.propagation import Actions, Followed, follow, parameter_side, placed, weight_of
from tensoropt.space.space import SearchSpace

__all__ = ["megatron"]

_NAME = "megatron"
_REMEDY = "Use 'one_weird_trick' for convolutions, 'gnmt' for recurrent networks, or a search."


@register_baseline("megatron")
def megatron(space: SearchSpace) -> Frontier:
    """Data parallelism of groups of devices, in which products are split (section 3 of the paper).

    Of a product with weights, every device of a group computes some columns: heads, hidden units, classes. What follows
    stays split until a product sums over what is split: that one has the matching rows of its weights, and its sum
    is reduced. Tables are split by their rows, and the softmax over the classes with them. All else is computed by
    every device of a group alike. Groups are made of the innermost mesh axes; every size but one device is tried, and
    those count whose products sizes divide: a width of 6 makes groups of 2 of 4 devices. So the result may have several
    points.

    Raises:
        PlanError: the graph has a convolution, no product by rows in any size of groups, or weights that are used both
            ways in all of them.
    """
    began = time.perf_counter()
    axes, mesh = space.mesh.axes, space.mesh
    convolutions = [op for op in space.operators if traits(op).is_convolution]
    if convolutions:
        raise does_not_apply(_NAME, f"it splits products of matrices, and {convolutions[0]} is a convolution", _REMEDY)
    named = logical_dimensions(space.graph, space.operators, space.rules).of_axis
    rows, torn = [], None
    for count in range(len(axes)):
        group = axes[count:]
        found, by_rows = _strategy(space, group, named.keys())
        torn = torn or (found.torn[0] if found.torn else None)
        if by_rows and not found.torn:
            rows.append(space.assignment(found.configurations))
    if not axes:
        raise does_not_apply(_NAME, "one device has nothing to share", "Use more devices.")
    if torn and not rows:
        raise does_not_apply(
            _NAME,
            f"weights {torn!r} are used by columns in one place and by rows in another, as in a recurrent layer, whose "
            "output is its own input",
            _REMEDY,
        )
    if not rows:
        sizes = " or ".join(str(mesh.extent(axes[count:])) for count in range(len(axes)))
        raise does_not_apply(
            _NAME,
            f"no product sums over what the product before it made, split over groups of {sizes} devices",
            "It needs two dense layers after one another, and sizes that devices divide. " + _REMEDY,
        )
    seconds = time.perf_counter() - began
    return frontier_of(space.problem, np.array(rows), exact=False, eliminations=(), seconds=seconds)


def _strategy(space: SearchSpace, group: tuple[int, ...], lasting: Set[tuple[str, str]]) -> tuple[Followed, int]:
    """The strategy with one size of groups, and how many products are split by rows in it.

    Args:
        space: the graph's search space.
        group: the mesh axes of a group of devices.
        lasting: operators and those of their iteration axes that nothing later needs whole (heads, but not gates).
    """
    by_rows: list[str] = []
    still = parameter_side(space)
    tables = {_variable(space, op, weight) for op in space.operators if (weight := _looked_up(op, still)) is not None}

    def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
        rule = space.rules[op.name]
        if traits(op).is_input:
            outer = [axis for axis in space.mesh.axes if axis not in group]
            return [placed(followed, outer, "d0")] if "d0" in rule.split else [followed]
        weight = weight_of(op, still)
        if weight is None:
            return [followed]
        if _variable(space, op, weight) in tables:
            # A table is split by its rows, also where it is the weights of a softmax.
            words = [dim[0] for dim in rule.inputs[weight][:1] if dim and dim[0] in rule.split]
            return [*(placed(followed, group, axis) for axis in words), followed]
        inside = {followed[axis] for axis in group}
        if inside != {None}:
            by_rows.extend([op.name] if inside <= rule.reduced else [])
            return [followed]
        given = {name for i, dims in enumerate(rule.inputs) if i != weight for dim in dims for name in dim}
        # Heads come before their depth.
        columns = [dim[0] for dim in rule.outputs[0] if dim and dim[0] not in given and (op.name, dim[0]) in lasting]
        return [*(placed(followed, group, axis) for axis in columns), followed]

    found = follow(space, decide)
    return found, len(by_rows)


def _looked_up(op: Operator, still: frozenset[str]) -> int | None:
    """The input of a lookup that is its table."""
    return weight_of(op, still) if traits(op).is_lookup else None


def _variable(space: SearchSpace, op: Operator, position: int) -> str:
    """The operator that an input comes from, fan-outs left out."""
    source = space.graph[op.inputs[position].op]
    while traits(source).is_fanout:
        source = space.graph[source.inputs[0].op]
    return source.name
