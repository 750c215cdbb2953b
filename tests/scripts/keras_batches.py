"""How a batch can come, and who takes it: everybody computes from each batch what Keras alone does."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import scipy.sparse
import tensorflow as tf
from keras import layers

import tensoropt
import tensoropt.keras
from tensoropt.errors import SessionError
from tests.scripts.cases import case, core_case, raises

_ROWS, _BATCH = 20, 8  # so that the last batch is smaller
_Maker = Callable[[Any, np.random.Generator, int], Any]
_Pair = collections.namedtuple("_Pair", ["left", "right"])


class _Clip(tf.experimental.ExtensionType):
    """Samples of clips that have several lengths, with how loud they are."""

    samples: tf.RaggedTensor
    loudness: tf.Tensor
    scale: float


class _Net(keras.Model):
    """A model of a function of the batch that gives two features a row."""

    def __init__(self, features: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="net")
        self._features = features
        self.dense = layers.Dense(3)
        self.table = layers.Embedding(32, 2)
        self.table.build(())
        self.kernel = self.add_weight(shape=(12, 2), initializer="glorot_uniform")

    def call(self, x: Any) -> Any:
        return self.dense(tf.ensure_shape(self._features(self, x), [None, 2]))


def _dense(net: Any, draws: np.random.Generator, rows: int) -> Any:
    return draws.normal(size=(rows, 2)).astype(np.float32)


def _ragged(net: Any, draws: np.random.Generator, rows: int) -> Any:
    lengths = draws.integers(0, 9, rows)
    return tf.RaggedTensor.from_row_lengths(draws.normal(size=(lengths.sum(), 2)).astype(np.float32), lengths)


def _words(net: Any, draws: np.random.Generator, rows: int) -> Any:
    lengths = draws.integers(1, 9, rows)
    return tf.RaggedTensor.from_row_lengths(draws.integers(0, 32, lengths.sum()), lengths)


def _paragraphs(net: Any, draws: np.random.Generator, rows: int) -> Any:
    outer = draws.integers(1, 4, rows)
    inner = draws.integers(1, 5, outer.sum())
    return tf.RaggedTensor.from_nested_row_lengths(draws.integers(0, 32, inner.sum()), [outer, inner])


def _sparse(net: Any, draws: np.random.Generator, rows: int) -> Any:
    return tf.sparse.from_dense(_mostly_zeros(draws, rows))


def _mostly_zeros(draws: np.random.Generator, rows: int) -> np.ndarray:
    return (draws.normal(size=(rows, 12)) * (draws.uniform(size=(rows, 12)) > 0.7)).astype(np.float32)


def _clips(net: Any, draws: np.random.Generator, rows: int) -> Any:
    return _Clip(_ragged(net, draws, rows), tf.constant(_dense(net, draws, rows)), 0.5)


def _typed(dtype: str) -> _Maker:
    return lambda net, draws, rows: draws.integers(0, 2, (rows, 2)).astype(dtype)


def _cast(net: Any, x: Any) -> Any:
    return tf.cast(x, tf.float32)


def _named(net: Any, draws: np.random.Generator, rows: int) -> Any:
    names = tf.constant([f"{draws.integers(1000)}.png" for _ in range(rows)])
    return {"pixels": _dense(net, draws, rows), "file": names, "weight": draws.normal(size=(rows, 1)).astype("float32")}


def _nested(net: Any, draws: np.random.Generator, rows: int) -> Any:
    return {
        "a": (_dense(net, draws, rows), {"words": _words(net, draws, rows)}),
        "b": _typed("int32")(net, draws, rows),
    }


def _looked_up(net: Any, words: Any) -> Any:
    return tf.reduce_mean(tf.ragged.map_flat_values(net.table, words), axis=-2)


# By what the batch is like: what makes one, and two features of each of its rows.
_BATCHES: dict[str, tuple[_Maker, Callable[[Any, Any], Any]]] = {
    "dense": (_dense, _cast),
    "ragged": (_ragged, lambda net, x: tf.reduce_sum(x, axis=1)),
    "ragged words": (_words, _looked_up),
    "ragged twice": (_paragraphs, lambda net, x: tf.reduce_sum(_looked_up(net, x), axis=1)),
    "sparse": (_sparse, lambda net, x: tf.sparse.sparse_dense_matmul(x, net.kernel)),
    "sparse as words": (
        _sparse,
        lambda net, x: (
            tf.reduce_sum(tf.reshape(tf.sparse.to_dense(x), [-1, 6, 2]), 1) + tf.sparse.reduce_sum(x, 1)[:, None]
        ),
    ),
    "bool": (_typed("bool"), _cast),
    "uint8": (_typed("uint8"), _cast),
    "float64": (_typed("float64"), _cast),
    "float16": (_typed("float16"), _cast),
    "int64": (_typed("int64"), _cast),
    "text beside": (_named, lambda net, x: x["pixels"] * x["weight"]),
    "nested": (_nested, lambda net, x: x["a"][0] + _looked_up(net, x["a"][1]["words"])),
    "a named tuple": (
        lambda net, draws, rows: _Pair(_dense(net, draws, rows), _typed("int32")(net, draws, rows)),
        lambda net, x: x.left * _cast(net, x.right),
    ),
}


def _model(features: Callable[[Any, Any], Any]) -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = _Net(features)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def _results(name: str, option: str | None) -> dict[str, Any]:
    """What ``train_on_batch``, ``test_on_batch``, ``predict_on_batch``, ``fit``, ``evaluate`` and a function give."""
    make, features = _BATCHES[name]
    model = _model(features)
    draws = np.random.default_rng(7)
    batches = [(make(model, draws, rows), draws.integers(0, 3, rows)) for rows in (_BATCH, 1, _ROWS % _BATCH, _BATCH)]
    if option is not None:
        tensoropt.keras.parallelize(model, option)
    found: dict[str, Any] = {"train_on_batch": [np.asarray(model.train_on_batch(*batch)) for batch in batches]}
    found["test_on_batch"] = []
    for x, y in batches:
        model.reset_metrics()
        found["test_on_batch"].append(np.asarray(model.test_on_batch(x, y)))
    found["predict_on_batch"] = np.concatenate([model.predict_on_batch(x) for x, _ in batches])

    def generated() -> Iterator[Any]:
        while True:
            yield from batches

    history = model.fit(generated(), steps_per_epoch=4, epochs=2, verbose=0).history
    found |= {f"fit: {key}": values for key, values in history.items()}
    found["evaluate"] = model.evaluate(generated(), steps=4, verbose=0)
    found["weights"] = np.concatenate([weight.reshape(-1) for weight in model.get_weights()])
    function = (tf.function if option is None else tensoropt.function)(lambda x: features(model, x) * 2.0)
    found["function"] = np.concatenate([function(x) for x, _ in batches])
    return found


def _compare(names: tuple[str, ...], option: str) -> None:
    for name in names:
        expected, found = _results(name, None), _results(name, option)
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=2e-4, atol=2e-5, err_msg=f"{name}: {key}")


_NAMES = tuple(_BATCHES)


@case
def batches_of_every_kind_by_the_fastest_plan_part_1() -> None:
    _compare(_NAMES[:5], "mini_time")


@case
def batches_of_every_kind_by_the_fastest_plan_part_2() -> None:
    _compare(_NAMES[5:10], "mini_time")


@case
def batches_of_every_kind_by_the_fastest_plan_part_3() -> None:
    _compare(_NAMES[10:], "mini_time")


@case
def ragged_and_sparse_batches_by_the_plan_of_least_memory() -> None:
    _compare(("ragged words", "sparse", "nested"), "mini_memory")


@case
def datasets_of_ragged_and_sparse_batches() -> None:
    draws = np.random.default_rng(2)
    words, bags, y = _words(None, draws, _ROWS), _sparse(None, draws, _ROWS), draws.integers(0, 3, _ROWS)
    histories = []
    for option in (None, "mini_time", "mini_memory"):
        model = _model(lambda net, x: _looked_up(net, x[0]) + tf.sparse.sparse_dense_matmul(x[1], net.kernel))
        data = tf.data.Dataset.from_tensor_slices(((words, bags), y)).batch(_BATCH)
        if option is not None:
            tensoropt.keras.parallelize(model, option)
        history = model.fit(data, epochs=3, verbose=0, validation_data=data).history
        histories.append([*history.values(), model.evaluate(data, verbose=0), model.predict(data, verbose=0).sum()])
    for history in histories[1:]:
        for found, expected in zip(history, histories[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@case
def a_model_of_sparse_inputs_takes_tensors_and_scipy_s_matrices() -> None:
    draws = np.random.default_rng(4)
    bags, y = _mostly_zeros(draws, _ROWS), draws.integers(0, 3, _ROWS)
    histories = []
    for parallel in (False, True):
        for given in (tf.sparse.from_dense(bags), scipy.sparse.csr_matrix(bags), scipy.sparse.coo_matrix(bags)):
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            inputs = keras.Input((12,), sparse=True)
            hidden = layers.Dense(8, activation="relu")(inputs)
            model = keras.Model(inputs, layers.Dense(3)(hidden))
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            if parallel:
                tensoropt.keras.parallelize(model, "mini_time")
            loss = model.fit(given, y, batch_size=_BATCH, epochs=2, verbose=0, shuffle=False).history["loss"]
            histories.append([*loss, model.evaluate(given, y, verbose=0), model.predict(given, verbose=0).std()])
    for found, expected in zip(histories[3:], histories[:3], strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4)


@core_case
def functions_tell_arguments_apart_by_what_they_are() -> None:
    """Plain values by value, objects by identity, whatever they look like in print."""
    traced = []

    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __repr__(self) -> str:
            return "a scale"

    @tensoropt.function
    def step(x: Any, scale: Any, *, name: str = "", flag: bool = False) -> Any:
        traced.append(name)
        return x * scale.factor + (1.0 if flag else 0.0)

    step.plan("data_parallel", feed="global")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    two, three = Scale(2.0), Scale(3.0)
    for scale, factor in ((two, 2), (three, 3), (two, 2)):
        np.testing.assert_allclose(step(x, scale), x * factor)
    known = len(traced)
    np.testing.assert_allclose(step(x + 1, two), (x + 1) * 2)
    assert len(traced) == known
    np.testing.assert_allclose(step(x, two, flag=True), x * 2 + 1)
    assert len(traced) > known

    @tensoropt.function
    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.cast(x, tf.float32))

    total.plan("data_parallel", feed="global")
    for start in range(3):  # long enough for NumPy to print dots in the middle
        values = np.zeros(3000, np.float32)
        values[1500] = start
        ragged = tf.RaggedTensor.from_row_lengths(values, [1400, 1600])
        assert float(total(ragged.flat_values)) == start
        assert float(total(ragged.to_tensor())) == start


@case
def functions_take_extension_types() -> None:
    draws = np.random.default_rng(5)
    clips = [_clips(None, draws, rows) for rows in (4, 6, 4)]

    def level(clip: Any) -> Any:
        return tf.reduce_sum(clip.samples, axis=1) * clip.scale + clip.loudness

    step = tensoropt.function(level)
    for clip in (*clips, _Clip(clips[0].samples, clips[0].loudness, 2.0)):
        np.testing.assert_allclose(step(clip), level(clip), rtol=1e-5, atol=1e-6)


@case
def empty_batches_are_errors_that_say_so() -> None:
    for name in ("dense", "ragged", "sparse"):
        make, features = _BATCHES[name]
        model = _model(features)
        tensoropt.keras.parallelize(model, "data_parallel")
        draws = np.random.default_rng(3)
        model.train_on_batch(make(model, draws, 4), np.zeros(4, np.int64))
        empty = (
            make(model, draws, 4)[:0] if name != "sparse" else tf.sparse.slice(make(model, draws, 4), [0, 0], [0, 12])
        )
        raises(functools.partial(model.train_on_batch, empty, np.zeros(0, np.int64)), "Leave empty batches out")


@case
def shares_of_ragged_batches_are_refused() -> None:
    model = _model(_BATCHES["ragged"][1])
    tensoropt.keras.parallelize(model, "data_parallel", shard=False)
    batch = _ragged(None, np.random.default_rng(1), 4)
    said = "of which no rank can be given a share", "leave shard and feed out"
    raises(lambda: model.train_on_batch(batch, np.zeros(4, np.int64)), *said, kind=SessionError)
