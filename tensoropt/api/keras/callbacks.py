"""Callbacks on several ranks: those of Keras's that write files act on rank 0, and all ranks have their state."""

from __future__ import annotations

import functools
import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tensoropt.api.keras.keras_internals import Ranks
from tensoropt.errors import SessionError

__all__ = ["callbacks_on"]

_WRITING = tuple(
    getattr(keras.callbacks, name)
    for name in ("ModelCheckpoint", "OrbaxCheckpoint", "TensorBoard", "CSVLogger", "RemoteMonitor")
    if hasattr(keras.callbacks, name)
)
_METHODS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))
_READ_AT = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")  # where those may read weights
_ALONE = {"set_model", "set_params", "_model", "params", *_METHODS}  # attributes that each rank has its own of
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


def callbacks_on(ranks: Ranks, given: Any) -> Any:
    """The callbacks to call: of those that write rank 0 alone runs the methods, and others hear of it; collective.

    Args:
        ranks: what takes part.
        given: one of the script's, nested ones, None, or a ``CallbackList``, as ``fit`` gives it to ``evaluate``.
    """
    if not isinstance(given, keras.callbacks.CallbackList):
        return _on(ranks, [] if given is None else keras.tree.flatten(given))
    if not any(isinstance(each, _Bring) for each in given.callbacks):
        silent = keras.callbacks.ProgbarLogger if ranks.rank else ()
        given.callbacks = _on(ranks, [each for each in given.callbacks if not isinstance(each, silent)])
        for each in given.callbacks:
            if each.model is None:  # the list has told the script's own
                each.set_model(given.model)
    return given


def _on(ranks: Ranks, callbacks: Sequence[Any]) -> list[Any]:
    callbacks = _as_rank_0(ranks, callbacks)
    for each in callbacks:
        if isinstance(each, _WRITING):
            _act_on_rank_0(each, ranks)
        elif isinstance(each, keras.callbacks.BackupAndRestore):  # which all ranks read
            for method in ("_save_model", "on_train_end"):
                _take_part(each, method, ranks)
        if ranks.rank and getattr(each, "verbose", 0):
            each.verbose = 0
    return [_Bring(ranks), *callbacks, _Agree(ranks)]


def _as_rank_0(ranks: Ranks, callbacks: Sequence[Any]) -> list[Any]:
    """Callbacks, with stand-ins for those that rank 0 alone has, as scripts for Horovod give it those that write.

    Raises:
        SessionError: this rank has one that writes, and rank 0 has it not.
    """
    own = [each for each in callbacks if isinstance(each, _WRITING)]
    there = ranks.of_rank_0("a call with its callbacks", [(type(each).__name__, _parts(each)) for each in own])
    found = list(callbacks)
    if not ranks.rank:
        return found
    for name, methods in there:
        if own and type(own[0]).__name__ == name:
            own.pop(0)
            continue
        stand_in = keras.callbacks.Callback()
        for method in methods:
            _take_part(stand_in, method, ranks, _State(stand_in), name)
        found.insert(found.index(own[0]) if own else len(found), stand_in)
    if own:
        raise SessionError(
            f"{type(own[0]).__name__}: rank {ranks.rank} has this callback, and rank 0, which is the one that writes, "
            "has it not. Give callbacks on all ranks; of those that write rank 0 alone runs the methods."
        )
    return found


class _Bring(keras.callbacks.Callback):
    """Brings trained values to the script's variables before other callbacks read them."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._ranks.epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._ranks.sync()

    def on_predict_end(self, logs: Any = None) -> None:
        self._ranks.end("predict")

    def on_train_end(self, logs: Any = None) -> None:
        self._ranks.sync()


class _Agree(keras.callbacks.Callback):
    """Compares what other callbacks have decided."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._ranks.ends(epoch, self.model.stop_training)


def _parts(callback: Any) -> list[str]:
    """The methods of a callback in which all ranks take part: those that may read weights, and the script's own."""
    by_batch = getattr(callback, "save_freq", "epoch") != "epoch"
    return [
        method
        for method in _METHODS
        if (module := _where(callback, method).__module__) != keras.callbacks.Callback.__module__
        and (module.split(".")[0] != "keras" or method in _READ_AT or (by_batch and method == "on_train_batch_end"))
    ]


def _where(callback: Any, method: str) -> type:
    """The class that a callback has a method of."""
    return next(each for each in type(callback).__mro__ if method in vars(each))


def _act_on_rank_0(callback: Any, ranks: Ranks) -> None:
    """Makes rank 0 alone run a callback's methods; all ranks take part in some, and learn their outcome."""
    for method in _parts(callback):
        _take_part(callback, method, ranks, _State(callback))
    if ranks.rank:
        for method in _METHODS:
            if method not in vars(callback) and _where(callback, method) is not keras.callbacks.Callback:
                setattr(callback, method, lambda *args, **kwargs: None)
        for method in ("set_model", "set_params"):  # of which the first may write
            setattr(callback, method, functools.partial(getattr(keras.callbacks.Callback, method), callback))


def _take_part(callback: Any, method: str, ranks: Ranks, state: _State | None = None, name: str | None = None) -> None:
    """Makes rank 0 run a method; other ranks send what the method reads, and then receive the callback's state."""
    act: Callable[..., Any] = getattr(type(callback), method).__get__(callback)
    named = f"{name or type(callback).__name__}.{method} of the model"

    def call(*args: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs", args[-1] if args and isinstance(args[-1], dict) else None)
        tell = (lambda: None) if state is None else functools.partial(state.news, logs)
        what = f"{named} '{callback.model.name}'"
        told = ranks.write(what, functools.partial(act, *args, **kwargs), tell)
        if ranks.rank and told is not None and state is not None:
            state.hear(told, logs)

    setattr(callback, method, call)


class _State:
    """The plain values that a callback has, the logs that it was given, and whether it has stopped the training."""

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self._known: dict[str, bytes] = {}

    def news(self, logs: dict[str, Any] | None) -> tuple[dict[str, bytes], dict[str, Any] | None, bool]:
        """Returns the changes since the last call: the callback's attributes, the logs, and whether training stops."""
        plain = {name: value for name, value in vars(self._callback).items() if name not in _ALONE and _is_plain(value)}
        now = {name: pickle.dumps(value) for name, value in plain.items()}
        news = {name: value for name, value in now.items() if self._known.get(name) != value}
        self._known |= news
        return news, logs if _is_plain(logs) else None, self._callback.model.stop_training

    def hear(self, told: tuple[dict[str, bytes], dict[str, Any] | None, bool], logs: dict[str, Any] | None) -> None:
        """Takes over what another rank's :meth:`news` are."""
        news, logs_there, stopped = told
        for name, pickled in news.items():
            value, before = pickle.loads(pickled), getattr(self._callback, name, None)
            if isinstance(value, list | dict | set) and type(before) is type(value):  # which the script may have, too
                _refill(before, value)
            else:
                setattr(self._callback, name, value)
        if logs is not None and logs_there is not None:
            _refill(logs, logs_there)
        self._callback.model.stop_training = stopped


def _refill(there: Any, value: Any) -> None:
    there.clear()
    there.extend(value) if isinstance(there, list) else there.update(value)


def _is_plain(value: Any) -> bool:
    """Tells whether a value is plain data, and no object that others may share."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset | deque):
        return type(value) in (list, tuple, set, frozenset, deque) and all(map(_is_plain, value))
    return isinstance(value, _PLAIN) or (type(value) is np.ndarray and value.dtype != object)
