"""Files that Keras writes of what a parallel model trains: by rank 0, once; and callbacks' state, on all ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.saving import save_model, save_weights  # before anything is parallel

import tensoropt
from tensoropt.errors import CollectiveError, SessionError
from tensoropt.keras import parallelize
from tests.effort import EVERY_CASE
from tests.scripts.cases import case, core_case

_ROWS = 32


@keras.saving.register_keras_serializable()
class Counted(layers.Dense):
    """A layer that counts how often this rank writes it."""

    written = 0

    def save_own_variables(self, store: Any) -> None:
        Counted.written += 1
        super().save_own_variables(store)


def _folder() -> Path:
    from mpi4py import MPI

    return Path(MPI.COMM_WORLD.bcast(tempfile.mkdtemp()))


def _alike(value: Any) -> Any:
    from mpi4py import MPI

    found = MPI.COMM_WORLD.allgather(value)
    assert all(each == found[0] for each in found), found
    return value


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(_ROWS, 8)).astype(np.float32), random.normal(size=(_ROWS, 1)).astype(np.float32)


def _model(option: str | None = "data_parallel") -> tuple[Any, Any]:
    """A model, and a part of it that is a model."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    part = keras.Sequential([keras.Input((8,)), Counted(4, activation="tanh")])
    model = keras.Sequential([part, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model if option is None else parallelize(model, option), part


def _fit(model: Any, callbacks: Any, **arguments: Any) -> dict[str, list[float]]:
    x, y = _data()
    history = model.fit(x, y, epochs=4, batch_size=8, verbose=0, callbacks=callbacks, **arguments)
    return {name: [round(float(value), 4) for value in values] for name, values in history.history.items()}


class _Best(keras.callbacks.ModelCheckpoint):
    """Keeps state of its own, of batches too, and stops."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), monitor="loss", save_best_only=True)
        self.bests: list[float] = []
        self.batches = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        assert self.best is not None
        self.bests.append(round(float(self.best), 4))
        self.model.stop_training = len(self.bests) == 3


class _Columns(keras.callbacks.CSVLogger):
    """Adds to the logs."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = float(self.model.optimizer.learning_rate)
        super().on_epoch_end(epoch, logs)


def _same(does: Callable[[str | None], Any]) -> None:
    """What a run gives is the same on all ranks, and as by Keras alone."""
    expected = does(None)
    for option in ("data_parallel", "mini_memory") if EVERY_CASE else ("mini_memory",):
        found = _alike(does(option))
        for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            assert one == other or abs(one - other) < 2e-3, (option, found, expected)


@core_case
def callbacks_that_write_have_their_state_on_all_ranks() -> None:
    def does(option: str | None) -> Any:
        folder = _folder() if option else Path(tempfile.mkdtemp())
        model, _ = _model(option)
        best, columns = _Best(folder / "new" / "best.keras"), _Columns(str(folder / "log.csv"))
        often = keras.callbacks.ModelCheckpoint(str(folder / "often.weights.h5"), save_weights_only=True, save_freq=3)
        seen = best.bests  # the script's own name for it
        history = _fit(model, [best, [columns, often]])
        kept = keras.callbacks.ModelCheckpoint(str(folder / "kept.keras"), monitor="val_loss", save_best_only=True)
        history |= _fit(model, kept, validation_data=_data())
        state = [seen, best.batches, columns.keys, often._batches_seen_since_last_saving, round(float(kept.best), 4)]
        return history, state, sorted(path.name for path in folder.iterdir())

    _same(does)


@case
def callbacks_that_keep_state_have_it_on_all_ranks() -> None:
    class Own(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.norms: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.norms.append(round(float(np.abs(self.model.get_weights()[0]).sum()), 3))

    def does(option: str | None) -> Any:
        model, _ = _model(option)
        losses: list[float] = []
        rates = keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=1.0, patience=1)
        stop = keras.callbacks.EarlyStopping(
            monitor="loss", patience=0, baseline=0.9, min_delta=0.5, restore_best_weights=True
        )
        each = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(round(logs["loss"], 4)))
        own = Own()
        history = _fit(model, keras.callbacks.CallbackList([rates, stop, each, own], add_history=True, model=model))
        state = [rates.cooldown_counter, rates.wait, stop.stopped_epoch, stop.best_epoch, round(float(stop.best), 4)]
        return history, state, losses, own.norms, round(float(np.abs(model.get_weights()[0]).sum()), 3)

    _same(does)


@case
def files_of_functions_and_of_parts_are_written_once() -> None:
    for option in ("data_parallel", "mini_memory"):
        _write_by_all(option)


def _write_by_all(option: str) -> None:
    folder = _folder()
    model, part = _model(option)
    Counted.written = 0
    part.save(folder / "before.keras")  # its variables are of a model that is parallel
    _fit(model, None)
    whole = keras.Model(part.inputs, part.outputs)  # a model of its own, of the same variables
    saves: dict[str, Callable[[str], Any]] = {
        "function.keras": lambda path: save_model(model, path),
        "models.keras": lambda path: keras.models.save_model(model, path),
        "function.weights.h5": lambda path: save_weights(model, path),
        "part.keras": part.save,
        "part.weights.h5": part.save_weights,
        "whole.h5": whole.save,
        "on_rank_0.keras": lambda path: tensoropt.on_rank_0(lambda: model.save(path)),
    }
    for name, save in saves.items():
        save(str(folder / name))
    assert Counted.written >= len(saves) if tensoropt.world_rank() == 0 else Counted.written == 0
    for name in saves:
        if name.endswith(".weights.h5"):
            read, read_part = _model(None)
            (read if name.startswith("function") else read_part).load_weights(folder / name)
            first = read_part.get_weights()[0]
        else:
            first = keras.models.load_model(folder / name, {"Counted": Counted}).get_weights()[0]
        np.testing.assert_array_equal(first, part.get_weights()[0], err_msg=name)


@case
def exports_of_models_and_of_parts_are_written_once() -> None:
    own = Path(tempfile.mkdtemp())  # which others do not know
    model, part = _model()
    _fit(model, None)
    model.export(own / "model", verbose=False)
    part.export(str(own / "part"), verbose=False)
    archive = keras.export.ExportArchive()
    archive.track(part)
    archive.add_endpoint("serve", part.call, [keras.InputSpec("float32", (None, 8))])
    archive.write_out(str(own / "archive"), verbose=False)
    names = sorted(path.name for path in own.iterdir())
    assert names == (["archive", "model", "part"] if tensoropt.world_rank() == 0 else []), names
    x, _ = _data()
    hidden = np.tanh(x @ part.get_weights()[0] + part.get_weights()[1])
    for name in {"archive", "part"}.intersection(names):
        read = tf.saved_model.load(str(own / name))
        np.testing.assert_allclose(read.serve(x), hidden, rtol=1e-5, atol=1e-6)


@case
def callbacks_may_call_functions_that_write() -> None:
    folder = _folder()
    model, part = _model("mini_memory")
    Counted.written = 0

    class Both(keras.callbacks.ModelCheckpoint):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            super().on_epoch_end(epoch, logs)
            save_model(part, folder / "in_checkpoint.keras")

    each = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: save_model(model, folder / f"{epoch}.keras"))
    _fit(model, [each, Both(str(folder / "own.keras"), monitor="loss")])
    assert Counted.written == (12 if tensoropt.world_rank() == 0 else 0), Counted.written
    assert len(list(folder.iterdir())) == 6
    for name in ("3.keras", "own.keras", "in_checkpoint.keras"):
        read = keras.models.load_model(folder / name)
        np.testing.assert_array_equal(read.get_weights()[0], part.get_weights()[0])


@case
def callbacks_that_write_may_be_on_rank_0_alone() -> None:
    """As scripts for Horovod have them, among others and with state of their own."""
    folder = _folder()
    first = tensoropt.world_rank() == 0
    model, _ = _model("mini_memory")
    best, rates = _Best(folder / "best.keras"), keras.callbacks.ReduceLROnPlateau(monitor="loss")
    columns = _Columns(str(folder / "log.csv"))
    often = keras.callbacks.ModelCheckpoint(str(folder / "often.keras"), save_freq=2)
    history = _alike(_fit(model, [best, often, rates, columns] if first else [rates, columns]))
    assert len(history["loss"]) == 3 and "rate" in history  # it has stopped all, and the logs are told
    _alike(_fit(model, [rates, often] if first else rates))
    assert {path.name for path in folder.iterdir()} == {"best.keras", "often.keras", "log.csv"}
    try:
        _fit(model, [] if first else [columns])
    except (SessionError, CollectiveError) as error:
        assert "has this callback, and rank 0, which is the one" in str(error), error
    else:
        raise AssertionError("was taken")


@case
def what_rank_0_does_alone_takes_no_steps() -> None:
    class Evaluates(keras.callbacks.CSVLogger):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.evaluate(*_data(), verbose=0)

    model, _ = _model()
    try:
        _fit(model, Evaluates(str(_folder() / "log.csv")))
    except (SessionError, CollectiveError) as error:
        assert isinstance(error, SessionError) == (tensoropt.world_rank() == 0), repr(error)
        assert "evaluate: needs all ranks" in str(error) and "keras.callbacks.Callback itself" in str(error), error
    else:
        raise AssertionError("was evaluated")
    assert len(_alike(_fit(model, None)["loss"])) == 4


@case
def other_models_are_left_to_the_script() -> None:
    _model()
    other = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    path = _folder() / "other.keras"
    if tensoropt.world_rank() == tensoropt.world_size() - 1:
        other.save(path)
        assert path.exists()
