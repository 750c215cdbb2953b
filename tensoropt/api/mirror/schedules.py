"""Learning rates that TensorFlow writes with branches of the graph, which a device's local graph could not follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["piecewise_constant", "piecewise_constant_decay"]


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Any:
    """``values[0]`` up to and with ``boundaries[0]``, then ``values[1]`` up to and with ``boundaries[1]``, and so on.

    TensorFlow's signature and values; all of ``values`` are there, and one is gathered.

    Args:
        x: scalar, such as the global step.
        boundaries: ascending, of ``x``'s dtype; int32 will do for an int64 ``x``.
        values: one more than boundaries, all of one dtype.
        name: name scope of the ops made; default ``PiecewiseConstant``.

    Returns:
        A scalar of the values' dtype.

    Raises:
        GraphError: If lengths or dtypes do not fit.
    """
    with current_model().enter(), tf.name_scope(name or "PiecewiseConstant") as scope:
        subject = f"piecewise_constant {scope.rstrip('/')!r}"
        if len(values) != len(boundaries) + 1:
            raise GraphError(
                f"{subject}: needs one more value than boundaries, got {len(values)} values and {len(boundaries)} "
                "boundaries. Give a value for what lies before the first one, too."
            )
        at = tf.convert_to_tensor(x, name="x")
        steps = [tf.convert_to_tensor(boundary) for boundary in boundaries]
        rates = [tf.convert_to_tensor(value) for value in values]
        for step in steps:
            if step.dtype != at.dtype and (step.dtype, at.dtype) != (tf.int32, tf.int64):
                raise GraphError(
                    f"{subject}: boundaries must have the dtype of x, {at.dtype.name}, got {step.dtype.name}. Cast one."
                )
        dtype = rates[0].dtype
        for rate in rates:
            if rate.dtype != dtype:
                raise GraphError(
                    f"{subject}: values must have one dtype, got {dtype.name} and {rate.dtype.name}. Cast one."
                )
        passed = [tf.cast(at > tf.cast(step, at.dtype), tf.int32) for step in steps]
        return tf.gather(tf.stack(rates), tf.add_n(passed) if passed else 0)


piecewise_constant_decay = piecewise_constant
