"""Lookups of several rows at a time, of known sizes where there are such: TensorFlow lists the distinct rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["embedding_lookup_sparse"]

_COMBINERS = ("mean", "sqrtn", "sum")


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Any:
    """``tf.nn.embedding_lookup_sparse``: for each row of ids, their rows of a table, combined.

    Args:
        params: the table, ``(vocabulary, ...)``.
        sp_ids: a ``SparseTensor`` of ids with two dimensions; where there are as many in each run, devices share them.
        sp_weights: a ``SparseTensor`` with a weight for each id, or None.
        partition_strategy: where ``params`` is a list.
        name: of the ops' scope.
        combiner: ``mean`` (default), ``sqrtn`` or ``sum``.
        max_norm: what rows of the table are shortened to.
        allow_fast_lookup: as in TensorFlow where the number of ids varies, else without effect.

    Returns:
        ``(rows of sp_ids, ...)``; zeros for a row without ids.

    Raises:
        GraphError: for ids that are no ``SparseTensor``, or an unknown combiner.
    """
    with current_model().enter(), tf.name_scope(name or "embedding_lookup_sparse") as scope:
        combiner = combiner or "mean"
        if combiner not in _COMBINERS:
            raise GraphError(f"'{scope}': combiner must be one of {', '.join(_COMBINERS)}. Got {combiner!r}.")
        for each in (sp_ids, sp_weights):
            if each is not None and not isinstance(each, tf.SparseTensor):
                raise GraphError(f"'{scope}': ids and weights must be SparseTensors. Got {type(each).__name__}.")
        if not sp_ids.values.shape.is_fully_defined():
            return tf.compat.v1.nn.embedding_lookup_sparse(
                params, sp_ids, sp_weights, partition_strategy, scope, combiner, max_norm, allow_fast_lookup
            )
        segments, count = sp_ids.indices[:, 0], sp_ids.dense_shape[0]
        rows = tf.compat.v1.nn.embedding_lookup(
            params, sp_ids.values, partition_strategy=partition_strategy, max_norm=max_norm
        )
        given = rows.dtype
        if given in (tf.float16, tf.bfloat16):
            rows = tf.cast(rows, tf.float32)

        def added(values: Any) -> Any:
            return tf.math.unsorted_segment_sum(values, segments, count)

        weights = tf.ones_like(segments, rows.dtype) if sp_weights is None else tf.cast(sp_weights.values, rows.dtype)
        column = tf.reshape(weights, [-1] + [1] * (rows.shape.rank - 1))
        total = added(rows if sp_weights is None else rows * column)
        if combiner == "sum":
            return tf.cast(total, given)
        scale = added(column) if combiner == "mean" else tf.sqrt(added(tf.square(column)))
        return tf.cast(tf.math.divide_no_nan(total, scale), given)
