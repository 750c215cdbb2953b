"""Sums of gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tensoropt.exec.program.summands import in_sum_dtype

__all__ = ["GradientSum", "cast"]


class GradientSum:
    """The gradients of one tensor, summed over the micro-batches of a step.

    A sum has memory of its own, to which each micro-batch adds in place, be its ops in the graph or in a function that
    the graph calls. The memory is free again once the sum is read. Of gradients that are rows (``tf.IndexedSlices``)
    all rows are kept, in the order of the micro-batches.
    """

    def __init__(self) -> None:
        """Has no gradients yet."""
        self._memory: Any = None
        self._dtype: Any = None  # in which is summed
        self._added: Any = None  # the op that adds the last gradient to the memory
        self._rows: list[tf.IndexedSlices] = []

    def add(self, gradient: Any) -> Any:
        """Adds the gradient of the next micro-batch in the graph; returns the op after which it is not needed."""
        if isinstance(gradient, tf.IndexedSlices) and self._memory is None:
            self._rows.append(gradient)
            return gradient.values.op
        tensor = in_sum_dtype(tf.convert_to_tensor(gradient))
        if self._memory is None:
            self._dtype = tensor.dtype
            name = tf.compat.v1.get_default_graph().unique_name("gradient_sum")
            with tf.control_dependencies(None):
                self._memory = tf.raw_ops.VarHandleOp(
                    dtype=tensor.dtype, shape=tensor.shape, shared_name=name, name=name
                )
            added = tf.raw_ops.AssignVariableOp(resource=self._memory, value=tensor)
        else:
            added = tf.raw_ops.AssignAddVariableOp(resource=self._memory, value=tensor)
        self._added = added
        return added

    @property
    def last_rows(self) -> tf.IndexedSlices | None:
        """The rows of the micro-batch that was added last; None where gradients are no rows."""
        return self._rows[-1] if self._rows else None

    def insert_rows(self, rows: Iterable[tf.IndexedSlices]) -> None:
        """Adds rows of micro-batches before the last one."""
        self._rows[-1:-1] = rows

    def total(self) -> Any:
        """The sum, once all micro-batches are added."""
        if self._rows:
            values, indices = ([getattr(rows, part) for rows in self._rows] for part in ("values", "indices"))
            return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), self._rows[0].dense_shape)
        with tf.control_dependencies([self._added]):
            read = tf.raw_ops.ReadVariableOp(resource=self._memory, dtype=self._dtype)
        with tf.control_dependencies([read]):
            free = tf.raw_ops.DestroyResourceOp(resource=self._memory, ignore_lookup_error=True)
        with tf.control_dependencies([free]):
            return tf.identity(read)


def cast(gradient: Any, dtype: Any) -> Any:
    """A gradient, whole or rows, in another dtype."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(gradient.values, dtype), gradient.indices, gradient.dense_shape)
    return tf.cast(gradient, dtype)
