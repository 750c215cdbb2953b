"""``trainable`` that is changed after ``compile``: it counts where Keras traces a step, beside Keras alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from tensoropt.keras import parallelize
from tests.scripts.cases import case, core_case

_ROWS = 32
_Does = Callable[[Any, Any, Any], list[Any]]  # with a model and its data; gives what is compared


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(_ROWS, 8)).astype(np.float32), random.normal(size=(_ROWS, 1)).astype(np.float32)


def _nested(trains: bool) -> Any:
    base = keras.Sequential([keras.Input((8,)), layers.Dense(4, activation="tanh", kernel_regularizer="l2")])
    base.trainable = trains
    model = keras.Sequential([base, layers.BatchNormalization(), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def _same(does: _Does, trains: bool) -> None:
    """What is done with a model of which a part trains, or not, when it is compiled; all weights are compared, too."""
    found = []
    for parallel in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model = _nested(trains)
        if parallel:
            parallelize(model, "data_parallel")
        found.append([*does(model, *_data()), *model.get_weights()])
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6, err_msg=str(number))


def _fit(model: Any, x: Any, y: Any, **arguments: Any) -> list[float]:
    history = model.fit(x, y, **{"epochs": 2, "batch_size": 16, "verbose": 0, **arguments})
    return [float(loss) for loss in history.history["loss"]]


@case
def what_is_set_between_fits_waits_for_compile() -> None:
    def thaw(model: Any, x: Any, y: Any) -> list[Any]:
        base, found = model.layers[0], _fit(model, x, y)
        before = base.get_weights()[0]
        base.trainable = True
        found += [*_fit(model, x, y), *model.evaluate(x, y, verbose=0, batch_size=16, return_dict=True).values()]
        np.testing.assert_array_equal(base.get_weights()[0], before)
        assert base.trainable and base.layers[0].kernel.trainable
        model.compile(keras.optimizers.Adam(0.01), "mse")
        found += _fit(model, x, y)
        assert np.abs(base.get_weights()[0] - before).max() > 1e-3
        return found

    _same(thaw, trains=False)

    def freeze(model: Any, x: Any, y: Any) -> list[Any]:
        found = _fit(model, x, y)
        model.layers[0].trainable = model.layers[1].trainable = False  # moving averages of the second go on
        return [*found, *_fit(model, x, y), model.evaluate(x, y, verbose=0)]

    _same(freeze, trains=True)


@case
def what_is_set_before_the_first_batch_counts() -> None:
    class Freeze(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.model.layers[1].trainable = False

    def does(model: Any, x: Any, y: Any) -> list[Any]:
        model.layers[0].trainable = False
        found = _fit(model, x, y, callbacks=[Freeze()])
        assert not model.layers[1].get_weights()[2].any()  # the moving average has not moved
        return found

    _same(does, trains=True)


@core_case
def what_callbacks_set_waits_for_compile() -> None:
    class Freeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].trainable = epoch % 2 == 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.layers[1].trainable = False

    def does(model: Any, x: Any, y: Any) -> list[Any]:
        return _fit(model, x, y, epochs=4, validation_data=(x, y), callbacks=[Freeze()])

    _same(does, trains=True)


@case
def what_is_set_counts_for_batches_that_keras_traces_anew() -> None:
    """Other sizes of batches, sample weights, and a function that is made by force."""

    def does(model: Any, x: Any, y: Any) -> list[Any]:
        base = model.layers[0]
        found = [model.train_on_batch(x, y) for _ in range(2)]
        base.trainable = False
        found.append(model.train_on_batch(x, y))
        before = base.get_weights()[0]
        found.append(model.train_on_batch(x[:9], y[:9]))
        found += _fit(model, x, y, batch_size=8, sample_weight=np.ones(_ROWS))
        np.testing.assert_array_equal(base.get_weights()[0], before)
        found += [model.train_on_batch(x, y), model.train_on_batch(x[:5], y[:5])]
        moved = base.get_weights()[0]
        assert np.abs(moved - before).max() > 1e-3  # by the trace of before
        model.make_train_function(force=True)
        found += [*_fit(model, x, y), model.train_on_batch(x, y)]
        np.testing.assert_array_equal(base.get_weights()[0], moved)
        return found

    _same(does, trains=True)


@case
def evaluation_is_as_it_was_traced_in_each_program() -> None:
    """A regularizer of what does not train adds nothing to the loss."""

    def does(model: Any, x: Any, y: Any) -> list[Any]:
        found = [model.evaluate(x, y, verbose=0)]  # by a program of its own
        model.layers[0].trainable = False
        found += [model.evaluate(x, y, verbose=0), *_fit(model, x, y), model.evaluate(x, y, verbose=0)]
        found.append(model.test_on_batch(x[:7], y[:7]))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return [*found, model.evaluate(x, y, verbose=0), *model.predict(x, verbose=0)]

    _same(does, trains=True)


@case
def what_the_optimizer_does_not_know_is_keras_own_error() -> None:
    keras.utils.set_random_seed(0)
    for parallel in (False, True):
        model = _nested(trains=False)
        if parallel:
            parallelize(model, "data_parallel")
        x, y = _data()
        model.train_on_batch(x, y)
        model.layers[0].trainable = True
        try:
            model.train_on_batch(x[:8], y[:8])
        except ValueError as error:
            assert "Unknown variable" in str(error) or "unknown variable" in str(error).lower(), error
        else:
            raise AssertionError("was trained")
        model.train_on_batch(x, y)
