"""The kinds of data, weights and callbacks that ``fit`` takes, beside Keras alone in this process."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import tensoropt
from tensoropt.keras import parallelize
from tests.scripts.cases import case, core_case

_ROWS, _BATCH = 44, 8


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    x, y = random.normal(size=(_ROWS, 8)).astype(np.float32), random.integers(0, 4, _ROWS)
    return x, y, random.uniform(0.5, 2.0, _ROWS).astype(np.float32)


class _Batches(keras.utils.PyDataset):
    """Batches that are made when they are asked for, with weights of samples."""

    def __len__(self) -> int:
        return -(-_ROWS // _BATCH)

    def __getitem__(self, index: int) -> Any:
        return tuple(array[index * _BATCH :][:_BATCH] for array in _data())


def _generated() -> Iterator[Any]:
    while True:
        for index in range(_ROWS // _BATCH):
            yield tuple(array[index * _BATCH :][:_BATCH] for array in _data()[:2])


def _fitted(fit: Callable[[Any], Any], parallel: bool) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, activation="tanh"), layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    if parallel:
        parallelize(model, "data_parallel")
    return {**fit(model).history, "weights": np.concatenate([value.ravel() for value in model.get_weights()])}


def _compare(fit: Callable[[Any], Any]) -> None:
    expected, found = _fitted(fit, False), _fitted(fit, True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@core_case
def data_that_python_makes_is_taken() -> None:
    _compare(lambda model: model.fit(_Batches(), epochs=2, shuffle=False, verbose=0, validation_data=_Batches()))
    _compare(lambda model: model.fit(_generated(), steps_per_epoch=5, epochs=2, verbose=0))


@case
def weights_of_samples_and_classes_and_splits_for_validation_count() -> None:
    x, y, weights = _data()
    given = {"batch_size": _BATCH, "epochs": 2, "verbose": 0}
    _compare(lambda model: model.fit(x, y, sample_weight=weights, validation_split=0.25, **given))
    stop = {"monitor": "val_loss", "patience": 0, "min_delta": 10.0}
    _compare(
        lambda model: model.fit(
            x,
            y,
            class_weight={0: 2.0, 1: 0.5, 2: 1.0, 3: 1.0},
            validation_data=(x, y, weights),
            callbacks=[keras.callbacks.EarlyStopping(**stop), keras.callbacks.TerminateOnNaN()],
            **{**given, "epochs": 5},
        )
    )


@case
def logs_are_written_by_one_rank() -> None:
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [keras.callbacks.CSVLogger(str(Path(folder) / "log.csv"))]
        boards = importlib.util.find_spec("tensorboard") is not None
        if boards:
            callbacks.append(keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=2))
        x, y, _ = _data()
        _fitted(lambda model: model.fit(x, y, batch_size=_BATCH, verbose=0, callbacks=callbacks), True)
        writes = tensoropt.world_rank() == 0
        assert (Path(folder) / "log.csv").exists() == writes
        assert any(Path(folder).rglob("events*")) == (writes and boards)
