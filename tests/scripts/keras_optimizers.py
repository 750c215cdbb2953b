"""Keras's optimizers by ``tensoropt.keras.parallelize``, beside Keras alone in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tensoropt.keras import parallelize
from tests.effort import covering, some
from tests.scripts.cases import case

_ROWS, _BATCH = 43, 16  # no number of ranks divides the rows
_kinds = keras.optimizers
_OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "Nesterov": lambda: _kinds.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05),
    "RMSprop": lambda: _kinds.RMSprop(0.01, momentum=0.9, centered=True),
    "Adagrad": lambda: _kinds.Adagrad(0.1),
    "Adadelta": lambda: _kinds.Adadelta(1.0, clipvalue=0.01),
    "AMSGrad": lambda: _kinds.Adam(
        _kinds.schedules.CosineDecay(0.05, 6, warmup_target=0.1, warmup_steps=2), amsgrad=True
    ),
    "Adamax": lambda: _kinds.Adamax(0.01, clipnorm=0.1),
    "Nadam": lambda: _kinds.Nadam(0.01),
    "Ftrl": lambda: _kinds.Ftrl(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01),
    "Lion": lambda: _kinds.Lion(0.003),
    "Adafactor": lambda: _kinds.Adafactor(0.01),
    "Lamb": lambda: _kinds.Lamb(0.01),
    "Muon": lambda: _kinds.Muon(0.01),
    "LossScaleOptimizer": lambda: _kinds.LossScaleOptimizer(_kinds.Adam(0.01), dynamic_growth_steps=2),
    "moving averages": lambda: _kinds.Adam(0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "accumulated gradients": lambda: _kinds.AdamW(0.01, gradient_accumulation_steps=2, global_clipnorm=0.5),
}


def _trained(make: Callable[[], Any], parallel: bool, embedded: bool) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(3)
    x: Any = random.normal(size=(_ROWS, 8)).astype(np.float32)
    y = random.integers(0, 4, _ROWS)
    first = [keras.Input((8,)), layers.Dense(16, activation="tanh")]
    if embedded:  # rows of a gradient, some of them of the same word
        x = random.integers(0, 12, (_ROWS, 3))
        first = [keras.Input((3,), dtype="int32"), layers.Embedding(12, 4), layers.Flatten()]
    model = keras.Sequential([*first, layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(make(), loss, metrics=["accuracy"])
    if parallel:
        parallelize(model, "data_parallel")
    history = model.fit(x, y, batch_size=_BATCH, epochs=2, verbose=0).history
    weights = {variable.path: np.asarray(variable) for variable in model.weights}
    return {**history, **weights, **{variable.path: np.asarray(variable) for variable in model.optimizer.variables}}


@case
def every_optimizer_has_the_history_and_the_variables_of_keras_alone() -> None:
    _check(embedded=False)


@case
def so_it_has_with_rows_of_an_embedding() -> None:
    _check(embedded=True)


@case
def tables_of_adafactor_are_the_same_operators_on_all_ranks() -> None:
    """Their rows are of a number that only a run knows, and TensorFlow's graphs differ in the order of what waits."""

    def losses(parallel: bool) -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        random = np.random.default_rng(3)
        pairs, y = random.integers(0, 20, (_ROWS, 2)), random.normal(size=_ROWS).astype(np.float32)
        x = keras.Input((2,), dtype="int32")
        user, item = (layers.Embedding(20, 8, embeddings_regularizer="l2")(x[:, place]) for place in range(2))
        biases = [layers.Embedding(20, 1)(x[:, place]) for place in range(2)]
        model = keras.Model(x, layers.Add()([layers.Dot(1)([user, item]), *biases]))
        model.compile(_kinds.Adafactor(0.01), "mse")
        if parallel:
            parallelize(model, "mini_memory")
        return model.fit(pairs, y, batch_size=_BATCH, epochs=2, verbose=0, validation_data=(pairs, y)).history

    expected, found = losses(False), losses(True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, err_msg=name)


@keras.saving.register_keras_serializable()
class _LookedUp(layers.Layer):
    """Looks words up in a loop or a branch, by data, or where only a run knows how many; or is its own projection."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.one, self.other = kind, layers.Embedding(12, 4), layers.Embedding(12, 4)

    def build(self, shape: Any) -> None:
        self.one.build(shape)
        self.other.build(shape)

    def call(self, x: Any) -> Any:
        start = ops.mean(self.other(x), 1)
        if self.kind == "loop":
            return ops.fori_loop(0, 3, lambda i, h: ops.tanh(h + self.one(ops.take(x, i, axis=1))), start)
        if self.kind == "dynamic loop":
            turns = ops.minimum(ops.max(x) - 8, 3)
            return ops.while_loop(
                lambda i, h: i < turns, lambda i, h: (i + 1, ops.tanh(h + self.one(x[:, i]))), (0, start)
            )[1]
        if self.kind == "branch":
            return start + ops.cond(ops.sum(x) % 2 == 0, lambda: self.one(x[:, 0]), lambda: self.other(x[:, 1]))
        if self.kind == "mask":
            return start + ops.mean(self.one(tf.boolean_mask(x, x > 4)), 0)
        return ops.matmul(ops.tanh(ops.mean(self.one(x), 1)) + start, ops.transpose(self.one.embeddings))


_UNDER: Mapping[str, Sequence[Callable[[], Any]]] = {
    "pooling": [lambda: layers.Embedding(12, 4, mask_zero=True), layers.GlobalAveragePooling1D],
    "LSTM": [lambda: layers.Embedding(12, 4), lambda: layers.LSTM(4)],
    "masked GRU": [lambda: layers.Embedding(12, 4, mask_zero=True), lambda: layers.GRU(4)],
    "bidirectional": [lambda: layers.Embedding(12, 4), lambda: layers.Bidirectional(layers.LSTM(3))],
    "attention": [
        lambda: layers.Embedding(12, 4, mask_zero=True),
        lambda: layers.Lambda(lambda h: ops.softmax(h @ ops.transpose(h, (0, 2, 1))) @ h, mask=lambda h, mask: mask),
        layers.GlobalAveragePooling1D,
    ],
    **{
        kind: [lambda kind=kind: _LookedUp(kind)]  # type: ignore[misc]
        for kind in ("loop", "dynamic loop", "branch", "mask", "tied")
    },
}
_CLIPPING = {"none": {}, "norm": {"clipnorm": 0.05}, "value": {"clipvalue": 0.01}, "global": {"global_clipnorm": 0.1}}


@case
def tables_under_layers_of_all_kinds_are_clipped_and_trained_as_by_keras_alone() -> None:
    kinds = [_kinds.SGD, _kinds.RMSprop, _kinds.Adam, _kinds.Adagrad, _kinds.Adafactor, _kinds.Lamb, _kinds.Ftrl]
    every = covering(tuple(_UNDER), kinds, tuple(_CLIPPING), rounds=3)

    def trained(under: str, kind: Any, clip: str, parallel: bool) -> dict[str, Any]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        random = np.random.default_rng(3)
        x, y = random.integers(0, 12, (21, 3)).astype(np.int32), random.integers(0, 4, 21)  # the last batch is smaller
        model = keras.Sequential(
            [keras.Input((3,), dtype="int32"), *(make() for make in _UNDER[under]), layers.Dense(4)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(kind(0.05, **_CLIPPING[clip]), loss, metrics=["accuracy"])
        if parallel:
            parallelize(model, "data_parallel")
        history = model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False).history
        return {**history, **{variable.path: np.asarray(variable) for variable in model.weights}}

    for under, kind, clip in some(every, 10):
        expected, found = (trained(under, kind, clip, parallel) for parallel in (False, True))
        for name, value in expected.items():
            what = f"{under} {kind.__name__} {clip}: {name}"
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=what)


def _check(embedded: bool) -> None:
    for name, make in _OPTIMIZERS.items():
        expected, found = _trained(make, False, embedded), _trained(make, True, embedded)
        assert found.keys() == expected.keys(), (name, found.keys() ^ expected.keys())
        for path, value in expected.items():
            np.testing.assert_allclose(found[path], value, rtol=2e-5, atol=2e-6, err_msg=f"{name}: {path}")
