"""Keras models that fail on the last rank alone: all ranks hear of it, and go on together afterwards."""

from __future__ import annotations

import functools
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tensoropt
from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.keras import parallelize
from tests.scripts.cases import case, core_case
from tests.scripts.misuse import guilty

_ROWS, _BATCH = 64, 16
# Ranks that run one program, and ranks that have different layers.
_PLANS: dict[str, dict[str, Any]] = {
    "copies": {"option": "data_parallel"},
    "stages": {"option": "mini_time", "search": "pipeline", "micro_batches": 2},
}
_made: dict[str, Any] = {}
_current = "copies"


def _model() -> Any:
    """One small model by each plan, which takes up again after each fault."""
    if _current not in _made:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(8, "tanh"), layers.Dense(8, "tanh"), layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        _made[_current] = parallelize(model, **_PLANS[_current])
    return _made[_current]


def by_each_plan(run: Callable[[], None]) -> Callable[[], None]:
    """Runs a case on each of the models."""

    @functools.wraps(run)
    def on_all() -> None:
        global _current
        for _current in _PLANS:
            run()

    return on_all


def _data(width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(_ROWS, width)).astype(np.float32), random.integers(0, 4, _ROWS)


def _fit(data: Any = None, **arguments: Any) -> Any:
    x, y = data if isinstance(data, tuple) else (data, None) if data is not None else _data()
    return _model().fit(x, y, **{"batch_size": _BATCH if y is not None else None, "verbose": 0, **arguments})


def _fails(run: Callable[[], Any], *words: str, own: type[BaseException] = CollectiveError) -> None:
    """Runs what must fail on all ranks: with its own error on the guilty one, with what it hears of it on others."""
    try:
        run()
    except BaseException as error:
        assert isinstance(error, own if guilty() else CollectiveError), repr(error)
        missing = [word for word in words if word not in str(error)]
        assert not missing or (isinstance(error, own) and own is not CollectiveError), (missing, str(error))
    else:
        raise AssertionError("did not fail")
    assert np.isfinite(_fit().history["loss"]).all()


class _Third(keras.callbacks.Callback):
    """Does something on the guilty rank after the third batch."""

    def __init__(self, do: Callable[[Any], None]) -> None:
        super().__init__()
        self._do = do

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and guilty():
            self._do(self.model)


def _last() -> str:
    return f"rank {tensoropt.world_size() - 1}"


@core_case
@by_each_plan
def callback_that_fails_on_one_rank_ends_fit_on_all() -> None:
    def fail(model: Any) -> None:
        raise ValueError("this callback is wrong")

    _fails(lambda: _fit(callbacks=[_Third(fail)]), _last(), "fit", "this callback is wrong", own=ValueError)


@case
@by_each_plan
def interrupt_of_one_rank_ends_fit_on_all() -> None:
    def interrupt(model: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    _fails(lambda: _fit(callbacks=[_Third(interrupt)], epochs=3), _last(), "Interrupt", own=KeyboardInterrupt)


@case
@by_each_plan
def callback_that_stops_one_rank_is_named() -> None:
    def stop(model: Any) -> None:
        model.stop_training = True

    _fails(lambda: _fit(callbacks=[_Third(stop)]), f"the data of {_last()} ended after 3 batches", "stop all or none")


@case
@by_each_plan
def callback_that_stops_one_rank_after_an_epoch_is_named() -> None:
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=100.0)
    words = (f"the end on {_last()}", "another epoch on rank", "after epoch 2", "EarlyStopping, to all ranks")
    _fails(lambda: _fit(epochs=3, callbacks=[stop] if guilty() else []), *words)

    class Last(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = guilty() and batch == _ROWS // _BATCH - 1

    _fails(lambda: _fit(epochs=2, callbacks=[Last()]), "after epoch 1, or none")


@case
@by_each_plan
def one_rank_that_assigns_alone_is_named() -> None:
    class Slower(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and guilty():
                self.model.optimizer.learning_rate = 0.001

    try:
        _fit(epochs=2, callbacks=[Slower()])
    except CollectiveError as error:
        assert "learning_rate" in str(error) and f"assigned on {_last()}" in str(error), error
    else:
        raise AssertionError("did not fail")
    _model().optimizer.learning_rate = 0.01  # by all
    assert np.isfinite(_fit().history["loss"]).all()


@case
@by_each_plan
def data_that_end_early_on_one_rank_are_named() -> None:
    def batches(count: int) -> Iterator[Any]:
        x, y = _data()
        for number in range(count):
            if number == 3 and count == 4:
                raise OSError("the disk is gone")
            yield x[:_BATCH], y[:_BATCH]

    short = f"the data of {_last()} ended after 2 batches"
    whole = tf.data.Dataset.from_tensor_slices(_data()).batch(_BATCH)
    _fails(lambda: _fit(whole.take(2) if guilty() else whole), "a batch to train by", short)
    _fails(lambda: _fit(batches(2 if guilty() else 3)), short)
    _fails(lambda: _fit(batches(4 if guilty() else 6)), "the disk is gone", own=Exception)
    rows = _ROWS // 2 if guilty() else _ROWS
    part = tuple(array[:rows] for array in _data())
    _fails(lambda: _fit(validation_data=part), "a batch to evaluate", short)
    _fails(lambda: _model().predict(part[0], batch_size=_BATCH, verbose=0), "a batch to predict", short)


@case
@by_each_plan
def data_of_other_shapes_on_one_rank_are_named() -> None:
    wide = _data(width=8 + 8 * guilty())
    _fails(lambda: _fit(wide), "'x' must have one shape", f"(16, 16) on {_last()}")
    _fails(lambda: _fit(batch_size=_BATCH // (1 + guilty())), "'x' must have", f"(8, 8) on {_last()}")


@case
def collectives_in_no_common_order_are_found_before_they_run() -> None:
    """The guilty rank says that it runs the collectives of its stage backwards."""
    right = CollectiveEngine.emitted

    def backwards(self: CollectiveEngine, graph: tf.Graph) -> tuple[str, ...]:
        return right(self, graph)[::-1]

    global _current
    _current = "stages"
    _made.pop(_current, None)
    if guilty():
        CollectiveEngine.emitted = backwards  # type: ignore[method-assign]
    try:
        _fit()
    except CollectiveError as error:
        wanted = r"in no order that all ranks can keep\. Rank 0 is at: .*; rank 1 is at: "
        assert re.search(wanted, str(error)), error
    else:
        raise AssertionError("did not fail")
    finally:
        CollectiveEngine.emitted = right  # type: ignore[method-assign]
        _made.pop(_current)


@case
def training_that_was_interrupted_goes_on_from_its_backup() -> None:
    """The folder is shared; rank 0 writes it, and all read it."""

    def trained(until: int | None, folder: str) -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        parallelize(model, "data_parallel")

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == until:
                    raise InterruptedError

        backup = keras.callbacks.BackupAndRestore(folder)
        x, y = _data()
        try:
            found = model.fit(x, y, batch_size=_BATCH, epochs=4, verbose=0, shuffle=False, callbacks=[backup, Stop()])
        except InterruptedError:
            return []
        return [float(loss) for loss in found.history["loss"]]

    from mpi4py import MPI

    with tempfile.TemporaryDirectory() as own:
        folder = MPI.COMM_WORLD.bcast(own)
        whole = trained(None, str(Path(folder) / "whole"))
        assert trained(2, str(Path(folder) / "parts")) == []
        rest = trained(None, str(Path(folder) / "parts"))
        np.testing.assert_allclose(rest, whole[2:], rtol=1e-5)
        assert MPI.COMM_WORLD.bcast(not (Path(folder) / "parts").exists())  # rank 0 has removed it
