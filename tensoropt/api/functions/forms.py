"""The forms of arguments: by what two calls are alike, without their values; looked up in each step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["form_of"]


def form_of(value: Any) -> Hashable:
    """Nests, with the type and shape of each tensor and all of what is none.

    Forms of nests that differ for ``tf.nest`` differ; those that are alike for it mostly are equal.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, *map(form_of, value)
    if kind is dict:
        return kind, *((key, form_of(each)) for key, each in value.items())
    if isinstance(value, np.ndarray | tf.Tensor) and hasattr(value, "shape"):
        return kind, value.dtype, tuple(value.shape)
    return kind, repr(value)
