"""Python's collector of garbage, kept from what is old."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collecting_new_objects"]

_YOUNG = 50_000
"""New objects, of some megabytes, after which the collector walks them."""


@contextlib.contextmanager
def collecting_new_objects() -> Iterator[None]:
    """Inside, the collector walks only objects that were made inside, and these less often; also a decorator.

    A traced model is millions of Python objects, which live on, and making an imported graph or the tables of a search
    has the collector walk them all again and again: a sixth of the time to plan MobileNetV2. Nearly all that is made
    inside lives on, too. Objects that the user froze stay so: then nothing is changed.
    """
    if gc.get_freeze_count():
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    if before[0]:  # the user may have turned the collector off
        gc.set_threshold(max(_YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
