"""Data parallelism: every operator splits the batch over all devices, variables are whole everywhere."""

from __future__ import annotations

import time

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import DEFER, Configuration, is_legal
from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.space.space import SearchSpace

__all__ = ["data_parallel", "data_parallel_baseline", "data_parallel_configurations"]


@register_baseline("data_parallel")
def data_parallel_baseline(space: SearchSpace) -> Frontier:
    """Data parallelism as a frontier of one point.

    Raises:
        PlanError: the batch of an input cannot be shared by all devices.
    """
    began = time.perf_counter()
    chosen = data_parallel_configurations(space, "data_parallel")
    return single(space.problem, space.assignment(chosen), began)


def data_parallel_configurations(space: SearchSpace, name: str) -> dict[str, Configuration]:
    """:func:`data_parallel` for the baseline called ``name``.

    Raises:
        PlanError: the batch of an input cannot be shared by all devices.
    """
    chosen = data_parallel(space)
    batch = space.graph.batch_size()
    for op in space.graph.inputs():
        is_batch = op.outputs[0].shape[:1] == (batch,)
        if op.name in chosen and is_batch and set(chosen[op.name].actions) - {"d0"}:
            raise does_not_apply(
                name,
                f"{op} has {'a batch' if space.steps is None else 'micro-batches'} of {op.outputs[0].shape[0]}, which "
                f"{space.mesh.size} devices do not divide",
                f"Use a batch that {space.mesh.size} divides, or another number of devices.",
            )
    return chosen


def data_parallel(space: SearchSpace) -> dict[str, Configuration]:
    """The data-parallel configuration of every operator of the training step.

    The batch is the first dimension of the placeholders; it is followed through the graph. An operator that
    cannot split it computes whole.
    """
    mesh, graph = space.mesh, space.graph
    whole = Configuration((None,) * len(mesh.axes))
    result: dict[str, Configuration] = {}
    for op in space.operators:
        rule = space.rules[op.name]
        if rule.defer_gradient and traits(graph[op.inputs[0].op]).is_variable:
            # Gradients of all readers are summed before they are synchronised, once.
            result[op.name] = Configuration((DEFER,) * len(mesh.axes))
            continue
        axis = _batch_axis(space, op, result)
        split = Configuration((axis,) * len(mesh.axes))
        result[op.name] = split if axis is not None and is_legal(split, rule, mesh) else whole
        if result[op.name] not in space.choices(op.name):
            result[op.name] = space.choices(op.name)[-1]
    return result


def _batch_axis(space: SearchSpace, op: Operator, done: dict[str, Configuration]) -> str | None:
    """The iteration axis that the batch of an operator's inputs is, if it has one."""
    rule = space.rules[op.name]
    if traits(op).is_input:
        return "d0" if "d0" in rule.split else None
    if traits(op).is_variable or any(traits(space.graph[op.inputs[i].op]).is_variable for i in rule.pinned):
        return None
    for position, tensor in enumerate(op.inputs):
        given = done[tensor.op].output_layouts(space.rules[tensor.op], tensor.index).value
        for dim, axes in enumerate(given.dims):
            if axes == space.mesh.axes and axes and rule.inputs[position][dim]:
                return rule.inputs[position][dim][0]
    return None
