"""Notes whether a script's own code reads a size that is open in a trace, of which it may make other numbers.

A trace serves batches of all sizes, so ``x.shape[0]`` is None in it, where TensorFlow's own trace has a number. A
script that compares that number, or cuts a table by it, computes something else then, without an error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

__all__ = ["OpenSizeError", "SizesRead", "noting_sizes"]

# The methods of a tf.TensorShape that tell sizes; __getitem__ beside them, by what it returns.
_READERS = (
    "__eq__", "__hash__", "__iter__", "as_list", "num_elements", "is_fully_defined", "is_compatible_with",
    "assert_is_compatible_with", "is_subtype_of", "dims",
)  # fmt: skip
# Libraries, TensorFlow and Keras among them, know that sizes may be open.
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(tf.__file__).parents[1], Path(__file__).parents[2], Path(os.__file__).parent)
)
# In functions that it converts, AutoGraph makes the calls.
_AUTOGRAPH = f"{Path(tf.__file__).parent / 'python' / 'autograph'}{os.sep}"


class OpenSizeError(BaseException):
    """Ends a trace in which an open size is read, as no error of the script's that the script might catch."""


class SizesRead:
    """What a trace has read.

    Attributes:
        any: whether the script's own code has read an open size.
    """

    any = False


@contextlib.contextmanager
def noting_sizes(*, ends: bool) -> Iterator[SizesRead]:
    """Notes what is read meanwhile; one thread at a time.

    Args:
        ends: whether the first reading ends the trace, before the script does anything by what it reads.
    """
    found, kind = SizesRead(), tf.TensorShape
    own = {name: vars(kind)[name] for name in (*_READERS, "__getitem__")}

    def noted(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def reader(shape: Any, *args: Any) -> Any:
            result = read(shape, *args)
            is_open = shape._dims is not None and None in shape._dims
            tells = is_open and (name != "__getitem__" or getattr(result, "value", result) is None)
            if tells and (ends or not found.any) and _is_script(sys._getframe(1)):
                found.any = True
                if ends:
                    raise OpenSizeError
            return result

        return reader

    for name, read in own.items():
        is_property = isinstance(read, property)
        reader = noted(name, read.fget if is_property else read)
        setattr(kind, name, property(reader) if is_property else reader)
    try:
        yield found
    finally:
        for name, read in own.items():
            setattr(kind, name, read)


def _is_script(frame: FrameType | None) -> bool:
    """Tells whether the script's own code calls from a frame."""
    while frame is not None and frame.f_code.co_filename.startswith(_AUTOGRAPH):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_LIBRARIES)
