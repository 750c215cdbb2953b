"""Python's collector of garbage, kept from what is old."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collecting_new_objects"]


@contextlib.contextmanager
def collecting_new_objects() -> Iterator[None]:
    """Inside, the collector walks only objects that were made inside; also a decorator.

    A traced model is millions of Python objects, which live on, and making an imported graph or the tables of a search
    has the collector walk them all again and again: a sixth of the time to plan MobileNetV2. What is new is collected
    as ever. Objects that the user froze stay so: then nothing is changed.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
