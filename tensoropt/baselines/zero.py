"""ZeRO (Rajbhandari et al. 2020): data parallelism in which devices store pieces of what they all would store."""

from __future__ import annotations

import time
from typing import NoReturn

import numpy as np

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.baselines.data_parallel import data_parallel_configurations
from tensoropt.baselines.following import parameter_side
from tensoropt.graph.operator import Operator
from tensoropt.plan.configuration import Configuration
from tensoropt.search.problem import IntArray
from tensoropt.search.result import Frontier
from tensoropt.search.space import SearchSpace

__all__ = ["zero1", "zero2", "zero3"]

# Alternatives of an edge: keep both copies, the one before the move, the one after it.
_BOTH, _BEFORE = 0, 1


def zero1(space: SearchSpace) -> NoReturn:
    """Stage 1, pieces of the optimizer's slots only.

    Raises:
        PlanError: always. A variable, its gradient and its slots are stored in one layout here (TensorOpt section 3),
            so one cannot be in pieces while the others are whole.
    """
    raise does_not_apply(
        "zero1",
        "it stores optimizer slots in pieces beside whole variables and gradients, and a variable is stored here in "
        "one layout with its gradient and slots",
        "Use 'zero2', which stores less and moves as much, or 'data_parallel'.",
    )


def zero2(space: SearchSpace) -> Frontier:
    """Stage 2, pieces of gradients and slots: what is updated is in pieces, what is computed with is whole.

    Gradients are reduced to the pieces (reduce_scatter), pieces are updated and gathered once in a step, and the
    gathered variables are kept until the backward pass has read them. Memory beside activations is that of the whole
    variables, as they are kept, and of pieces of variables, gradients and slots; ZeRO itself does without the piece of
    the variable, as it is a part of the whole one. A variable that the backward pass does not read (a bias, a table)
    is not counted whole.

    Raises:
        PlanError: devices do not divide the batch, or there is but one.
    """
    return _sharded(space, "zero2", _BOTH)


def zero3(space: SearchSpace) -> Frontier:
    """Stage 3, pieces of variables too: they are gathered when they are read, and again in the backward pass.

    What several operators read (the weights of a recurrent layer) is gathered once, for all of them, and kept.

    Raises:
        PlanError: as of :func:`zero2`, or the search space has no tensor reuse, so that nothing is gathered again.
    """
    if not space.reuse:
        raise does_not_apply(
            "zero3",
            "variables are gathered again in the backward pass, and this search space keeps what was gathered",
            "Make it with SearchSpace(reuse=True).",
        )
    return _sharded(space, "zero3", _BEFORE)


def _sharded(space: SearchSpace, name: str, alternative: int) -> Frontier:
    """Data parallelism with variables in as small pieces as sizes allow, and edges that read them as said."""
    began = time.perf_counter()
    if space.mesh.size == 1:
        raise does_not_apply(name, "one device stores everything", "Use more devices.")
    chosen = data_parallel_configurations(space, name)
    for op in space.operators:
        if op.type == "Variable":
            chosen[op.name] = _smallest(space, op)
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


def _alternatives(space: SearchSpace, assignment: tuple[int, ...], which: int) -> IntArray:
    """That alternative on all edges from variables, where there is one; both copies elsewhere."""
    problem, still = space.problem, parameter_side(space)
    result = np.zeros(problem.nodes + len(problem.edges), np.int64)
    for number, (edge, (u, v)) in enumerate(zip(space.edges, problem.edges.tolist(), strict=True)):
        if edge.tensor.op in still:
            time_s, memory_bytes = (table[assignment[u], assignment[v]] for table in problem.edge_tables(number))
            if len(np.atleast_1d(time_s)) > which and np.isfinite(time_s[which] + memory_bytes[which]):
                result[problem.nodes + number] = which
    return result
