"""Variables of TensorFlow's while a program trains them: whoever reads or writes one in eager code sees it as it is.

A program has its own pieces of the values on its devices. Between its runs the variable that the script knows takes the
value over when it is next asked for, and the program takes it back before its next run, changed or not. So a learning
rate that is assigned counts, and weights that are read, saved or evaluated are the trained ones.

A variable is noticed to be asked for by its handle, which all of TensorFlow's Python and its fast path take from the
attribute ``_handle``. A ``tf.function`` that was traced before has the handle already, and is not noticed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf

__all__ = ["Holder", "handle_of", "hold", "holder_of", "unnoticed"]

_HOLDER = "_tensoropt_holder"
_classes: dict[type, type] = {}
_quiet = threading.local()


class Holder(Protocol):
    """What has values of variables."""

    def asked(self, variable: Any) -> None:
        """Is called before eager code reads or writes a variable; collective, if the value is elsewhere."""


def hold(variable: Any, holder: Holder | None) -> None:
    """Has a holder, or nobody, hear of whoever asks for a variable, in the place of the one before."""
    variable.__dict__[_HOLDER] = holder
    own = type(variable)
    if own not in _classes.values():
        variable.__class__ = _classes.setdefault(own, _held(own))


def holder_of(variable: Any) -> Any:
    """The holder of a variable, or None."""
    return variable.__dict__.get(_HOLDER)


def handle_of(variable: Any) -> Any:
    """A variable's handle, without anybody hearing of it."""
    with unnoticed():
        return variable.handle


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """What this thread does with variables meanwhile, no holder hears of."""
    before = getattr(_quiet, "on", False)
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = before


def _held(own: type) -> type:
    """A class of variables like another one, of whose handles holders hear."""

    def get(variable: Any) -> Any:
        holder = variable.__dict__.get(_HOLDER)
        if holder is not None and not getattr(_quiet, "on", False) and tf.executing_eagerly():
            holder.asked(variable)
        return variable.__dict__["_handle"]

    def put(variable: Any, handle: Any) -> None:
        variable.__dict__["_handle"] = handle

    made = type(own)(own.__name__, (own,), {"_handle": property(get, put), "__module__": own.__module__})
    made.__qualname__ = own.__qualname__
    return made
