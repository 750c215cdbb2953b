"""Keras models by ``tensoropt.keras.parallelize``, beside the same models by Keras alone in this process."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tensoropt
from tensoropt.errors import SessionError
from tensoropt.keras import parallelize
from tests.effort import THOROUGH
from tests.scripts.cases import case, core_case

Made = tuple[Any, Any, np.ndarray]
_ROWS = 43  # no number of ranks divides it, nor does a batch
_CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _random() -> np.random.Generator:
    return np.random.default_rng(3)


def _labels() -> np.ndarray:
    return _random().integers(0, 4, _ROWS)


def _tokens() -> np.ndarray:
    return _random().integers(0, 20, (_ROWS, 6)).astype(np.int32)


def mlp() -> Made:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, activation="relu"), layers.Dropout(0.2), layers.Dense(4)]
    )
    model.compile(keras.optimizers.Adam(0.01), _CLASSES, metrics=["accuracy"])
    return model, _random().normal(size=(_ROWS, 8)).astype(np.float32), _labels()


def cnn(bias: bool = False) -> Made:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, use_bias=bias),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.AdamW(0.01, clipnorm=0.5), _CLASSES, metrics=["accuracy"])
    return model, _random().normal(size=(_ROWS, 8, 8, 1)).astype(np.float32), _labels()


def transformer() -> Made:
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 16)(tokens)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 8)(hidden, hidden))
    hidden = hidden + layers.Dense(16)(layers.Dense(32, activation="gelu")(hidden))
    model = keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.5), _CLASSES, metrics=["accuracy"])
    return model, _tokens(), _labels()


def lstm() -> Made:
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(20, 16, mask_zero=True),
            layers.LSTM(16, dropout=0.2, recurrent_dropout=0.2),
            layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), _CLASSES, metrics=["accuracy"])
    return model, _tokens(), _labels()


def _synchronized() -> Made:
    model = keras.Sequential([keras.Input((8,)), layers.BatchNormalization(synchronized=True), layers.Dense(4)])
    model.compile("adam", _CLASSES)
    return model, _random().normal(size=(_ROWS, 8)).astype(np.float32), _labels()


def _groups() -> Made:
    model = keras.Sequential(
        [keras.Input((8, 8, 4)), layers.Conv2D(8, 3, groups=2, use_bias=False), layers.Flatten(), layers.Dense(4)]
    )
    model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), _CLASSES, metrics=["accuracy"])
    return model, _random().normal(size=(_ROWS, 8, 8, 4)).astype(np.float32), _labels()


def _volumes() -> Made:
    model = keras.Sequential(
        [
            keras.Input((4, 4, 4, 4)),
            layers.Conv3D(6, 3, groups=2, activation="relu"),
            layers.Conv3D(4, 2, padding="same", groups=2),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), _CLASSES)
    return model, _random().normal(size=(_ROWS, 4, 4, 4, 4)).astype(np.float32), _labels()


class _Gate(layers.Layer):
    """A layer whose variables are made when it is first called, which Keras need not do to know its shapes."""

    def build(self, shape: Any) -> None:
        self.dense = layers.Dense(8)

    def call(self, x: Any) -> Any:
        return x * keras.ops.sigmoid(self.dense(x))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def _built_late() -> Made:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8), _Gate(), layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), _CLASSES)
    return model, _random().normal(size=(_ROWS, 8)).astype(np.float32), _labels()


def _eight_bits() -> Made:
    """Gradient functions that give back tensors of their closures: scales, which the optimizer puts in their place."""
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="relu"), layers.Dense(4)])
    model.quantize("float8")
    model.compile("adam", _CLASSES)
    return model, _random().normal(size=(_ROWS, 8)).astype(np.float32), _labels()


def recommender() -> Made:
    """Users and items by rows of tables, with ages of users and tags of items, whose number Keras caps as it runs."""
    user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int32", name="item")
    age, tags = keras.Input((1,), name="age"), keras.Input((3,), dtype="int32", name="tags")
    ages = layers.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")(age)
    several = [layers.CategoryEncoding(9, mode)(tags) for mode in ("multi_hot", "count")]
    towers = [
        layers.Dense(8)(layers.Concatenate()([layers.Embedding(rows, 16)(x), *own]))
        for rows, x, own in ((50, user, [ages]), (40, item, several))
    ]
    model = keras.Model([user, item, age, tags], layers.Dot(1)(towers))
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    random = _random()
    pairs = [random.integers(0, rows, _ROWS).astype(np.int32) for rows in (50, 40)]
    own = [random.normal(size=(_ROWS, 1)).astype(np.float32), random.integers(0, 9, (_ROWS, 3)).astype(np.int32)]
    return model, [*pairs, *own], random.normal(size=_ROWS).astype(np.float32)


def transcriber() -> Made:
    """CTC's loss, whose loops are functions of TensorFlow 1 that call others."""
    model = keras.Sequential([keras.Input((8, 4)), layers.Dense(16, activation="relu"), layers.Dense(6)])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.CTC())
    random = _random()
    return model, random.normal(size=(_ROWS, 8, 4)).astype(np.float32), random.integers(1, 6, (_ROWS, 3))


def trained(make: Callable[[], Made], option: str | None, scale: float = 1.0, batch: int = 16) -> dict[str, Any]:
    """What Keras's methods give; ``batch`` rows are evaluated and predicted at once."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model, x, y = make()
    model.jit_compile = False  # XLA's products of float32 have fewer bits on graphics cards
    x = x * np.float32(scale) if scale != 1.0 else x
    if option is not None:
        assert parallelize(model, option) is model and model.tensoropt_plan is None
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y), callbacks=[rates])
    result = {name: np.asarray(values) for name, values in history.history.items()}
    # Each size is a program of its own: other ones than those of `fit` are for one model.
    result["evaluated"] = np.asarray(model.evaluate(x, y, verbose=0, batch_size=batch))
    result["predicted"] = model.predict(x, verbose=0, batch_size=batch)
    if batch != 16:
        result["on_batch"] = np.asarray(model.train_on_batch(x, y))
    result |= {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    result["steps"] = np.asarray(model.optimizer.iterations)
    if option is not None:
        assert model.tensoropt_plan.option == option and model.tensoropt_plan.mesh.size == tensoropt.world_size()
    return result


def _like_keras_alone(figures: Callable[[bool], list[float]], *, atol: float = 0.0) -> None:
    """Checks that a parallel model has the figures of the model alone, both from the same seed."""
    found = []
    for parallel in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        found.append(figures(parallel))
    np.testing.assert_allclose(found[1], found[0], rtol=2e-5, atol=atol)


def _compare(make: Callable[[], Made], *options: str, batch: int = 16) -> None:
    expected = trained(make, None, batch=batch)
    for option in options:
        found = trained(make, option, batch=batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=f"{option}: {name}")


@core_case
def mlp_with_dropout_has_the_history_of_keras_alone() -> None:
    _compare(mlp, "mini_time", batch=32)


@case
def ctc_loss_has_the_history_of_keras_alone() -> None:
    _compare(transcriber, "mini_memory", "data_parallel")


@case
def convolutions_and_batch_norm_have_the_history_of_keras_alone() -> None:
    _compare(cnn, "mini_memory")


@core_case
def transformer_has_the_history_of_keras_alone() -> None:
    _compare(transformer, *(("data_parallel", "mini_memory") if THOROUGH else ("mini_memory",)))


@case
def lstm_has_the_history_of_keras_alone() -> None:
    _compare(lstm, "data_parallel")


@case
def synchronized_batch_norm_whose_gradient_calls_itself_has_the_history_of_keras_alone() -> None:
    _compare(_synchronized, "data_parallel")


@case
def grouped_convolutions_and_accumulated_gradients_have_the_history_of_keras_alone() -> None:
    _compare(_groups, "data_parallel")


@case
def grouped_convolutions_of_volumes_have_the_history_of_keras_alone() -> None:
    _compare(_volumes, "mini_memory")


@case
def variables_that_layers_make_when_they_are_called_are_trained() -> None:
    _compare(_built_late, "mini_memory")


@case
def products_of_eight_bits_have_the_history_of_keras_alone() -> None:
    _compare(_eight_bits, "mini_memory")


@case
def recommender_has_the_history_of_keras_alone() -> None:
    _compare(recommender, "mini_memory")


@case
def what_batch_norm_hides_differs_no_more_than_for_keras_itself() -> None:
    """A bias before a batch norm has no gradient but rounding, which Adam makes steps of."""

    def make() -> Made:
        return cnn(bias=True)

    expected, other, found = trained(make, None), trained(make, None, 1 + 1e-7), trained(make, "data_parallel")
    for name in ("loss", "val_loss"):
        spread = np.abs(other[name] - expected[name]).max()
        assert np.abs(found[name] - expected[name]).max() <= max(5 * spread, 1e-6), (name, spread)


@case
def weights_that_callbacks_read_and_set_count() -> None:
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([value * 0.5 for value in self.model.get_weights()])

    def figures(parallel: bool) -> list[float]:
        model, x, y = mlp()
        if parallel:
            parallelize(model, "mini_memory")
        stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True)
        history = model.fit(
            x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Halve(), stop], class_weight={0: 2.0, 1: 1.0, 2: 0.5}
        )
        return [*history.history["loss"], *(float(np.abs(value).sum()) for value in model.get_weights())]

    _like_keras_alone(figures)


@case
def datasets_and_several_steps_per_execution_are_taken() -> None:
    def figures(parallel: bool) -> list[float]:
        model, x, y = mlp()
        model.compile(keras.optimizers.SGD(0.1), _CLASSES, metrics=["accuracy"], steps_per_execution=2)
        if parallel:
            parallelize(model)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        history = model.fit(data, epochs=2, verbose=0)
        return [*history.history["loss"], *history.history["accuracy"], *model.predict(data, verbose=0).ravel()]

    _like_keras_alone(figures, atol=1e-6)


@case
def files_are_written_by_one_rank_and_read_by_keras_alone() -> None:
    keras.utils.set_random_seed(0)
    model, x, y = mlp()
    parallelize(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "best.keras"
        keep = keras.callbacks.ModelCheckpoint(str(path), monitor="loss")
        model.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[keep])
        assert path.exists() == (tensoropt.world_rank() == 0)
        if path.exists():
            for one, other in zip(keras.models.load_model(path).get_weights(), model.get_weights(), strict=True):
                np.testing.assert_array_equal(one, other)


@case
def files_are_whole_where_other_ranks_read_them() -> None:
    """Small weights, none of them in pieces, in files that take long to write."""

    class Slow(layers.Dense):
        def save_own_variables(self, store: Any) -> None:
            time.sleep(1.0)
            super().save_own_variables(store)

    keras.utils.set_random_seed(0)
    _, x, y = mlp()
    model = keras.Sequential([keras.Input((8,)), Slow(4)])
    model.compile("adam", _CLASSES)
    parallelize(model, "data_parallel")
    folder = Path(sys.argv[1]) / "read_by_all"
    folder.mkdir(exist_ok=True)
    keep = keras.callbacks.ModelCheckpoint(str(folder / "kept.keras"), monitor="loss", save_best_only=True)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[keep])
    kept = keras.models.load_model(folder / "kept.keras", {"Slow": Slow})
    model.save(folder / "saved.keras")
    saved = keras.models.load_model(folder / "saved.keras", {"Slow": Slow})
    for read in (kept, saved):
        for one, other in zip(read.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


@case
def model_that_is_compiled_again_is_planned_again() -> None:
    def figures(parallel: bool) -> list[float]:
        model, x, y = mlp()
        if parallel:
            parallelize(model)
        first = model.evaluate(x, y, verbose=0)
        model.fit(x, y, batch_size=16, verbose=0)
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), _CLASSES)
        model.make_train_function(force=True)
        losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
        return [*first, *losses, *(float(np.abs(value).sum()) for value in model.get_weights())]

    _like_keras_alone(figures)


class _Branches(layers.Layer):
    """One of two layers, by what a variable counts; then one of three, by data."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = layers.Dense(8), layers.Dense(8, activation="relu")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32")

    def build(self, shape: Any) -> None:
        self.even.build(shape)
        self.odd.build(shape)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        h = keras.ops.cond(self.calls % 2 == 0, lambda: self.even(x), lambda: keras.ops.maximum(self.odd(x), 0.1))
        place = keras.ops.cast(keras.ops.sum(keras.ops.abs(x)), "int32") % 3
        return keras.ops.switch(place, [lambda: h, lambda: -h, lambda: tf.debugging.check_numerics(h, "h") * 2.0])


def _branches() -> Made:
    model = keras.Sequential([keras.Input((8,)), _Branches(), layers.Dense(4)])
    top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")
    model.compile(keras.optimizers.SGD(0.1), _CLASSES, metrics=["accuracy", top])
    return model, _random().normal(size=(_ROWS, 8)).astype(np.float32), _labels()


@case
def metrics_behind_branches_count_the_smaller_last_batch() -> None:
    _compare(_branches, "data_parallel", batch=11)


@case
def own_train_step_and_two_optimizers_are_taken() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(8, activation="tanh"), layers.Dense(4)
            self.slow = keras.optimizers.SGD(0.05)

        def call(self, x: Any) -> Any:
            return self.second(self.first(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape(persistent=True) as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x))
            for layer, optimizer in ((self.first, self.slow), (self.second, self.optimizer)):
                gradients = tape.gradient(loss, layer.trainable_variables)
                optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
            return {"loss": loss}

    def figures(parallel: bool) -> list[float]:
        model = Own()
        model.compile(keras.optimizers.Adam(0.01), _CLASSES)
        if parallel:
            parallelize(model)
        _, x, y = mlp()
        losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
        return [*losses, *(float(np.abs(value).sum()) for value in model.get_weights())]

    _like_keras_alone(figures)


@case
def own_train_step_trains_what_is_no_part_of_the_model() -> None:
    class Patched(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(4)
            self.patch = {"patch": keras.Variable(np.full((1, 8), 0.1, np.float32), trainable=False)}

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            patch = self.patch["patch"]
            with tf.GradientTape() as tape:
                tape.watch(patch.value)
                loss = self.compute_loss(x=x, y=y, y_pred=self(x + patch))
            self.optimizer.apply_gradients([(tape.gradient(loss, patch.value), patch)])
            return {"loss": loss}

    def figures(parallel: bool) -> list[float]:
        model = Patched()
        _, x, y = mlp()
        model(x)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5), _CLASSES)
        if parallel:
            parallelize(model)
        losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
        return [*losses, len(model.optimizer.variables), *model.patch["patch"].numpy().ravel()]

    _like_keras_alone(figures)


@case
def own_train_step_may_compute_with_the_size_of_a_batch() -> None:
    class Doubled(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            x, y = tf.concat([x, tf.ones((x.shape[0], 8))], axis=0), tf.concat([y, y], axis=0)
            return super().train_step((x, y))

    def figures(parallel: bool) -> list[float]:
        model = Doubled()
        model.compile(keras.optimizers.Adam(0.01), _CLASSES)
        if parallel:
            parallelize(model, "data_parallel")
        _, x, y = mlp()
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
        losses: list[float] = model.fit(data, epochs=2, verbose=0).history["loss"]
        return losses

    _like_keras_alone(figures)


@case
def layers_read_the_sizes_that_keras_knows() -> None:
    class Reading(layers.Layer):
        def build(self, shape: Any) -> None:
            self.rows = self.add_weight(shape=(8, 8), initializer="uniform")

        def call(self, x: Any) -> Any:
            x = x * (3.0 if x.shape[0] == 8 else 1.0)
            return x + self.rows[: x.shape[0]] if x.shape[0] else x

    def figures(parallel: bool) -> list[float]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8,)), Reading(), layers.Dense(4)])
        model.compile(keras.optimizers.Adam(0.01), _CLASSES)
        if parallel:
            parallelize(model, "data_parallel")
        _, x, y = mlp()
        found: list[Any] = [*model.fit(x[:32], y[:32], batch_size=8, epochs=2, verbose=0).history["loss"]]
        found.append(model.evaluate(x[:32], y[:32], batch_size=8, verbose=0))
        found += model.fit(x[:30], y[:30], batch_size=8, verbose=0).history["loss"]  # of which Keras knows no size
        found += [model.train_on_batch(x[:rows], y[:rows]) for rows in (8, 8, 6, 8)]
        found += model.fit(x[:16], y[:16], batch_size=8, verbose=0).history["loss"]
        found += [float(np.abs(model.predict(x[:rows], batch_size=8, verbose=0)).sum()) for rows in (16, 12)]
        return [*map(float, found), *(float(np.abs(value).sum()) for value in model.get_weights())]

    _like_keras_alone(figures)


@case
def sizes_of_shapes_are_numbers_for_keras() -> None:
    size = tf.TensorShape([3])[0]
    assert keras.backend.standardize_dtype(type(size)) == keras.backend.standardize_dtype(int)


@core_case
def what_cannot_be_parallel_says_why() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    for given, words in ((model, "not compiled"), (layers.Dense(3), "takes a model of Keras 3")):
        try:
            parallelize(given)
        except SessionError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{given} was taken")
    model.compile("adam", "mse", run_eagerly=True)
    try:
        parallelize(model)
    except SessionError as error:
        assert "run_eagerly=False" in str(error), error
    else:
        raise AssertionError("an eager model was taken")
