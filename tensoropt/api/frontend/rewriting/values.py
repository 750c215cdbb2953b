"""The values that stand for tensors of the user's graph in the graph that is made of it, and those known meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tensoropt.api.frontend.static_values import keep_static, may_vary, static_value
from tensoropt.graph.registry import traits

__all__ = ["KnownValues", "TensorList", "Value", "VariableValue", "held", "or_zeros", "select"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A list of tensors (a ``TensorArray``) whose length and whose indices are known, so that it needs no tensor.

    Attributes:
        dtype: of its tensors.
        shape: of each of them, as far as it is known.
        items: the tensors; None where none was written.
        source: a tensor whose rows the items are, if they were not read so far; then ``items`` is empty.
        conditions: under which gradients of what is read from the list count.
    """

    dtype: Any
    shape: Any
    items: tuple[Any, ...] = ()
    source: Any = None
    conditions: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.items) if self.source is None else int(self.source.shape[0])

    def with_items(self, items: Sequence[Any]) -> TensorList:
        """The list with other tensors."""
        return replace(self, items=tuple(items), source=None)

    def map(self, function: Callable[[Any], Any]) -> TensorList:
        """The list with ``function`` applied to each tensor, or to the one whose rows they are."""
        if self.source is not None:
            return replace(self, source=function(self.source))
        return self.with_items([None if item is None else function(item) for item in self.items])


@dataclass(frozen=True, slots=True, eq=False)
class VariableValue:
    """A variable of which a function needs nothing but the value: a tensor that is given to it."""

    tensor: Any
    shape: Any = field(default=None)


Value = tf.Tensor | TensorList | VariableValue


def held(value: Any) -> tuple[Any, Any]:
    """The dtype and the shape of what a `Value` holds, a variable's content too; of a list those of a tensor for it."""
    if isinstance(value, TensorList):
        return tf.variant, tf.TensorShape([])
    if isinstance(value, VariableValue):
        return value.tensor.dtype, value.tensor.shape
    if value.dtype == tf.resource:
        if "dtype" not in value.op.node_def.attr:
            return value.dtype, value.shape
        return tf.as_dtype(value.op.get_attr("dtype")), tf.TensorShape(value.op.get_attr("shape"))
    return value.dtype, value.shape


def select(condition: Any, one: Any, other: Any) -> Any:
    """One tensor where a condition holds, else another one of its shape.

    TensorFlow's graph optimizer knows the shape of what the op gives, where it does not know that of a fed condition.
    ``tf.where`` gives an unknown rank then, with which the oneDNN pass ends the process at a batch normalization.
    """
    return tf.raw_ops.Select(condition=condition, x=one, y=other)


def or_zeros(condition: Any, tensor: Any) -> Any:
    """A tensor where a condition holds, else zeros: an index of whatever holds something, or nothing that is added."""
    return select(condition, tensor, tf.zeros_like(tensor))


class KnownValues:
    """Tensors that depend on constants alone, and their values."""

    def __init__(self, crossed: Iterable[str] = ()) -> None:
        """Begins with none.

        Args:
            crossed: names of tensors by which losses are differentiated, or at which gradients stop.
        """
        self._moved = set(crossed)  # by which losses are differentiated, or by what is computed of
        self._fixed: set[str] = set()
        self._values: dict[str, Any] = {}

    def note(self, made: Any) -> None:
        """Takes note of an op that was made, after those that it reads."""
        if not self._is_fixed(made):
            return
        self._fixed.update(x.name for x in made.outputs)
        if any(x.name in self._moved for x in made.inputs):
            self._moved.update(x.name for x in made.outputs)

    def is_known(self, x: Any) -> bool:
        """Tells whether a tensor has a known value, by which nothing is decided: the tensor may be fed."""
        return self._peek(x) is not None

    def is_constant(self, x: Any) -> bool:
        """Tells whether a tensor has a known value, and no gradient."""
        return self.is_known(x) and x.name not in self._moved

    def value(self, x: Any) -> Any:
        """The value of a tensor that depends on constants alone, as an array, else None.

        What it is computed from can be fed no more: what is decided by the value would not see what is fed.
        """
        found = self._peek(x)
        if found is not None:
            keep_static(x, ())
        return found

    def computed(self, x: Any) -> Any:
        """The :meth:`value` of a tensor, if TensorFlow does not fold what makes it, too."""
        found = self.value(x)
        if found is None and isinstance(x, tf.Tensor) and x.name in self._fixed:
            made = static_value(x)
            found = self._values[x.name] = None if made is None else np.asarray(made)
        return found

    def truth(self, x: Any) -> bool | None:
        """Returns whether a condition holds if that is known, if only from one side of an "and"; else None."""
        decider = self._decider(x)
        return None if decider is None else bool(self.value(decider))

    def _decider(self, x: Any) -> Any:
        """The tensor of a known value that is the truth of a condition; None if there is none."""
        if not isinstance(x, tf.Tensor):
            return None
        if self.is_known(x):
            return x
        if x.op.type == "Identity":
            return self._decider(x.op.inputs[0])
        if x.op.type == "LogicalAnd":
            sides = map(self._decider, x.op.inputs)
            return next((side for side in sides if side is not None and not self._peek(side)), None)
        return None

    def upper_bound(self, one: Any, other: Any) -> Any:
        """The value of a minimum of whole numbers: of one that is known and a maximum that is no lower; else None."""
        for bound, x in ((one, other), (other, one)):
            most = self._peek(bound)
            if most is None or most.ndim or not np.issubdtype(most.dtype, np.integer) or x.op.type != "Maximum":
                continue
            for side in x.op.inputs:
                least = self._peek(side)
                if least is not None and least.ndim == 0 and least >= most:
                    keep_static(side, ())
                    return self.value(bound)
        return None

    def _peek(self, x: Any) -> Any:
        """The value of a tensor that may be fed all the same."""
        if not isinstance(x, tf.Tensor) or x.dtype in (tf.resource, tf.variant) or x.name not in self._fixed:
            return None
        if x.name not in self._values:
            # Not by get_static_value, after which nothing of what it has looked at could be fed.
            is_constant = traits(x.op).is_constant
            found = tf.make_ndarray(x.op.get_attr("value")) if is_constant else tensor_util.try_evaluate_constant(x)
            self._values[x.name] = None if found is None else np.asarray(found)
        return self._values[x.name]

    def _is_fixed(self, made: Any) -> bool:
        if traits(made).gives_shape and all(x.shape.is_fully_defined() for x in made.inputs):
            return True
        return not may_vary(made) and all(x.name in self._fixed for x in made.inputs)
