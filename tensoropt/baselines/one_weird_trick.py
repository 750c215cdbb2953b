"""One weird trick (Krizhevsky 2014): convolutions are data parallel, dense layers are split by their outputs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tensoropt.baselines.baseline import does_not_apply, single
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.problem.frontier import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.space.propagation import Actions, follow, parameter_side, placed, weight_of
from tensoropt.space.space import SearchSpace

__all__ = ["one_weird_trick"]

_NAME = "one_weird_trick"


@register_baseline("one_weird_trick")
def one_weird_trick(space: SearchSpace) -> Frontier:
    """The expert strategy for convolutional networks with which FlexFlow (section 8.1) and PaSE (section IV) compare.

    All devices share the batch of convolutions and of what lies between them. Of a dense layer each device computes
    some outputs, for the whole batch. Where devices do not divide the outputs, those along the outer mesh axes share
    the batch there, too.

    Raises:
        PlanError: the graph has no convolution or no dense layer.
    """
    began = time.perf_counter()
    still = parameter_side(space)
    convolutions = [op for op in space.operators if traits(op).is_convolution]
    dense = {op.name: _outputs(space, op, still) for op in space.operators if weight_of(op, still) is not None}
    if not convolutions or not any(dense.values()):
        raise does_not_apply(
            _NAME,
            f"it is for convolutions followed by dense layers, and the graph has {len(convolutions)} convolutions and "
            f"{sum(axis is not None for axis in dense.values())} dense layers",
            "Use 'megatron' or 'mesh_tensorflow_hybrid' for Transformers, 'gnmt' for recurrent networks.",
        )
    axes = space.mesh.axes

    def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
        if traits(op).is_input:
            return [placed(followed, axes, "d0")] if "d0" in space.rules[op.name].split else [followed]
        columns = dense.get(op.name)
        if columns is None:
            return [followed]
        batch = _batch(space, op, still)
        return [placed(placed(followed, axes, columns), axes[:count], batch) for count in range(len(axes) + 1)]

    return single(space.problem, space.assignment(follow(space, decide).configurations), began)


def _outputs(space: SearchSpace, op: Operator, still: frozenset[str]) -> str | None:
    """The iteration axis of a dense layer that only its weights and its output have."""
    weight, rule = weight_of(op, still), space.rules[op.name]
    if weight is None:
        return None
    given = {name for i, dims in enumerate(rule.inputs) if i != weight for dim in dims for name in dim}
    columns = [dim[0] for dim in rule.outputs[0] if dim and dim[0] not in given and dim[0] in rule.split]
    return columns[0] if columns else None


def _batch(space: SearchSpace, op: Operator, still: frozenset[str]) -> str | None:
    """The iteration axis of a dense layer that is the samples': the first of its output that the weights lack."""
    weight, rule = weight_of(op, still), space.rules[op.name]
    held = {name for dim in rule.inputs[weight or 0] for name in dim}
    rows = [dim[0] for dim in rule.outputs[0] if dim and dim[0] not in held and dim[0] in rule.split]
    return rows[0] if rows else None
