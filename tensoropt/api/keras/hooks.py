"""What of Keras is private and used here: nothing else of this package knows any of it.

Tested with Keras 3.15. Keras's trainer calls ``make_train_function`` and its likes, which give a function of an
iterator that takes a step, and keep it as ``train_function``. A model's own ones are put in their place, on the one
model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager import context

from tensoropt.api.functions.unmade import made_later

__all__ = [
    "KINDS",
    "Ranks",
    "check_model",
    "compiled_as",
    "ends_of",
    "is_seeded",
    "model_of_keras",
    "replace_steps",
    "replace_trainer",
    "step_of",
    "write_on_one_rank",
]

KINDS = ("train", "test", "predict")
_QUIET = ("fit", "evaluate", "predict")
_ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
# Callbacks that write files, by the attribute that says where; ranks but the first leave them out.
_WRITING = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "RemoteMonitor")
_WRITE_AT = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")  # where they may read weights
_SAVING = ("save", "save_weights", "export")


class Ranks(Protocol):
    """What the trainer of a model takes part in, as one rank of several; all but ``rank`` is collective."""

    rank: int

    def sync(self) -> None:
        """Gives all variables their values."""

    def write(self, what: str, act: Callable[[], Any]) -> None:
        """Has the first rank act, with all values at hand."""

    def epoch(self, epoch: int) -> None:
        """Is called where an epoch begins."""

    def end(self, kind: str) -> None:
        """Is called where data end."""

    def call(self, name: str) -> AbstractContextManager[None]:
        """A call of ``fit`` or its likes."""


def model_of_keras(model: Any) -> bool:
    """Whether something is a model of Keras 3 on TensorFlow."""
    import keras

    return isinstance(model, keras.Model) and keras.backend.backend() == "tensorflow"


def check_model(model: Any) -> str | None:
    """What keeps a model from being parallelized, if anything does, with the remedy."""
    if not model.compiled:
        return "it is not compiled. Call compile first"
    if model.run_eagerly:
        return "it runs eagerly, step by step. Compile it with run_eagerly=False"
    if not isinstance(model.distribute_strategy, type(tf.distribute.get_strategy())):
        return "it was made under a strategy of tf.distribute. Make it without"
    return None


def compiled_as(model: Any) -> tuple[Any, ...]:
    """What ``compile`` and ``trainable`` have made of a model: another one has other steps."""
    trainable = tuple(id(variable) for variable in model.trainable_variables)
    return model.optimizer, model._compile_loss, model._compile_metrics, trainable


def ends_of(model: Any) -> tuple[Any, Any] | None:
    """The symbolic inputs and outputs of a model, in the structure of its data; None if it does not say them."""
    model = getattr(model, "_functional", None) or model  # of a Sequential
    ends = [getattr(model, f"_{name}_struct", None) for name in ("inputs", "outputs")]
    if any(end is None for end in ends):
        return None
    inputs, outputs = (end[0] if isinstance(end, list | tuple) and len(end) == 1 else end for end in ends)
    return inputs, outputs


def is_seeded() -> bool:
    """Whether the script has set TensorFlow's seed, by which Keras shuffles arrays."""
    return context.global_seed() is not None


def step_of(model: Any, kind: str) -> Callable[[Any], Any]:
    """A model's step of one batch, which a subclass may have overridden.

    Its optimizer is built, if the model is: in a trace it would take the name that its operations then lack.
    """
    import keras

    optimizer = model.optimizer
    if kind == "train" and model.built and not getattr(optimizer, "built", True):
        with made_later(), keras.name_scope(optimizer.name, caller=optimizer):  # as Keras does
            optimizer.build(model.trainable_variables)
    step: Callable[[Any], Any] = getattr(model, f"{kind}_step")
    return step


def replace_steps(
    model: Any, begin: Callable[[], None], run: Callable[[str, Any], Any], end: Callable[[str], None]
) -> None:
    """Has a model's trainer call ``begin`` before steps, ``run(kind, batch)`` as one, ``end(kind)`` without a batch."""
    taken = ["train"]  # the kind of the last one

    def made(kind: str) -> Callable[..., Any]:
        def take(batches: Iterable[Any]) -> Any:
            taken[:] = [kind]
            outputs, missing = None, model.steps_per_execution
            for _, batch in zip(range(missing), batches, strict=False):
                outputs = run(kind, batch)
                missing -= 1
            if missing:
                end(kind)
            if outputs is None:
                raise StopIteration
            return outputs

        def predict(batches: Sequence[Any]) -> Any:
            outputs = [run(kind, batch) for batch in batches]
            return (
                outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *each: tf.concat(each, 0), *outputs)
            )

        function = predict if kind == "predict" else take

        def make(force: bool = False) -> Any:
            begin()
            setattr(model, f"{kind}_function", function)
            return function

        return make

    for kind in KINDS:
        setattr(model, f"make_{kind}_function", made(kind))
        setattr(model, f"{kind}_function", None)
    results = model._get_metrics_result_or_logs  # which fit and evaluate call after their last batch

    def results_at_the_end(logs: Any) -> Any:
        end(taken[-1])
        return results(logs)

    model._get_metrics_result_or_logs = results_at_the_end


def replace_trainer(model: Any, ranks: Ranks) -> None:
    """Has ``fit`` and its likes speak and write on rank 0 alone, and end alike everywhere, with trained values.

    Args:
        model: the model.
        ranks: what they take part in.
    """

    def wrap(name: str) -> Callable[..., Any]:
        original = getattr(model, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in _QUIET:
                with ranks.call(name):
                    return original(*args, **kwargs)
            # Validation in fit has the callbacks that fit has made.
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments.get("callbacks")
            if not hasattr(given, "callbacks"):
                if ranks.rank:
                    bound.arguments["verbose"] = 0
                with ranks.call(name):
                    bound.arguments["callbacks"] = write_on_one_rank(given, ranks)
            with ranks.call(name):
                return original(*bound.args, **bound.kwargs)

        return call

    def wrap_saving(name: str) -> Callable[..., None]:
        original = getattr(model, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> None:
            ranks.write(name, functools.partial(original, *args, **kwargs))

        return call

    for name in (*_QUIET, *_ON_BATCH):
        setattr(model, name, wrap(name))
    for name in _SAVING:
        setattr(model, name, wrap_saving(name))


def write_on_one_rank(callbacks: Any, ranks: Ranks) -> list[Any]:
    """Callbacks of which those that write files act on rank 0 alone, for which all ranks bring the values there."""
    import keras

    class Bring(keras.callbacks.Callback):
        """Brings trained values to the script's variables before other callbacks read them."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            ranks.epoch(epoch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ranks.sync()

        def on_predict_end(self, logs: Any = None) -> None:
            ranks.end("predict")

        def on_train_end(self, logs: Any = None) -> None:
            ranks.sync()

    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    writing = tuple(getattr(keras.callbacks, name) for name in _WRITING)
    kept = []
    for each in given:
        if isinstance(each, writing):
            by_batch = getattr(each, "save_freq", "epoch") != "epoch"
            places = [*_WRITE_AT, *(["on_train_batch_end"] if by_batch else [])]
            each = _on_rank_0(each, [place for place in places if _overrides(each, place)], ranks)
        elif isinstance(each, keras.callbacks.BackupAndRestore):  # all ranks read
            each = _on_rank_0(each, ["_save_model"], ranks, all_act=True)
            each.delete_checkpoint = each.delete_checkpoint and not ranks.rank
        if ranks.rank and getattr(each, "verbose", 0):
            each.verbose = 0
        kept.append(each)
    return [Bring(), *kept]


def _overrides(callback: Any, method: str) -> bool:
    import keras

    return getattr(type(callback), method) is not getattr(keras.callbacks.Callback, method)


def _on_rank_0(callback: Any, methods: Sequence[str], ranks: Ranks, *, all_act: bool = False) -> Any:
    """A callback some of whose methods rank 0 runs alone, while other ranks take part in what it reads.

    Args:
        callback: the script's.
        methods: their names.
        ranks: what they take part in.
        all_act: whether other ranks act, too, in its other methods.
    """
    import keras

    taken = callback if all_act or not ranks.rank else keras.callbacks.Callback()
    for method in methods:
        original = getattr(type(callback), method).__get__(callback)

        def call(*args: Any, original: Any = original, method: str = method, **kwargs: Any) -> None:
            ranks.write(f"{type(callback).__name__}.{method}", functools.partial(original, *args, **kwargs))

        setattr(taken, method, call)
    return taken
