"""Keras models whose variables are pinned, whose plans were made before, and whose ranks have their own data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tensoropt
import tensoropt.keras
from tensoropt.cluster import Topology
from tests.scripts.cases import case, core_case

_ROWS = 64


def _made(width: int = 16) -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), layers.Dense(width, activation="relu"), layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(_ROWS, 8)).astype(np.float32), random.integers(0, 4, _ROWS)


def _losses(model: Any, *data: Any, **arguments: Any) -> list[float]:
    given = {"batch_size": 16, "epochs": 2, "verbose": 0, "shuffle": False, **arguments}
    return [float(loss) for loss in model.fit(*data, **given).history["loss"]]


@core_case
def pinned_variables_are_stored_so_and_train_as_keras_alone() -> None:
    expected = _losses(_made(), *_data())
    model = tensoropt.keras.parallelize(
        _made(), layout_map={".*dense/kernel": (None, "model"), ".*dense_1/kernel": ("model", None)}
    )
    np.testing.assert_allclose(_losses(model, *_data()), expected, rtol=2e-5)
    plan, names = model.tensoropt_plan, [variable.path for variable in model.variables]
    axes = len(plan.mesh.axes)
    stored = [plan.operators[name].configuration.actions for name in names if "kernel" in name]
    assert stored == [("d1",) * axes, ("d0",) * axes], stored


@case
def plan_that_was_made_before_is_taken() -> None:
    job: Topology | None = tensoropt.init()
    plan = tensoropt.keras.plan(_made(), job, option="mini_memory", batch_size=16)
    model = tensoropt.keras.parallelize(_made(), plan)
    np.testing.assert_allclose(_losses(model, *_data()), _losses(_made(), *_data()), rtol=2e-5)
    assert model.tensoropt_plan.operators == plan.operators


@case
def plan_is_for_the_model_that_it_was_made_of() -> None:
    """Optimizers and layers that a trace makes do not change the names of what it makes beside them."""
    for optimizer in ("sgd", "nadam"):
        model = _made()
        model.compile(optimizer, "mse", metrics=["mae"])
        plan = tensoropt.keras.plan(model, tensoropt.init(), batch_size=16)
        tensoropt.keras.parallelize(model, plan)
        x, _ = _data()
        model.fit(x, model(x), batch_size=16, verbose=0)
        assert model.tensoropt_plan.fingerprint == plan.fingerprint


@case
def ranks_that_have_their_own_shares_train_as_one_that_has_all() -> None:
    x, y = _data()
    ranks, mine = tensoropt.world_size(), tensoropt.world_rank()
    expected = _made()
    history = _losses(expected, x, y)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(16 // ranks).shard(ranks, mine)
    model = tensoropt.keras.parallelize(_made(), "data_parallel", shard=False)
    np.testing.assert_allclose(_losses(model, rows, batch_size=None), history, rtol=2e-5)
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
