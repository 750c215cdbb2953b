"""Logical dimensions: which dimensions of all tensors of a graph are one and the same, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.space.dimensions import Axis, Dimensions

__all__ = ["LogicalDimensions", "logical_dimensions"]


@dataclass(frozen=True, slots=True)
class LogicalDimensions:
    """The names that a Mesh-TensorFlow program would give to dimensions.

    Attributes:
        sizes: per name, the size of the dimension: what all that has the name can be split by.
        of_axis: per operator and iteration axis, its name.
        together: pairs of different names, sorted, that meet in a tensor: one mesh dimension cannot split both.
    """

    sizes: Mapping[str, int]
    of_axis: Mapping[Axis, str]
    together: frozenset[tuple[str, str]]


def logical_dimensions(
    graph: Graph, operators: tuple[Operator, ...], rules: Mapping[str, OpRule], *, renamed: bool = False
) -> LogicalDimensions:
    """Follows dimensions through the graph and names them.

    A dimension of a tensor is the same in the operator that makes it and in all that read it; an iteration axis is the
    same in all tensors of its operator. (Of a dimension that is a product of axes, the major one counts: only it may
    be split.) Of what is not connected, dimensions of one size get one name, as all layers' hidden dimensions have
    in a program, unless they meet in some operator. A dimension that some operator cannot split (an image's height, a
    gate) is left out.

    Args:
        graph: the logical graph.
        operators: those to look at, in topological order.
        rules: by operator.
        renamed: whether dimensions of variables that have one size have one name even where they meet, as if a program
            renamed one of them there (the input of a recurrent layer and its hidden units).
    """
    find = Dimensions(graph, operators, rules).of
    whole: list[Axis] = []
    for op in operators:
        rule = rules[op.name]
        for axis, extent in rule.sizes:
            if axis not in rule.split and extent > 1 and not _is_minor(rule, axis):
                whole.append((op.name, axis))
        for position, tensor in enumerate(op.inputs):
            made = rules[tensor.op].outputs[tensor.index]
            shape = graph.spec(tensor).shape
            for ours, theirs, extent in zip(rule.inputs[position], made, shape, strict=True):
                if extent > 1 and not (ours and theirs):
                    # One of the two never splits it.
                    whole += [(op.name, ours[0])] if ours else [(tensor.op, theirs[0])] if theirs else []
    blocked = {find(axis) for axis in whole}
    meets: dict[Axis, set[Axis]] = {}
    sizes: dict[Axis, int] = {}
    for op in operators:
        rule = rules[op.name]
        splittable = [axis for axis in rule.split if find((op.name, axis)) not in blocked]
        roots = sorted({find((op.name, axis)) for axis in splittable})
        for axis in splittable:
            root = find((op.name, axis))
            sizes[root] = math.gcd(sizes.get(root, 0), rule.size(axis))
        for root in roots:
            meets.setdefault(root, set()).update(other for other in roots if other != root)
    stored = {find((op.name, axis)) for op in operators if traits(op).is_variable for axis in rules[op.name].split}
    names: dict[Axis, str] = {}
    for root in meets:  # in the order of operators
        if root not in names:
            taken = {names[other] for other in meets[root] if other in names}
            number = 0
            while f"{sizes[root]}.{number}" in taken:
                number += 1
            names[root] = f"{sizes[root]}" if renamed and root in stored else f"{sizes[root]}.{number}"
    return LogicalDimensions(
        {names[root]: sizes[root] for root in meets},
        {
            (op.name, axis): names[find((op.name, axis))]
            for op in operators
            for axis in rules[op.name].split
            if find((op.name, axis)) not in blocked
        },
        frozenset(
            (min(names[one], names[other]), max(names[one], names[other]))
            for one, others in meets.items()
            for other in others
            if names[one] != names[other]
        ),
    )


def _is_minor(rule: OpRule, axis: str) -> bool:
    """Tells whether an axis is a minor factor of some tensor's dimension.

    Where that product of axes is undone, the axis can be split again.
    """
    return any(axis in dim[1:] for dims in (*rule.inputs, *rule.outputs) for dim in dims)
