"""Values of tensors that are known while a graph is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import smart_cond

from tensoropt.api.frontend.effects import is_stateful
from tensoropt.api.frontend.functions import function_attrs
from tensoropt.graph.registry import traits

__all__ = ["KnownValues"]


class KnownValues:
    """Tensors that depend on constants alone, and their values."""

    def __init__(self) -> None:
        self._fixed: set[str] = set()
        self._values: dict[str, Any] = {}

    def note(self, made: Any) -> None:
        """Takes note of an op that was made, after those that it reads."""
        if self._is_fixed(made):
            self._fixed.update(x.name for x in made.outputs)

    def value(self, x: Any) -> Any:
        """The value of a tensor that depends on constants alone, as an array, else None."""
        if not isinstance(x, tf.Tensor) or x.dtype in (tf.resource, tf.variant):
            return None
        if x.name not in self._fixed:
            return None
        if x.name not in self._values:
            found = tf.get_static_value(x)
            if found is None:
                found = smart_cond.smart_constant_value(x)
            self._values[x.name] = None if found is None else np.asarray(found)
        return self._values[x.name]

    def truth(self, x: Any) -> bool | None:
        """Returns whether a condition holds if that is known, if only from one side of an "and"; else None."""
        if not isinstance(x, tf.Tensor):
            return None
        own = self.value(x)
        if own is not None:
            return bool(own)
        op = x.op
        if op.type == "Identity":
            return self.truth(op.inputs[0])
        if op.type == "LogicalAnd":
            sides = [self.truth(side) for side in op.inputs]
            return False if False in sides else None
        return None

    def _is_fixed(self, made: Any) -> bool:
        own = traits(made)
        if own.gives_shape:
            return all(x.shape.is_fully_defined() for x in made.inputs)
        if own.is_constant:
            return True
        return bool(
            made.inputs
            and not is_stateful(made)
            and not function_attrs(made)
            and all(x.name in self._fixed for x in made.inputs)
        )
