"""Rows written to, or added up at, places given by indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, booleans, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _local_places(ctx: Lowering, indices: Any) -> Any:
    """The places as the device counts them; those of other devices are in a row behind its last one.

    What is no place of the whole is none here either: the op fails, or drops it on devices that cannot fail, as it
    does in one process.
    """
    tf = ctx.tf
    depth = indices.shape[-1]
    offsets = tf.constant([ctx.offset(f"s{i}") for i in range(depth)], indices.dtype)
    sizes = tf.constant([ctx.local_size(f"s{i}") for i in range(depth)], indices.dtype)
    whole = tf.constant([ctx.rule.size(f"s{i}") for i in range(depth)], indices.dtype)
    local = indices - offsets
    here = tf.reduce_all((local >= 0) & (local < sizes), -1, keepdims=True)
    is_place = tf.reduce_all((indices >= 0) & (indices < whole), -1, keepdims=True)
    behind = tf.constant([ctx.local_size("s0"), *[0] * (depth - 1)], indices.dtype)
    return tf.where(here, local, tf.where(is_place, behind, tf.constant(-1, indices.dtype)))


def _is_cut(ctx: Lowering, indices: Any) -> bool:
    return any(ctx.pieces(f"s{i}") > 1 for i in range(indices.shape[-1]))


def _scatter(ctx: Lowering, indices: Any, updates: Any) -> Any:
    shape = ctx.output_shape()
    if not _is_cut(ctx, indices):
        return ctx.emit([indices, updates], static={2: shape})
    longer = (shape[0] + 1, *shape[1:])
    return ctx.emit([_local_places(ctx, indices), updates], static={2: longer})[0][: shape[0]]


def _depth(indices: TensorSpec) -> int:
    """Returns the number of dimensions that the indices name."""
    return indices.shape[-1]


def _dims(indices: TensorSpec, rank: int) -> tuple[list[str], list[str]]:
    """Names of the dimensions of the places, and of the tensor of ``rank`` dimensions that they are in."""
    depth = _depth(indices)
    places = [f"i{i}" for i in range(indices.rank - 1)]
    return places, [*(f"s{i}" for i in range(depth)), *(f"d{i}" for i in range(depth, rank))]


@register_op(
    "ScatterNd",
    lower=_scatter,
    static={2: "shape"},
    samples=[
        Sample("ScatterNd", (integers(6, 1, high=12), floats(6, 4), [12, 4])),
        Sample("ScatterNd", (integers(2, 3, 2, high=4, dtype="int64"), floats(2, 3), [4, 6])),
        Sample("ScatterNd", (integers(4, 1, high=6), booleans(4), [6])),
    ],
    traits=Traits(in_place=False, indices={0: lambda op, inputs: min(op.outputs[0].shape[: _depth(inputs[0])])}),
)
def scatter(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``i k, i d -> s d``: places of one sum ``s``, where ``k`` numbers are a place; split places leave partial sums.

    Only numbers can be summed.
    """
    indices, updates = inputs
    places, result = _dims(indices, op.outputs[0].rank)
    named = dimensions([*places, *result[_depth(indices) :]])
    return movement(
        inputs,
        op.outputs,
        ((*dimensions(places), ()), named),
        (dimensions(result),),
        reduced=places if updates.dtype != "bool" else (),
        flops=float(updates.elements),
        backward_flops=float(updates.elements),
        saved_inputs=(0,),
    )


def _written(ctx: Lowering, tensor: Any, indices: Any, updates: Any) -> Any:
    if not _is_cut(ctx, indices):
        return ctx.emit([tensor, indices, updates])
    tf = ctx.tf
    longer = tf.concat([tensor, tf.zeros_like(tensor[:1])], 0)
    return ctx.emit([longer, _local_places(ctx, indices), updates])[0][: tensor.shape[0]]


def _sample(op_type: str) -> Sample:
    return Sample(op_type, (floats(4, 6), integers(3, 2, high=4), floats(3)))


_WRITES = Traits(in_place=False, indices={1: lambda op, inputs: min(op.outputs[0].shape[: _depth(inputs[1])])})


@register_op(
    "TensorScatterUpdate",
    lower=_written,
    samples=[
        _sample("TensorScatterUpdate"),
        Sample("TensorScatterUpdate", (floats(6, 2), integers(5, 1, high=6), floats(5, 2))),
    ],
    traits=_WRITES,
)
@register_op("TensorScatterAdd", lower=_written, samples=[_sample("TensorScatterAdd")], traits=_WRITES)
@register_op("TensorScatterSub", lower=_written, samples=[_sample("TensorScatterSub")], traits=_WRITES)
@register_op(
    "TensorScatterMax",
    "TensorScatterMin",
    lower=_written,
    samples=[_sample("TensorScatterMax"), _sample("TensorScatterMin")],
    traits=_WRITES,
)
def written(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The tensor's dimensions are splittable; every device looks at all places, and writes those that it has."""
    tensor, indices, updates = inputs
    places, result = _dims(indices, tensor.rank)
    others = dimensions(result[_depth(indices) :])
    extreme = op.type.endswith(("Max", "Min"))
    return movement(
        inputs,
        op.outputs,
        (dimensions(result), ((),) * indices.rank, (*((),) * len(places), *others)),
        (dimensions(result),),
        flops=float(updates.elements),
        backward_flops=float(updates.elements),
        saved_inputs=(0, 1, 2) if extreme else (1,),
        saved_outputs=(0,) if extreme else (),
    )
