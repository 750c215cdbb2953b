"""The values that stand for tensors of the user's graph in the graph that is made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

__all__ = ["TensorList", "Value", "VariableValue"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A list of tensors (a ``TensorArray``) whose length and whose indices are known, so that it needs no tensor.

    Attributes:
        dtype: of its tensors.
        shape: of each of them, as far as it is known.
        items: the tensors; None where none was written.
        source: a tensor whose rows the items are, if they were not read so far; then ``items`` is empty.
    """

    dtype: Any
    shape: Any
    items: tuple[Any, ...] = ()
    source: Any = None

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
