"""Cells that are repeated with the same weights, such as the steps of a recurrent layer, take one configuration."""

from __future__ import annotations

import dataclasses

import numpy as np

from tensoropt.search.problem import IntArray, Problem
from tensoropt.search.space import SearchSpace

__all__ = ["repeated_cells", "with_repeated_cells"]

# So far an operator's surroundings are compared. A step of an LSTM is nine operators deep from its weights.
_DEPTH = 8


def repeated_cells(space: SearchSpace) -> IntArray:
    """The groups of operators that do the same with the same weights: ``(N,)``, for `Problem.groups`.

    Two operators are in one group if all that leads to them is alike, `_DEPTH` operators back, and a variable that
    several operators share is part of it, and one comes after another. So layers with weights of their own are not
    grouped, two lookups in one embedding are not, and the first steps of a recurrent layer, which begin differently,
    are groups of their own.

    Complexity: O(`_DEPTH` · edges).
    """
    place = {op.name: i for i, op in enumerate(space.operators)}
    sources = [[place[tensor.op] for tensor in op.inputs] for op in space.operators]
    codes: dict[object, int] = {}
    labels: list[int] = []
    shared: list[bool] = []
    for op, inputs in zip(space.operators, sources, strict=True):
        own = op.name if op.type == "Variable" else ""
        kind = (op.type, space.rules[op.name], op.outputs, space.choices(op.name), own)
        labels.append(codes.setdefault(kind, len(codes)))
        shared.append(op.type == "Fanout" and any(space.operators[i].type == "Variable" for i in inputs))
    tied, depth = list(shared), [0] * len(labels)
    for i, inputs in enumerate(sources):
        depth[i] = 1 + max((depth[j] for j in inputs), default=0)
    for _ in range(_DEPTH):
        # Which output of an operator is read is left out: steps and gates are outputs of one operator.
        kinds = [(labels[i], tuple(labels[j] for j in inputs)) for i, inputs in enumerate(sources)]
        labels = [codes.setdefault(kind, len(codes)) for kind in kinds]
    for _ in range(_DEPTH - 1):  # the variable is one step further
        tied = [tied[i] or any(tied[j] for j in inputs) for i, inputs in enumerate(sources)]
    alike: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        if tied[i] and not shared[i] and space.operators[i].type != "Variable":
            alike.setdefault(label, []).append(i)
    groups = np.arange(len(labels))
    for members in alike.values():
        if len({depth[i] for i in members}) > 1:
            groups[members] = members[0]
    return groups


def with_repeated_cells(space: SearchSpace) -> Problem:
    """The problem of a space in which repeated cells are groups; the same problem where there are none."""
    problem, groups = space.problem, repeated_cells(space)
    if len(np.unique(groups)) == problem.nodes:
        return problem
    return dataclasses.replace(problem, groups=groups)
