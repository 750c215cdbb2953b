"""Attributes of TensorFlow's operations as Python values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["HINTS", "decoded", "keep_shapes", "types_of"]

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


def types_of(dtypes: Iterable[Any]) -> Any:
    """An AttrValue that lists dtypes."""
    value = tf.compat.v1.AttrValue()
    value.list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
    return value


def keep_shapes(copies: Sequence[Any], originals: Sequence[Any]) -> None:
    """Gives the tensors of a copied operation what the script has said of shapes, which TensorFlow cannot infer."""
    for new, old in zip(copies, originals, strict=True):
        if not new.shape.is_fully_defined() and new.shape.is_compatible_with(old.shape):
            new.set_shape(old.shape)
