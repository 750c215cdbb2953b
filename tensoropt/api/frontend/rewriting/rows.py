"""Writes to rows of a variable of which only a run knows how many there are: the whole variable gets a new value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.rewriting.rewriter import Handler, Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import Value

__all__ = ["ROW_HANDLERS", "writes_open_rows"]

# The same on a value, in the order in which the rows stand, so that duplicates count as they do in the variable.
_ON_VALUES = {
    "ResourceScatterAdd": tf.raw_ops.TensorScatterAdd,
    "ResourceScatterMax": tf.raw_ops.TensorScatterMax,
    "ResourceScatterMin": tf.raw_ops.TensorScatterMin,
    "ResourceScatterSub": tf.raw_ops.TensorScatterSub,
    "ResourceScatterUpdate": tf.raw_ops.TensorScatterUpdate,
}


def writes_open_rows(op: Any) -> bool:
    """Whether an op writes rows of a variable whose number only a run knows, and can be made with values."""
    if op.type not in _ON_VALUES:
        return False
    _, indices, rows = op.inputs
    return _is_open(indices, rows)


def _is_open(indices: Any, rows: Any) -> bool:
    return not indices.shape.is_fully_defined() and rows.shape.rank != 0


def _written(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    handle, indices, rows = (rewriter.tensor(scope.value(x), op) for x in op.inputs)
    if not _is_open(indices, rows):  # by the sizes of what is fed
        return None
    before = rewriter.before_read(op, scope, (handle, indices, rows))

    def write(handle: Any, indices: Any, rows: Any) -> Any:
        with tf.control_dependencies(before):
            old = tf.raw_ops.ReadVariableOp(resource=handle, dtype=rows.dtype)
        new = _ON_VALUES[op.type](tensor=old, indices=tf.expand_dims(indices, -1), updates=rows)
        if scope.guard is not None:
            new = tf.where(scope.guard, new, old)
        return tf.raw_ops.AssignVariableOp(resource=handle, value=new)

    made = rewriter.build(write, handle, indices, rows, of=op, scope=scope, name="write")
    made._add_control_inputs(before)
    rewriter.effects.append(made)
    return []


ROW_HANDLERS: dict[str, Handler] = dict.fromkeys(_ON_VALUES, _written)
