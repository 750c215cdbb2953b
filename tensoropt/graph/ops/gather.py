"""Rows looked up by index: embeddings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits, Work

__all__ = ["SAMPLES", "counts_through_samples", "other_row"]

SAMPLES = "samples"
"""The attribute of a lookup in which each sample looks up in its own rows: how many samples there are."""


def other_row(indices: Any) -> Any:
    """Encodes the row indices of other devices' shards of a table, for the rows of a gradient.

    The codes are negative, hence no valid indices, so ops that sum rows ignore these rows. The function is its own
    inverse.
    """
    return -2 - indices


def _axis_and_batch(op: Operator, rank: int) -> tuple[int, int]:
    """The dimension of the first input that is looked up in, and how many leading dimensions both inputs share.

    Args:
        op: the lookup.
        rank: of its indices.
    """
    if op.type == "Gather":
        return 0, 0
    batch = int(op.attrs.get("batch_dims", 0))
    batch += rank if batch < 0 else 0
    if op.type == "ResourceGather":
        return batch, batch
    return int(np.asarray(op.static[2])), batch


def _rows(op: Operator, inputs: Sequence[TensorSpec]) -> int:
    axis, _ = _axis_and_batch(op, inputs[1].rank)
    return inputs[0].shape[axis]


def _counts_rows(op: Operator, inputs: Sequence[TensorSpec]) -> bool | None:
    return False if _axis_and_batch(op, inputs[1].rank) == (0, 0) and inputs[1].rank else None


_LOOKUP = Traits(work=Work.LOOKUP, in_place=False, indices={1: _rows}, counts_samples=_counts_rows)


def _gather(ctx: Lowering, params: Any, indices: Any) -> Any:
    """Looks up the rows that the device has; those of other devices are 0 here, so that the sum is right."""
    tf = ctx.tf
    if SAMPLES in ctx.op.attrs:
        return _own_rows(ctx, params, indices)
    given_axis, batch = _axis_and_batch(ctx.op, len(ctx.input_shape(1)))
    axis = given_axis % len(ctx.input_shape(0))
    if ctx.pieces("v") == 1:
        return tf.gather(params, indices, axis=given_axis, batch_dims=batch)
    local = indices - tf.constant(ctx.offset("v"), indices.dtype)
    here = tf.logical_and(local >= 0, local < tf.constant(ctx.local_size("v"), indices.dtype))
    # What is no index of the whole vocabulary is none here either: the lookup fails, or gives zeros on devices that
    # cannot fail, as it does in one process.
    is_index = tf.logical_and(indices >= 0, indices < tf.constant(ctx.rule.size("v"), indices.dtype))
    elsewhere = tf.where(is_index, tf.zeros_like(indices), indices)
    rows = tf.gather(params, tf.where(here, local, elsewhere), axis=given_axis, batch_dims=batch)
    shape = ctx.input_shape(1)
    before, after = (1,) * (axis - batch), (1,) * (params.shape.rank - axis - 1)
    mask = tf.reshape(here, (*shape[:batch], *before, *shape[batch:], *after))
    result = tf.where(mask, rows, tf.zeros_like(rows))
    if ctx.rule.sparse_input is None:
        return result

    def backward(gradient: Any) -> list[Any]:
        """Gradients of rows, as TensorFlow's own gradient of a lookup gives them; of other devices' rows, too."""
        row_of = tf.where(here, local, other_row(indices))
        values = tf.reshape(gradient, (-1, *ctx.input_shape(0)[1:]))
        size = tf.constant(ctx.input_shape(0), local.dtype)
        return [tf.IndexedSlices(values, tf.reshape(row_of, [-1]), size)]

    return ctx.with_gradient([params], [result], backward)


def counts_through_samples(op: Operator) -> bool:
    """Tells whether an operator looks up rows of its own for each sample, by indices that count those of all."""
    return SAMPLES in op.attrs and op.type in ("Gather", "GatherV2")


def _own_rows(ctx: Lowering, params: Any, indices: Any) -> Any:
    """Rows of this device's samples; a row of another device is an error, or no number on GPUs, which do not fail."""
    tf = ctx.tf
    if ctx.pieces("b") == 1:
        return tf.gather(params, indices)
    local = indices - tf.constant(ctx.offset("b") * ctx.rule.size("v"), indices.dtype)
    rows = tf.gather(params, local)
    if not rows.dtype.is_floating or not tf.config.list_physical_devices("GPU"):
        return rows
    here = tf.logical_and(local >= 0, local < tf.shape(params, local.dtype)[0])
    here = tf.reshape(here, [*indices.shape, *(1 for _ in params.shape[1:])])
    return tf.where(here, rows, tf.constant(np.nan, rows.dtype))


@register_op(
    "GatherV2",
    lower=_gather,
    static={2: "axis"},
    samples=[
        Sample("GatherV2", (floats(24, 6), integers(8, 3, high=24), 0)),
        Sample("GatherV2", (floats(24, 5), integers(12, high=24, dtype="int64"), 0)),
        Sample("GatherV2", (floats(12, 5), integers(high=12), 0)),
        Sample("GatherV2", (floats(12), integers(7, high=12), -1)),
        Sample("GatherV2", (floats(4, 12, 5), integers(7, high=12), -2)),
        Sample("GatherV2", (floats(6, 12, 5), integers(6, 7, high=12), 1), {"batch_dims": 1}),
        Sample("GatherV2", (floats(4, 5, 12), integers(4, 7, high=12), 2), {"batch_dims": -1}),
        Sample("GatherV2", (floats(6, 12, 5), integers(6, high=12), 1), {"batch_dims": 1}),
        Sample("GatherV2", (floats(6, 4, 12), integers(6, 4, high=12), 2), {"batch_dims": 2}),
        Sample("GatherV2", (integers(24, 5, high=99), integers(7, high=24), 0)),
    ],
    traits=_LOOKUP,
)
@register_op(
    "Gather",
    lower=_gather,
    samples=[Sample("Gather", (floats(12, 8), integers(24, high=12)))],
    traits=_LOOKUP,
)
@register_op(
    "ResourceGather",
    lower=_gather,
    samples=[
        Sample("ResourceGather", (floats(24, 6), integers(8, 3, high=24)), {"dtype": "float32"}),
        Sample("ResourceGather", (floats(12, 4), integers(6, high=12, dtype="int64")), {"dtype": "float32"}),
    ],
    traits=_LOOKUP,
)
def gather(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The vocabulary ``v`` is summed over; shared, index and other dimensions pass through.

    An index outside of the vocabulary is an error, as in one process; on GPUs TensorFlow gives zeros.
    """
    params, indices = inputs
    if SAMPLES in op.attrs:
        return _by_sample(op, inputs, [("b", "v")], indices.rank)
    given_axis, batch = _axis_and_batch(op, indices.rank)
    axis = given_axis % params.rank
    shared = [f"b{i}" for i in range(batch)]
    names = [*shared, *(f"p{i}" for i in range(batch, params.rank))]
    looked_up = [f"i{i}" for i in range(batch, indices.rank)]
    result = [*names[:axis], *looked_up, *names[axis + 1 :]]
    # Only numbers can be summed.
    names_split: list[str | None] = list(names)
    names_split[axis] = None if params.dtype == "bool" else "v"
    return movement(
        inputs,
        op.outputs,
        (dimensions(names_split), dimensions([*shared, *looked_up])),
        (dimensions(result),),
        sizes={"v": params.shape[axis]},
        reduced=("v",),
        saved_inputs=(1,),
        # TensorFlow's gradient is whole for every other axis, and for the first one counted from the end.
        sparse_input=0 if given_axis == 0 and params.is_differentiable else None,
    )


def _by_sample(op: Operator, inputs: Sequence[TensorSpec], looked_up: Sequence[tuple[str, ...]], rank: int) -> OpRule:
    """The rule of a lookup in which each sample looks up in its own rows.

    Args:
        op: the lookup.
        inputs: what it looks up in, and its indices.
        looked_up: the axes of the dimensions that it looks up in, of which samples come first.
        rank: how many dimensions of the indices are there in what it gives.
    """
    params, indices = inputs
    samples = int(op.attrs[SAMPLES])
    each = indices.shape[0] // samples
    places: Dims = (("b",) if each == 1 else ("b", "p"), *((f"i{place}",) for place in range(1, rank)))
    others = passed(params.rank)[len(looked_up) :]
    return movement(
        inputs,
        op.outputs,
        ((*looked_up, *others), (*places, *[()] * (indices.rank - rank))),
        ((*places, *others),),
        sizes={"b": samples, "v": params.shape[0] // samples, "p": each},
        saved_inputs=(1,),
    )


def _least_size(op: Operator, inputs: Sequence[TensorSpec]) -> int:
    return min(inputs[0].shape[: inputs[1].shape[-1]], default=1)


def _counts_coordinates(op: Operator, inputs: Sequence[TensorSpec]) -> bool | None:
    depth = inputs[1].shape[-1]
    return True if depth > 1 and inputs[1].rank > 1 else None


_LOOKUP_ND = Traits(work=Work.LOOKUP, in_place=False, indices={1: _least_size}, counts_samples=_counts_coordinates)


def _gather_nd(ctx: Lowering, params: Any, indices: Any) -> Any:
    tf = ctx.tf
    # A variable is read by then, and its op has no policy.
    look_up = functools.partial(
        tf.raw_ops.GatherNd, params=params, bad_indices_policy=ctx.op.attrs.get("bad_indices_policy", "")
    )
    if SAMPLES not in ctx.op.attrs or ctx.pieces("b") == 1:
        return look_up(indices=indices)
    # The samples are known: they are counted anew, as this device's own.
    *shape, _ = indices.shape.as_list()
    own = ctx.local_size("b")
    numbers = np.arange(own).repeat(int(np.prod(shape)) // own).reshape(*shape, 1)
    return look_up(indices=tf.concat([tf.constant(numbers, indices.dtype), indices[..., 1:]], -1))


@register_op(
    "GatherNd",
    lower=_gather_nd,
    samples=[
        Sample("GatherNd", (floats(4, 3, 12), integers(8, 6, 2, high=3))),
        Sample("GatherNd", (floats(6, 12), integers(24, 1, high=6))),
        Sample("GatherNd", (integers(3, 4, high=99), integers(12, 2, high=3))),
    ],
    traits=_LOOKUP_ND,
)
@register_op(
    "ResourceGatherNd",
    lower=_gather_nd,
    samples=[Sample("ResourceGatherNd", (floats(3, 12), integers(8, 1, high=3)), {"dtype": "float32"})],
    traits=_LOOKUP_ND,
)
def gather_nd(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The dimensions that are looked up in stay whole; all others pass through."""
    params, indices = inputs
    if SAMPLES in op.attrs:
        return _by_sample(op, inputs, [("b",), *[()] * (indices.shape[-1] - 1)], indices.rank - 1)
    depth = indices.shape[-1]
    looked_up: Dims = tuple((f"i{i}",) for i in range(indices.rank - 1))
    own = passed(params.rank, whole=range(depth))
    # The one case in which TensorFlow gives rows.
    is_rows = depth == 1 and indices.rank == 2 and params.is_differentiable
    return movement(
        inputs,
        op.outputs,
        (own, (*looked_up, ())),
        ((*looked_up, *own[depth:]),),
        saved_inputs=(1,),
        sparse_input=0 if is_rows else None,
    )
