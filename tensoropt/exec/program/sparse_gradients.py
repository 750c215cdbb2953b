"""Gradients that are given as rows, and the indices by which devices tell their own from others'.

Within a device's piece of a variable an index is that of the piece's row. A row of another device has the negative
index ``-2 - index`` of the whole variable, so that whoever wants a whole gradient (TensorFlow's segment sums leave
negative indices out) takes the device's own, and whoever wants all rows finds them. What is no row has the index -1.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.graph.ops.gather import other_row
from tensoropt.graph.ops.updates import NO_ROW

__all__ = ["merge_rows", "own_rows", "whole_rows"]


def whole_rows(rows: tf.IndexedSlices, offset: int, count: int, *, split: bool) -> tuple[Any, Any]:
    """All rows of a gradient, by their indices within the whole variable, in one order on all devices.

    Where a variable's rows are split, a device has got its own rows from who had them and the others from one member of
    their devices, so that its order is no other's; only rows of one index are in one order everywhere.

    Args:
        rows: by their indices within a device's piece.
        offset: of the piece.
        count: how many rows there are, what is beside them is none; 0 where only a run knows.
        split: whether the rows of the variable are split.

    Returns:
        Values ``(count, ...)`` and indices ``(count,)``.
    """
    indices = tf.where(rows.indices >= 0, rows.indices + tf.cast(offset, rows.indices.dtype), other_row(rows.indices))
    values = rows.values
    if values.shape[0] != count:
        there = tf.reshape(tf.where(tf.not_equal(indices, NO_ROW)), [-1])
        values, indices = tf.gather(values, there), tf.gather(indices, there)
    if split:
        order = tf.argsort(indices, stable=True)
        values, indices = tf.gather(values, order), tf.gather(indices, order)
    values.set_shape([count or None, *rows.values.shape[1:]])
    indices.set_shape([count or None])
    return values, indices


def own_rows(values: Any, indices: Any, offset: int, rows: int) -> tuple[Any, Any]:
    """Selects a device's own rows, by indices in the whole variable, and returns them by indices in its piece."""
    flat, local = tf.reshape(indices, [-1]), indices
    if indices.shape.rank != 1 and values.shape.rank:
        values = tf.reshape(values, [-1, *values.shape[indices.shape.rank :]])
    local = flat - tf.constant(offset, flat.dtype)
    own = tf.reshape(tf.where((local >= 0) & (local < rows)), [-1])
    return tf.gather(values, own) if values.shape.rank else values, tf.gather(local, own)


def merge_rows(values: Any, indices: Any) -> list[Any]:
    """Adds up the rows of each index; as many places as are left over then hold no row."""
    unique, place = tf.unique(indices)
    summed = tf.math.unsorted_segment_sum(values, place, tf.shape(values)[0])
    left = tf.fill([tf.shape(values)[0] - tf.size(unique)], tf.constant(NO_ROW, unique.dtype))
    return [summed, tf.ensure_shape(tf.concat([unique, left], 0), indices.shape)]
