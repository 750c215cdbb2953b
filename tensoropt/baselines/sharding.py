"""Data parallelism in which devices store pieces of what they all would store: what stages of ZeRO have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.baselines.data_parallel import data_parallel_configurations
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import begin_of
from tensoropt.problem.frontier import Frontier
from tensoropt.problem.problem import IntArray
from tensoropt.space.edge_costs import BOTH, BOTH_BACK_EACH
from tensoropt.space.propagation import parameter_side
from tensoropt.space.space import SearchSpace

__all__ = ["sharded"]


def sharded(space: SearchSpace, name: str, preferred: Sequence[int]) -> Frontier:
    """Data parallelism with variables in as small pieces as sizes allow, and edges that read them as said.

    What runs once a step before micro-batches, such as a cast of a variable, is computed on the pieces.

    Args:
        space: the graph's search space.
        name: of the baseline.
        preferred: alternatives of edges; each edge has the first of them that it may have.

    Raises:
        PlanError: devices do not divide the batch, there is but one, or micro-batches need alternatives that the space
            has not.
    """
    began = time.perf_counter()
    if space.mesh.size == 1:
        raise does_not_apply(name, "one device stores everything", "Use more devices.")
    steps = space.steps
    if steps is not None and BOTH_BACK_EACH in preferred and not space.reuse:
        raise does_not_apply(
            name,
            "each micro-batch reduces its gradients, and this search space reduces their sums",
            "Make it with SearchSpace(reuse=True).",
        )
    chosen = data_parallel_configurations(space, name)
    once = frozenset() if steps is None else {one for one in parameter_side(space) if not steps.is_each(one)}
    for op in space.operators:
        if traits(op).is_variable:
            chosen[op.name] = _smallest(space, op)
        elif op.inputs and op.name in once:
            chosen[op.name] = _on_pieces(space, op, chosen)
    for op in space.operators:
        if space.rules[op.name].pinned:
            chosen[op.name] = _where_stored(space, op, chosen)
    assignment = space.assignment(chosen)
    return single(space.problem, assignment, began, _alternatives(space, assignment, preferred))


def _smallest(space: SearchSpace, op: Operator) -> Configuration:
    """The configuration in the smallest pieces; of equal ones, that which splits fewer and earlier dimensions."""
    rule = space.rules[op.name]

    def key(configuration: Configuration) -> tuple[int, int, tuple[str, ...]]:
        pieces = space.mesh.extent(configuration.output_layouts(rule, 0).value.used_axes)
        actions = tuple(action or "~" for action in configuration.actions)
        return -pieces, len({*actions}), actions

    return min(space.choices(op.name), key=key)


def _on_pieces(space: SearchSpace, op: Operator, chosen: dict[str, Configuration]) -> Configuration:
    """The configuration in which an operator computes on what it is given; if there is none, the one that it has."""
    rules = space.rules
    given = [chosen[tensor.op].output_layouts(rules[tensor.op], tensor.index) for tensor in op.inputs]
    for choice in space.choices(op.name):
        if not choice.again and [choice.input_layouts(rules[op.name], i) for i in range(len(given))] == given:
            return choice
    return chosen[op.name]


def _where_stored(space: SearchSpace, op: Operator, chosen: dict[str, Configuration]) -> Configuration:
    """The configuration in which an operator reads or writes a variable where its pieces are."""
    rule = space.rules[op.name]
    place = rule.pinned[0] if rule.pinned else 0
    source = op.inputs[place]
    given = chosen[source.op].output_layouts(space.rules[source.op], source.index)
    return next(c for c in space.choices(op.name) if c.input_layouts(rule, place).value == begin_of(op, given))


def _alternatives(space: SearchSpace, assignment: tuple[int, ...], preferred: Sequence[int]) -> IntArray:
    """Returns for edges from variables the first of the preferred alternatives that each has; elsewhere the first."""
    problem, still = space.problem, parameter_side(space)
    result = np.zeros(problem.nodes + len(problem.edges), np.int64)
    for number, (edge, (u, v)) in enumerate(zip(space.edges, problem.edges.tolist(), strict=True)):
        if edge.tensor.op in still:
            time_s, _ = problem.edge_tables(number)
            possible = np.flatnonzero(np.isfinite(time_s[assignment[u], assignment[v]]))
            result[problem.nodes + number] = next((one for one in preferred if one in possible), BOTH)
    return result
