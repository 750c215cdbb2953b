"""Variables of TensorFlow's while a program trains them: whoever reads or writes one sees it as it is.

A variable that devices store whole is the one that the script has (``exec/program/outside_variable.py``), so there is
nothing to notice. One that they store in pieces takes its value over when somebody asks for it, and devices take it
back before their next run, changed or not. So weights that are read, saved or evaluated are the trained ones.

An op of eager code is given a variable by its handle, in one of two ways, and both are noticed: all of TensorFlow's
Python and its fast path take it from the attribute ``_handle``; a ``tf.function``, whenever it was traced, has captured
it, and is called with its ``captured_inputs``. What reads in threads of TensorFlow's own (a dataset whose functions
capture a variable) has taken the handle before, and finds an empty tensor of eight dimensions in the place of a value
that is in pieces, which no op takes for a weight.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction  # of no public name
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable  # nor has this

from tensoropt.api.frontend.effects import has_effect

__all__ = ["Holder", "handle_of", "hold", "holder_of", "noting_handles", "unnoticed"]

_HOLDER = "_tensoropt_holder"
_classes: dict[type, type] = {}
_quiet = threading.local()
_by_handle: WeakValueDictionary[int, Any] = WeakValueDictionary()  # variables that had a holder
_written: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()  # handles that a function may write


class Holder(Protocol):
    """A holder of variables' values, which gives them to variables on demand."""

    def asked(self, variable: Any) -> None:
        """Brings a variable up to date before eager code reads or writes it; collective, if its value is in pieces."""

    def read(self, variables: Sequence[Any]) -> None:
        """Brings variables up to date that are read together, and not written; collective, if some are in pieces."""


def hold(variable: Any, holder: Holder | None) -> None:
    """Sets the holder that hears of every access to a variable, in place of the one before; None removes it."""
    variable.__dict__[_HOLDER] = holder
    own = type(variable)
    if own not in _classes.values():
        variable.__class__ = _classes.setdefault(own, _held(own))
    _by_handle[id(handle_of(variable))] = variable
    if ConcreteFunction.captured_inputs is not _noticed:
        ConcreteFunction.captured_inputs = _noticed


def holder_of(variable: Any) -> Any:
    """The holder of a variable, or None."""
    return variable.__dict__.get(_HOLDER)


def handle_of(variable: Any) -> Any:
    """A variable's handle, without anybody hearing of it."""
    with unnoticed():
        return variable.handle


@contextlib.contextmanager
def noting_handles() -> Iterator[dict[int, Any]]:
    """Notes the variables whose handles somebody asks for while this lasts, by the handles' identities.

    TensorFlow notes a variable that a function reads, and not one of which an op gets the handle alone, as the ops of
    TensorFlow 1's optimizers do.
    """
    own, noted = BaseResourceVariable.handle, dict[int, Any]()

    def handle(variable: Any) -> Any:
        given = own.fget(variable)
        noted[id(given)] = variable  # which keeps the handle
        return given

    BaseResourceVariable.handle = property(handle, doc=own.__doc__)
    try:
        yield noted
    finally:
        BaseResourceVariable.handle = own


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Hides this thread's accesses to variables from their holders, for the duration of the context."""
    before = getattr(_quiet, "on", False)
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = before


def _is_noticed() -> bool:
    return not getattr(_quiet, "on", False) and bool(tf.executing_eagerly())


def _held(own: type) -> type:
    """A class of variables like another one, of whose handles holders hear."""

    def get(variable: Any) -> Any:
        holder = variable.__dict__.get(_HOLDER)
        if holder is not None and _is_noticed():
            holder.asked(variable)
        return variable.__dict__["_handle"]

    def put(variable: Any, handle: Any) -> None:
        variable.__dict__["_handle"] = handle

    made = type(own)(own.__name__, (own,), {"_handle": property(get, put), "__module__": own.__module__})
    made.__qualname__ = own.__qualname__
    return made


def _captured_inputs(function: Any, own: Any = ConcreteFunction.captured_inputs) -> list[Any]:
    """Returns the captured inputs of a function, and tells the holders of its variables of the access."""
    captured: list[Any] = own.fget(function)
    if _by_handle and _is_noticed():
        _notice(function, captured)
    return captured


_noticed = property(_captured_inputs)


def _notice(function: Any, captured: Iterable[Any]) -> None:
    held = {number: each for number in map(id, captured) if (each := _by_handle.get(number)) is not None}
    if not held:
        return
    read: dict[int, tuple[Holder, list[Any]]] = {}
    written = _written_by(function)
    for number, variable in held.items():
        holder = holder_of(variable)
        if holder is None:
            continue
        if number in written:
            holder.asked(variable)
        read.setdefault(id(holder), (holder, []))[1].append(variable)
    for holder, variables in read.values():
        holder.read(variables)


def _written_by(function: Any) -> frozenset[int]:
    """The captured handles that a function may write, by number."""
    if function not in _written:
        pairs = [(outer, inner) for outer, inner in function.graph.captures if inner.dtype == tf.resource]
        _written[function] = frozenset(
            id(outer) for outer, inner in pairs if any(has_effect(op) for op in inner.consumers())
        )
    return _written[function]
