"""Cells that are repeated with the same weights, such as the steps of a recurrent layer, take one configuration."""

from __future__ import annotations

import dataclasses

import numpy as np

from tensoropt.graph.registry import traits
from tensoropt.problem.problem import IntArray, Problem
from tensoropt.space.space import SearchSpace

__all__ = ["repeated_cells", "with_repeated_cells"]

_DEPTH = 8
"""So far back weights make operators a cell. A step of an LSTM is nine operators deep from its weights."""

_ALIKE = 2
"""So far an operator's surroundings are compared, which tells the gates of an LSTM apart and what they make."""


def repeated_cells(space: SearchSpace) -> IntArray:
    """The groups of operators that do the same with the same weights: ``(N,)``, for `Problem.groups`.

    Two operators are in one group if the nearest variables on the way back, `_DEPTH` operators at most, are the same
    and several operators share each, if all that leads to them is alike, `_ALIKE` operators back, and one comes after
    another. So layers with weights of their own are not grouped, two lookups in one embedding are not, and the first
    step of a recurrent layer, which begins differently, is on its own.

    Complexity: O(`_ALIKE` · edges).
    """
    place = {op.name: i for i, op in enumerate(space.operators)}
    sources = [[place[tensor.op] for tensor in op.inputs] for op in space.operators]
    codes: dict[object, int] = {}
    labels: list[int] = []
    for op in space.operators:
        own = op.name if traits(op).is_variable else ""
        kind = (op.type, space.rules[op.name], op.outputs, space.choices(op.name), own)
        labels.append(codes.setdefault(kind, len(codes)))
    for _ in range(_ALIKE):
        # Which output of an operator is read is left out: steps and gates are outputs of one operator.
        kinds = [(labels[i], tuple(labels[j] for j in inputs)) for i, inputs in enumerate(sources)]
        labels = [codes.setdefault(kind, len(codes)) for kind in kinds]
    nearest, depth = _nearest_variables(space, sources), [0] * len(labels)
    for i, inputs in enumerate(sources):
        depth[i] = 1 + max((depth[j] for j in inputs), default=0)
    alike: dict[tuple[int, frozenset[int]], list[int]] = {}
    for i, label in enumerate(labels):
        distance, variables = nearest[i]
        if distance > 0 and variables and all(traits(space.operators[j]).is_fanout for j in variables):
            alike.setdefault((label, variables), []).append(i)
    groups = np.arange(len(labels))
    for members in alike.values():
        if len({depth[i] for i in members}) > 1:
            groups[members] = members[0]
    return groups


def _nearest_variables(space: SearchSpace, sources: list[list[int]]) -> list[tuple[int, frozenset[int]]]:
    """Per operator, how far back the nearest variables are, and which: the fan-outs of those that are shared."""
    nearest: list[tuple[int, frozenset[int]]] = []
    for i, (op, inputs) in enumerate(zip(space.operators, sources, strict=True)):
        own = traits(op)
        passed = len(inputs) == 1 and nearest[inputs[0]][0] == 0 and bool(nearest[inputs[0]][1])
        if own.is_variable or (own.is_fanout and passed):
            nearest.append((0, frozenset([i])))
            continue
        # Loops take a variable as it was read before them, through an op that only passes it on or converts it.
        if passed and (own.alias or own.converts) and not traits(space.operators[inputs[0]]).is_fanout:
            nearest.append(nearest[inputs[0]])
            continue
        before = [nearest[j] for j in inputs if nearest[j][1] and nearest[j][0] < _DEPTH]
        least = min((distance for distance, _ in before), default=0)
        nearest.append((least + 1, frozenset().union(*(found for distance, found in before if distance == least))))
    return nearest


def with_repeated_cells(space: SearchSpace) -> Problem:
    """The problem of a space in which repeated cells are groups; the same problem where there are none."""
    problem, groups = space.problem, repeated_cells(space)
    if len(np.unique(groups)) == problem.nodes:
        return problem
    return dataclasses.replace(problem, groups=groups)
