"""Attributes of TensorFlow's operations as Python values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["HINTS", "decoded"]

HINTS = ("_class", "_output_shapes")
"""TensorFlow's notes on an operation in its graph, which a copy in another graph must not have."""


def decoded(value: Any) -> Any:
    """An AttrValue as a Python value; functions and tensors as None (lowering passes the original on)."""
    kind = value.WhichOneof("value")
    if kind in ("i", "f", "b"):
        return getattr(value, kind)
    if kind == "s":
        return value.s.decode("utf-8", "replace")
    if kind == "type":
        return tf.dtypes.as_dtype(value.type).name
    if kind == "shape":
        return None if value.shape.unknown_rank else tuple(dim.size for dim in value.shape.dim)
    if kind == "list":
        fields = value.list
        texts = tuple(item.decode("utf-8", "replace") for item in fields.s)
        types = tuple(tf.dtypes.as_dtype(item).name for item in fields.type)
        return tuple(fields.i) or tuple(fields.f) or tuple(fields.b) or texts or types
    return None
