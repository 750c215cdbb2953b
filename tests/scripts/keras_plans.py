"""Plans of Keras models, functions and scripts, shown, verified and compared, whatever the current model is."""

from __future__ import annotations

import gc
import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from rich.console import Console

import tensoropt
from tensoropt.errors import PlanError
from tensoropt.keras import parallelize
from tensoropt.plan.plan import Plan
from tests.scripts.cases import case, core_case


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(32, 8)).astype(np.float32), random.normal(size=(32, 1)).astype(np.float32)


def _trained(width: int, option: str = "mini_memory") -> Any:
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(width, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    parallelize(model, option)
    model.fit(*_data(), batch_size=16, verbose=0)
    return model


def _shown(plan: Any) -> str:
    out = io.StringIO()
    tensoropt.show_strategy(plan, Console(file=out, width=160), full=True)
    return out.getvalue()


def _taken(plan: Any, operator: str) -> None:
    """Lets whatever takes a plan take one, which has this operator."""
    assert any(row["operator"] == operator for row in tensoropt.strategy_rows(plan)), operator
    assert (operator in _shown(plan)) == (tensoropt.world_rank() == 0)
    assert tensoropt.verify(plan, steps=2).steps == 2
    explanation = tensoropt.explain(plan)
    assert explanation.missing is None and explanation.rivals is not None, explanation.missing
    assert abs(sum(explanation.seconds.values()) - plan.time_s) <= 1e-9 * plan.time_s
    table = tensoropt.compare(plan, methods=["ft", "data_parallel"])
    for row in table.rows:
        assert any(each["operator"] == operator for each in tensoropt.strategy_rows(table.plan(row.method)))


def _refused(run: Any, *words: str) -> None:
    try:
        run()
    except PlanError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it was taken")


@case
def plans_of_models_are_taken_beside_one_another_and_a_script() -> None:
    one, other = _trained(4), _trained(6, "data_parallel")
    weights = one.get_weights()
    graph = tensoropt.Graph()
    with graph.as_default():
        x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
        y = tensoropt.matmul(x, tensoropt.get_variable("w", [4, 4]), name="y")
        tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(tensoropt.square(y)))
        script = tensoropt.find_strategy()
        for each in (one, other):
            _taken(each.tensoropt_plan, each.layers[0].kernel.path)
        _taken(script, "y")
        tensoropt.build_execution_graph(plan=script)
    for before, after in zip(weights, one.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    one.fit(*_data(), batch_size=16, verbose=0)
    one.predict(_data()[0], verbose=0)
    if importlib.util.find_spec("plotly") is not None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            tensoropt.keras.report(one, page)
            assert page.exists() == (tensoropt.world_rank() == 0)
    assert tensoropt.keras.verify(one).steps == 3  # from where it is, and beside what predicts


@case
def how_gradients_are_taken_does_not_concern_what_runs_before_training() -> None:
    x, y = _data()
    steps: tuple[dict[str, Any], ...] = ({}, {"recompute": True}, {"search": "pipeline"}, {"search": "zero3"})
    for asked in (None, *steps):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
        model.compile("sgd", "mse")
        if asked is None:
            wanted = model.predict(x[:3], verbose=0), model.evaluate(x[:3], y[:3], verbose=0)
        else:
            parallelize(model, micro_batches=2, **asked)  # which do not divide three samples
            np.testing.assert_allclose(model.predict(x[:3], verbose=0), wanted[0], rtol=1e-6)
            np.testing.assert_allclose(model.evaluate(x[:3], y[:3], verbose=0), wanted[1], rtol=1e-6)


@core_case
def plans_from_files_are_shown_where_their_model_is() -> None:
    model = _trained(5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        model.tensoropt_plan.save(path)
        read = Plan.load(path)
    assert read == model.tensoropt_plan and read.graph is None
    assert tensoropt.strategy_rows(read) == tensoropt.strategy_rows(model.tensoropt_plan)
    tensoropt.verify(read, steps=1)
    kept = model.tensoropt_plan
    model.compile("sgd", "mse")
    model.fit(*_data(), verbose=0)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert tensoropt.strategy_rows(kept)  # of a model that is gone
    assert tensoropt.compare(kept, "p100", methods=["data_parallel"]).rows[0].plan is not None
    tensoropt.show_strategy(read, Console(file=io.StringIO()))  # which needs no model
    for take in (tensoropt.strategy_rows, tensoropt.verify):
        _refused(lambda take=take: take(read), f"for the graph {read.fingerprint}")
    file: Any = "plan.json"
    _refused(lambda: tensoropt.verify(file), "verify: plan must be a Plan, got str", "tensoropt_plan")


@case
def plans_of_functions_are_taken() -> None:
    keras.utils.set_random_seed(0)
    weight, moved = tf.Variable(tf.random.normal((8, 4)), name="weight"), tf.Variable(tf.zeros((8, 4)), name="moved")

    class Loop:
        @tensoropt.function(input_signature=[tf.TensorSpec((16, 8)), tf.TensorSpec((16, 4))])
        def step(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight - y))
            gradient = tape.gradient(loss, weight)
            moved.assign(0.9 * moved + gradient)
            weight.assign_sub(0.1 * moved)
            return loss, gradient

    loop = Loop()
    assert loop.step.tensoropt_plan is None
    plan = loop.step.plan("mini_memory")
    _taken(plan, "step/matmul")
    x, y = np.ones((16, 8), np.float32), np.zeros((16, 4), np.float32)
    before = float(loop.step(x, y)[0])
    _taken(loop.step.tensoropt_plan, "step/matmul")
    assert float(loop.step(x, y)[0]) < before
