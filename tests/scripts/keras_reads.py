"""Who reads a trained variable, when, and how it is stored: everybody finds the value that Keras alone has there."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tensoropt
import tensoropt.keras
from tensoropt.api.functions.variable_holders import unnoticed
from tensoropt.api.session.job import current_job
from tensoropt.errors import CollectiveError
from tests.scripts.cases import case, core_case, raises

_SMALL, _LARGE = 8, 640  # the second's square kernels have more than a mebibyte
_Readings = dict[str, np.ndarray]


class _Net:
    """A classifier, and models and functions that read its variables without training them."""

    def __init__(self, width: int, optimizer: str) -> None:
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        random = np.random.default_rng(5)
        self.x, self.y = random.normal(size=(24, width)).astype(np.float32), random.integers(0, 3, 24)
        inputs = keras.Input((width,))
        hidden = layers.Dense(width, activation="relu", name="hidden")(inputs)
        hidden = layers.BatchNormalization(name="norm")(hidden)
        self.model = keras.Model(inputs, layers.Dense(3, name="last")(hidden))
        self.kernel = self.model.get_layer("hidden").kernel
        self.features = keras.Model(inputs, hidden)
        self.optimizer = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
        if optimizer == "SGD":
            self.optimizer.momentum = 0.5
        else:
            self.optimizer.epsilon = 1e-2  # by which rounding of small gradients stays small
        self.model.compile(self.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.function = tf.function(lambda x: self.features(x) * 1.0)
        self.before = keras.Model(inputs, hidden)
        self.before.predict(self.x, verbose=0)  # traced before anything trains
        self.function(self.x)
        self.rows = tf.data.Dataset.from_tensor_slices(self.x).batch(24).map(lambda x: x @ self.kernel.value)

    def readings(self, folder: Path) -> _Readings:
        """What each reader finds."""
        after = tf.function(lambda x: self.features(x) * 2.0)  # traced now
        later = keras.Model(self.features.inputs, self.features.outputs)
        path = folder / "read.weights.h5"
        self.model.save_weights(path)
        clone = keras.models.clone_model(self.model)
        clone.load_weights(path)
        nested = tf.function(lambda x: tf.cond(tf.reduce_sum(x) < 1e9, lambda: self.function(x), lambda: x))
        slots = [v for v in self.optimizer.variables if v.shape == self.kernel.shape]
        found = {
            "predict traced before": self.before.predict(self.x, verbose=0),
            "predict traced later": later.predict(self.x, verbose=0),
            "a function traced before": self.function(self.x),
            "a function traced later": after(self.x),
            "a function in a branch of another": nested(self.x),
            "a call": self.features(self.x),
            "numpy": self.kernel.numpy(),
            "a file": clone.get_layer("hidden").kernel.numpy(),
            "a copy": copy.deepcopy(self.kernel.value).numpy(),
            "the moving mean": self.model.get_layer("norm").moving_mean.numpy(),
            "get_weights": np.concatenate([weight.reshape(-1) for weight in self.model.get_weights()]),
            "slots": np.stack([slot.numpy() for slot in slots]),
            "steps": np.asarray(self.optimizer.iterations),
            "a sum of eager code": tf.reduce_sum(self.kernel),
        }
        return {name: np.asarray(value) for name, value in found.items()}

    def history(self, folder: Path) -> list[tuple[str, _Readings]]:
        """Readings after ``fit``, within an epoch, after ``train_on_batch``, and after what others write."""
        found = []

        class Within(keras.callbacks.Callback):
            def on_train_batch_end(callback, batch: int, logs: Any = None) -> None:
                if batch == 1:
                    found.append(("within an epoch", self.readings(folder)))

        self.model.fit(self.x, self.y, batch_size=8, epochs=1, verbose=0, shuffle=False, callbacks=[Within()])
        found.append(("after fit", self.readings(folder)))
        for _ in range(2):
            self.model.train_on_batch(self.x[:8], self.y[:8])
            found.append(("after train_on_batch", {"predict": self.before.predict(self.x, verbose=0)}))
            found.append(("after train_on_batch", self.readings(folder)))
        halve = tf.function(lambda: self.kernel.value.assign(self.kernel.value * 0.5))
        for write in (halve, halve, lambda: self.kernel.assign(self.kernel * 1.5)):
            write()
            found.append(("after it was written", {"a function": np.asarray(self.function(self.x))}))
            self.model.train_on_batch(self.x[:8], self.y[:8])
            found.append(("after a step on what was written", self.readings(folder)))
        return found


def _same(found: list[tuple[str, _Readings]], expected: list[tuple[str, _Readings]]) -> None:
    for number, ((when, here), (_, there)) in enumerate(zip(found, expected, strict=True)):
        for name, value in there.items():
            message = f"{name}, {when} ({number})"
            np.testing.assert_allclose(here[name], value, rtol=2e-3, atol=2e-5, err_msg=message)


def _compare(width: int, option: str, optimizer: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = Path(current_job().world.comm.bcast(own))
        alone = _Net(width, optimizer)
        mine = folder / str(tensoropt.world_rank())
        mine.mkdir()
        expected = alone.history(mine)
        net = _Net(width, optimizer)
        tensoropt.keras.parallelize(net.model, option)
        found = net.history(folder)
        _same(found, expected)
        current_job().world.comm.barrier()


@case
def whoever_reads_small_variables_that_are_whole_finds_the_trained_values() -> None:
    _compare(_SMALL, "data_parallel", "SGD")


@case
def whoever_reads_small_variables_that_are_in_pieces_finds_the_trained_values() -> None:
    _compare(_SMALL, "mini_memory", "Adam")


@case
def whoever_reads_large_variables_that_are_whole_finds_the_trained_values() -> None:
    _compare(_LARGE, "data_parallel", "SGD")


@case
def whoever_reads_large_variables_that_are_in_pieces_finds_the_trained_values() -> None:
    _compare(_LARGE, "mini_memory", "Adam")


@case
def datasets_read_trained_values_that_are_whole() -> None:
    """In threads of TensorFlow's own, which no Python sees."""
    rows: list[np.ndarray] = []
    for parallel in (False, True):
        net = _Net(_SMALL, "SGD")
        if parallel:
            tensoropt.keras.parallelize(net.model, "data_parallel")
        for _ in range(3):
            net.model.train_on_batch(net.x, net.y)
            (found,) = net.rows
            np.testing.assert_allclose(found, net.x @ net.kernel.numpy(), rtol=1e-5, atol=1e-6)
            rows.append(found.numpy())
    np.testing.assert_allclose(rows[3:], rows[:3], rtol=2e-4, atol=1e-5)


@case
def what_is_in_pieces_never_looks_like_data_to_a_dataset() -> None:
    net = _Net(_SMALL, "Adam")
    tensoropt.keras.parallelize(net.model, "mini_memory")
    net.model.train_on_batch(net.x, net.y)
    try:
        list(net.rows)
    except tf.errors.InvalidArgumentError:
        return
    raise AssertionError("old values, or none, were taken for the kernel")


@core_case
def functions_of_ours_and_of_tensorflow_share_variables() -> None:
    """Steps of two ``tensoropt.function``s, with readers of TensorFlow's between them."""

    def make() -> tuple[Any, Any, Callable[[], Any]]:
        tf.random.set_seed(1)
        w, v = (tf.Variable(tf.random.stateless_normal((640, 640), (1, seed)) * 0.05) for seed in (1, 2))

        def both(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) @ v) ** 2)
            for variable, gradient in zip((w, v), tape.gradient(loss, (w, v)), strict=True):
                variable.assign_sub(0.5 * gradient)
            return loss

        def one(x: Any) -> Any:
            v.assign(v * 0.9 + 0.01)
            return tf.reduce_sum(x @ v)

        return both, one, tf.function(lambda: tf.stack([tf.reduce_sum(w * w), tf.reduce_sum(v), v[0, 0]]))

    x = np.random.default_rng(0).normal(size=(16, 640)).astype(np.float32)
    histories = []
    for options in (None, ("mini_memory", "data_parallel"), ("data_parallel", "mini_memory")):
        both, one, read = make()
        steps = [tf.function(step) if options is None else tensoropt.function(step) for step in (both, one)]
        for step, option in zip(steps, options or (), strict=False):
            step.plan(option, feed="global")
        history = []
        for _ in range(3):
            history += [steps[0](x).numpy(), *read().numpy(), steps[1](x).numpy(), *read().numpy()]
        histories.append(history)
    for history in histories[1:]:
        np.testing.assert_allclose(history, histories[0], rtol=2e-4)


@case
def copies_of_whole_variables_are_made_equal() -> None:
    """Those that lie with the script, of every dtype, apart by the last bits on one rank."""
    comm = current_job().world.comm
    kinds = {"float32": 1e-7, "float16": 1e-3, "int32": 1, "bool": True}
    variables = {
        dtype: tf.Variable(
            np.random.default_rng(0).normal(size=(64, 48)) > 0 if dtype == "bool" else np.ones((64, 48)), dtype=dtype
        )
        for dtype in kinds
    }

    @tensoropt.function
    def step(x: Any) -> Any:
        for variable in variables.values():
            variable.assign(variable.read_value())
        return tf.reduce_sum(x @ variables["float32"])

    step.plan("data_parallel", feed="global")
    step(np.ones((4, 64), np.float32))
    with unnoticed():
        if comm.rank == 1:
            for dtype, change in kinds.items():
                own = variables[dtype]
                own.assign(tf.logical_not(own) if dtype == "bool" else own + tf.cast(change, dtype))
    assert step._program is not None
    step._program._job.require_executor("level").state.level()
    for dtype, variable in variables.items():
        with unnoticed():
            held = comm.allgather(variable.numpy().tobytes())
        assert len(set(held)) == 1, dtype


@case
def what_one_rank_alone_assigns_is_an_error() -> None:
    net = _Net(_SMALL, "SGD")
    tensoropt.keras.parallelize(net.model, "data_parallel")
    net.model.train_on_batch(net.x, net.y)
    double = tf.function(lambda: net.kernel.value.assign(net.kernel.value * 2.0))
    for write in (lambda: net.kernel.assign(net.kernel * 2.0), double):
        if tensoropt.world_rank() == 1:
            write()
        raises(lambda: net.model.train_on_batch(net.x, net.y), "must be assigned the same value", kind=CollectiveError)
        if tensoropt.world_rank() != 1:
            write()
        net.model.train_on_batch(net.x, net.y)
