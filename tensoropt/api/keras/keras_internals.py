"""The hooks into private parts of Keras; no other module of this package uses them.

Tested with Keras 3.15. Keras's trainer calls ``make_train_function`` and its likes, which return a function that takes
an iterator and performs a step; the trainer keeps it as ``train_function``. On the one model, functions of tensoropt
replace these. Metrics and losses that the model was compiled with are built outside of the trace that builds them.
While ``fit`` and its likes run, ``TFEpochIterator`` reads datasets without tf.data's tuner.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.eager import context

from tensoropt.api.functions.lazy_variables import made_later
from tensoropt.api.untuned_data import untuned

__all__ = [
    "KINDS",
    "Ranks",
    "Trainable",
    "check_model",
    "compiled_as",
    "ends_of",
    "is_seeded",
    "model_of_keras",
    "replace_steps",
    "replace_trainer",
    "replace_writers",
    "step_of",
]

KINDS = ("train", "test", "predict")
_QUIET = ("fit", "evaluate", "predict")
_ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")
_SAVING = ("save", "save_weights", "export")
# What opens files for all models, also for functions that a script has imported before.
_WRITERS = (
    ("keras.src.saving.saving_lib", "save_model"),
    ("keras.src.saving.saving_lib", "save_weights_only"),
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"),
    ("keras.src.models.model", "Model.export"),
    ("keras.src.export.saved_model_export_archive", "SavedModelExportArchive.write_out"),
)
_Writes = Callable[[str, Iterable[Any], Callable[[], Any]], Any]
_writes: list[_Writes] = []  # the one that Keras's writers call, once they do


class Ranks(Protocol):
    """The part that one rank of several has in training a model; all members but ``rank`` are collective."""

    rank: int

    def sync(self) -> None:
        """Gives all variables their values."""

    def write(self, what: str, act: Callable[[], Any], tell: Callable[[], Any] = ...) -> Any:
        """Makes the first rank act, with all values at hand; afterwards other ranks get the result of its ``tell``."""

    def of_rank_0(self, what: str, value: Any) -> Any:
        """The value that the first rank has."""

    def epoch(self, epoch: int) -> None:
        """Begins an epoch."""

    def ends(self, epoch: int, stops: bool) -> None:
        """Ends an epoch; ``stops`` says whether training ends with it."""

    def end(self, kind: str) -> None:
        """Ends the data of a kind of steps."""

    def call(self, name: str) -> AbstractContextManager[None]:
        """A call of ``fit`` or its likes."""


def model_of_keras(model: Any) -> bool:
    """Tells whether an object is a model of Keras 3 on TensorFlow."""
    import keras

    return isinstance(model, keras.Model) and keras.backend.backend() == "tensorflow"


def check_model(model: Any) -> str | None:
    """Returns the reason why a model cannot be parallelized, with the remedy; None if it can."""
    if not model.compiled:
        return "it is not compiled. Call compile first"
    if model.run_eagerly:
        return "it runs eagerly, step by step. Compile it with run_eagerly=False"
    if not isinstance(model.distribute_strategy, type(tf.distribute.get_strategy())):
        return "it was made under a strategy of tf.distribute. Make it without"
    return None


def compiled_as(model: Any) -> Any:
    """Returns an object that identifies the last ``compile`` of a model."""
    return model._loss_tracker


@dataclass(frozen=True, slots=True)
class Trainable:
    """The layers and variables of a model that train."""

    parts: tuple[Any, ...]
    flags: tuple[bool, ...]

    @classmethod
    def of(cls, model: Any) -> Trainable:
        """Notes which layers and variables train now."""
        layers = list(model._flatten_layers())
        stores = [store for layer in layers for store in (layer._trainable_variables, layer._non_trainable_variables)]
        parts = (*layers, *(variable for store in stores for variable in store))
        return cls(parts, tuple(part._trainable for part in parts))

    @property
    def key(self) -> Hashable:
        """A key of the layers and variables that train, equal where these are equal."""
        return tuple(map(id, self.parts)), self.flags  # Keras's variables are compared by their values

    @contextlib.contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Restores, for the duration of the context, which layers trained at the time of the trace."""
        now = [part._trainable for part in self.parts]
        self._set(self.flags)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, flags: Iterable[bool]) -> None:
        for part, flag in zip(self.parts, flags, strict=True):
            part._trainable = flag


def ends_of(model: Any) -> tuple[Any, Any] | None:
    """The symbolic inputs and outputs of a model, in the structure of its data; None if it does not say them."""
    model = getattr(model, "_functional", None) or model  # of a Sequential
    ends = [getattr(model, f"_{name}_struct", None) for name in ("inputs", "outputs")]
    if any(end is None for end in ends):
        return None
    inputs, outputs = (end[0] if isinstance(end, list | tuple) and len(end) == 1 else end for end in ends)
    return inputs, outputs


def is_seeded() -> bool:
    """Tells whether the script has set TensorFlow's seed, by which Keras shuffles arrays."""
    return context.global_seed() is not None


def step_of(model: Any, kind: str) -> Callable[[Any], Any]:
    """A model's step of one batch, which a subclass may have overridden.

    Its optimizer is built, if all layers are: in a trace it would take the name that its operations then lack. Layers
    may make variables when they are first called, and what a step of the script's own trains, only the step knows:
    there the optimizer is built in the trace, as Keras builds it. Metrics and losses make their variables outside of
    the trace in which they are built, so that there need not be another trace without.
    """
    import keras

    optimizer = model.optimizer
    is_keras_own = type(model).train_step is keras.Model.train_step
    is_built = all(layer.built for layer in model._flatten_layers())
    if kind == "train" and is_keras_own and is_built and not getattr(optimizer, "built", True):
        with made_later(), keras.name_scope(optimizer.name, caller=optimizer):  # as Keras does
            optimizer.build(model.trainable_variables)
    for part in (model._compile_metrics, model._compile_loss):
        if part is not None and not part.built:
            part.build = _outside(part.build)
    step: Callable[[Any], Any] = getattr(model, f"{kind}_step")
    return step


def _outside(build: Callable[..., None]) -> Callable[..., None]:
    """Lifts what a function builds out of a trace that calls the function."""

    @functools.wraps(build)
    def call(*args: Any) -> None:
        with tf.init_scope(), made_later():
            build(*args)

    return call


def replace_steps(
    model: Any, begin: Callable[[str], None], run: Callable[[str, Any, Any], Any], end: Callable[[str], None]
) -> None:
    """Makes a model's trainer call the given functions for its steps.

    Args:
        model: the model.
        begin: gets a kind of steps; the trainer calls it where Keras makes a function of such steps, which Keras traces
            with the next batch.
        run: takes a step, given its kind, a batch, and what Keras traces the step for: the batch, or specs of all
            batches.
        end: gets the kind; the trainer calls it where there is no batch.
    """
    taken = ["train"]  # the kind of the last one

    def made(kind: str) -> Callable[..., Any]:
        def take(batches: Iterable[Any]) -> Any:
            taken[:] = [kind]
            outputs, missing = None, model.steps_per_execution
            specs = batches.element_spec if isinstance(batches, tf.data.Iterator) else None
            for _, batch in zip(range(missing), batches, strict=False):
                outputs = run(kind, batch, batch if specs is None else specs)
                missing -= 1
            if missing:
                end(kind)
            if outputs is None:
                raise StopIteration
            return outputs

        def predict(batches: Sequence[Any]) -> Any:
            outputs = [run(kind, batch, batch) for batch in batches]
            return (
                outputs[0] if len(outputs) == 1 else tf.nest.map_structure(lambda *each: tf.concat(each, 0), *outputs)
            )

        function = predict if kind == "predict" else take

        def make(force: bool = False) -> Any:
            if getattr(model, f"{kind}_function") is None or force:  # as after compile
                begin(kind)
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


def replace_writers(writes: _Writes) -> None:
    """Makes Keras's writers of model files call ``writes(name, variables, act)``, for any model; once a process.

    Writing into memory is not affected.
    """
    if _writes:
        return
    _writes.append(writes)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            act = functools.partial(original, model, filepath, *args, **kwargs)
            is_path = isinstance(filepath, str | os.PathLike)
            return writes(original.__name__, model.variables, act) if is_path else act()

        return call

    for module, path in _WRITERS:
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, name, wrap(getattr(owner, name)))


@contextlib.contextmanager
def _untuned_batches() -> Iterator[None]:
    """Makes Keras read datasets, its own of arrays too, without tf.data's tuner."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    original = TFEpochIterator._get_iterator
    TFEpochIterator._get_iterator = lambda batches: untuned(original(batches))
    try:
        yield
    finally:
        TFEpochIterator._get_iterator = original


def replace_trainer(model: Any, ranks: Ranks, callbacks: Callable[[Any], Any]) -> None:
    """Makes ``fit`` and its likes print and write on rank 0 alone, and end with trained values on all ranks alike.

    Args:
        model: the model.
        ranks: the ranks' common part in training.
        callbacks: returns the callbacks to run, given the script's.
    """

    def wrap(name: str) -> Callable[..., Any]:
        original = getattr(model, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in _QUIET:
                with ranks.call(name):
                    return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            if ranks.rank:
                bound.arguments["verbose"] = 0
            with ranks.call(name), _untuned_batches():
                bound.arguments["callbacks"] = callbacks(bound.arguments.get("callbacks"))
                return original(*bound.args, **bound.kwargs)

        return call

    def wrap_saving(name: str) -> Callable[..., None]:
        original = getattr(model, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> None:
            ranks.write(f"{name} of the model '{model.name}'", functools.partial(original, *args, **kwargs))

        return call

    for name in (*_QUIET, *_ON_BATCH):
        setattr(model, name, wrap(name))
    for name in _SAVING:
        setattr(model, name, wrap_saving(name))
