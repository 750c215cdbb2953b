"""Keras's optimizers by ``tensoropt.keras.parallelize``, beside Keras alone in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from tensoropt.keras import parallelize
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


def _check(embedded: bool) -> None:
    for name, make in _OPTIMIZERS.items():
        expected, found = _trained(make, False, embedded), _trained(make, True, embedded)
        assert found.keys() == expected.keys(), (name, found.keys() ^ expected.keys())
        for path, value in expected.items():
            np.testing.assert_allclose(found[path], value, rtol=2e-5, atol=2e-6, err_msg=f"{name}: {path}")
