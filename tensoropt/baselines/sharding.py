"""Data parallelism in which devices store pieces of what they all would store: what stages of ZeRO have in common."""

from __future__ import annotations

import time

import numpy as np

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.baselines.data_parallel import data_parallel_configurations
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration
from tensoropt.problem.frontier import Frontier
from tensoropt.problem.problem import IntArray
from tensoropt.space.propagation import parameter_side
from tensoropt.space.space import SearchSpace

__all__ = ["KEEP_BEFORE", "KEEP_BOTH", "sharded"]

# Alternatives of an edge: keep both copies, the one before the move, the one after it.
KEEP_BOTH, KEEP_BEFORE = 0, 1


def sharded(space: SearchSpace, name: str, alternative: int) -> Frontier:
    """Data parallelism with variables in as small pieces as sizes allow, and edges that read them as said.

    Raises:
        PlanError: devices do not divide the batch, or there is but one.
    """
    began = time.perf_counter()
    if space.mesh.size == 1:
        raise does_not_apply(name, "one device stores everything", "Use more devices.")
    chosen = data_parallel_configurations(space, name)
    for op in space.operators:
        if traits(op).is_variable:
            chosen[op.name] = _smallest(space, op)
    for op in space.operators:
        if space.rules[op.name].pinned:
            chosen[op.name] = _where_stored(space, op, chosen)
    assignment = space.assignment(chosen)
    return single(space.problem, assignment, began, _alternatives(space, assignment, alternative))


def _smallest(space: SearchSpace, op: Operator) -> Configuration:
    """The configuration in the smallest pieces; of equal ones, that which splits fewer and earlier dimensions."""
    rule = space.rules[op.name]

    def key(configuration: Configuration) -> tuple[int, int, tuple[str, ...]]:
        pieces = space.mesh.extent(configuration.output_layouts(rule, 0).value.used_axes)
        actions = tuple(action or "~" for action in configuration.actions)
        return -pieces, len({*actions}), actions

    return min(space.choices(op.name), key=key)


def _where_stored(space: SearchSpace, op: Operator, chosen: dict[str, Configuration]) -> Configuration:
    """The configuration in which an operator reads or writes a variable where its pieces are."""
    rule = space.rules[op.name]
    place = rule.pinned[0] if rule.pinned else 0
    source = op.inputs[place]
    given = chosen[source.op].output_layouts(space.rules[source.op], source.index)
    stored = given.gradient if traits(op).is_gradient else given.value
    return next(c for c in space.choices(op.name) if c.input_layouts(rule, place).value == stored)


def _alternatives(space: SearchSpace, assignment: tuple[int, ...], which: int) -> IntArray:
    """Returns alternative ``which`` for all edges from variables that have it; elsewhere 0, both copies kept."""
    problem, still = space.problem, parameter_side(space)
    result = np.zeros(problem.nodes + len(problem.edges), np.int64)
    for number, (edge, (u, v)) in enumerate(zip(space.edges, problem.edges.tolist(), strict=True)):
        if edge.tensor.op in still:
            time_s, memory_bytes = (table[assignment[u], assignment[v]] for table in problem.edge_tables(number))
            if len(np.atleast_1d(time_s)) > which and np.isfinite(time_s[which] + memory_bytes[which]):
                result[problem.nodes + number] = which
    return result
