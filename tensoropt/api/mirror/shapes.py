"""Sizes of shapes that are integers, as in TensorFlow 2, and have a ``value``, as in TensorFlow 1.

Scripts of TensorFlow 1 write ``x.shape[1].value``, those of TensorFlow 2 ``x.shape[1] ** -0.5``. A :class:`Size` can
be used in both ways.
TensorFlow's own switch is one for the process: with it a size is no number any more for any other code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Size", "give_sizes_values", "unknown_sizes_are_dimensions"]

_is_done = False
_unknown_is_dimension = False


class _Integers(type):
    """A metaclass with a ``name``, by which Keras knows the dtypes of Python's numbers."""

    name = "int64"


class Size(int, metaclass=_Integers):
    """A known size of a shape."""

    __slots__ = ()

    @property
    def value(self) -> int:
        """The size, as ``tf.compat.v1.Dimension`` has it."""
        return int(self)


def give_sizes_values() -> None:
    """Makes every ``tf.TensorShape`` of the process return a :class:`Size` where it would return an integer."""
    global _is_done
    if _is_done:
        return
    import tensorflow as tf

    shape_class: Any = tf.TensorShape
    get, iterate = shape_class.__getitem__, shape_class.__iter__

    def sized(extent: Any) -> Any:
        if extent is None and _unknown_is_dimension:
            return tf.compat.v1.Dimension(None)
        return Size(extent) if type(extent) is int else extent

    def getitem(self: Any, key: Any) -> Any:
        return sized(get(self, key))

    def iterated(self: Any) -> Iterator[Any]:
        return map(sized, iterate(self))

    shape_class.__getitem__, shape_class.__iter__ = getitem, iterated
    _is_done = True


def unknown_sizes_are_dimensions(on: bool) -> None:
    """Says whether an unknown size is a ``Dimension`` whose value is None, as in TensorFlow 1, or None."""
    global _unknown_is_dimension
    _unknown_is_dimension = on
    give_sizes_values()
