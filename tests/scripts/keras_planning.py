"""Plans of Keras models on clusters that are not there, in one process. Prints the failures by case, as JSON."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ.pop("TF_USE_LEGACY_KERAS", None)
sys.path.insert(0, str(Path(__file__).parents[2]))

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from rich.console import Console

import tensoropt.keras
from tensoropt.cluster import preset
from tensoropt.errors import PlanError, TensorOptError
from tensoropt.plan.plan import Plan
from tests.scripts.cases import CASES, case

_KERNELS = ("net/up/kernel", "net/down/kernel")


def _model(loss: str = "sparse_categorical_crossentropy") -> Any:
    keras.backend.clear_session()
    dense = [layers.Dense(32, activation="relu", name="up"), layers.Dense(8, name="down")]
    model = keras.Sequential([keras.Input((16,)), *dense], name="net")
    model.compile("sgd", loss)
    return model


def _eight() -> Any:
    return preset("h100", hosts=1)


def _actions(plan: Any) -> list[tuple[str | None, ...]]:
    return [plan.operators[name].configuration.actions for name in _KERNELS]


@case
def plan_and_frontier_need_no_mpi() -> None:
    frontier = tensoropt.keras.frontier(_model(), _eight(), batch_size=64)
    plan = tensoropt.keras.plan(_model(), option=frontier.turning_point(), batch_size=64)
    assert plan.mesh.size == 8 and plan.time_s == frontier.turning_point().time_s
    assert "mpi4py.MPI" not in sys.modules


@case
def plan_is_of_the_batch_that_fit_would_make() -> None:
    x, y = np.zeros((64, 16)), np.zeros(64, np.int64)
    asked = tensoropt.keras.plan(_model(), _eight(), batch_size=64)
    given = tensoropt.keras.plan(_model(), _eight(), example=(x, y))
    specs = (tf.TensorSpec([None, 16]), tf.TensorSpec([None, 8]))
    dense = tensoropt.keras.plan(_model("mse"), _eight(), example=specs, batch_size=64)
    assert asked.fingerprint == given.fingerprint
    assert dense.fingerprint == tensoropt.keras.plan(_model("mse"), _eight(), batch_size=64).fingerprint


@case
def metrics_and_losses_of_outputs_take_no_trace_of_their_own() -> None:
    traces = []

    class Noted(layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(x)
            return x

    def step_names() -> list[str]:
        return list(tensoropt.keras.plan(model, _eight(), batch_size=64).operators)

    keras.backend.clear_session()
    x = keras.Input((16,))
    model = keras.Model(x, [layers.Dense(8, name="a")(Noted()(x)), layers.Dense(1, name="b")(x)])
    model.compile("adam", {"a": "mse", "b": "mae"}, metrics={"a": ["accuracy", "mse"], "b": ["mae"]})
    traces.clear()
    names = step_names()
    assert len(traces) == 1, len(traces)
    assert names == step_names()  # as if they had been built before


@case
def plans_are_shown_and_compared_without_their_models() -> None:
    rows = tensoropt.strategy_rows(tensoropt.keras.plan(_model(), _eight(), batch_size=64))
    assert {*_KERNELS} <= {row["operator"] for row in rows}
    frontier = tensoropt.keras.frontier(_model(), _eight(), batch_size=64)
    plan = tensoropt.keras.plan(_model(), option=frontier.turning_point(), batch_size=64)
    out = io.StringIO()
    tensoropt.show_strategy(plan, Console(file=out, width=160), full=True)
    assert _KERNELS[1] in out.getvalue()
    out = io.StringIO()
    tensoropt.show_strategy(plan, Console(file=out, width=80))
    assert all(layer in out.getvalue() for layer in ("net/up ", "net/down ")), out.getvalue()
    explanation = tensoropt.explain(plan, _eight())
    assert explanation.missing is None and explanation.rivals is not None
    methods = ["ft", "megatron", "data_parallel"]
    table = tensoropt.compare(plan, _eight(), methods=methods)
    of_model = tensoropt.keras.compare(_model(), _eight(), methods=methods, batch_size=64)
    assert [row.method for row in of_model.rows] == methods
    taken = tensoropt.keras.plan(_model(), _eight(), option=of_model.plan("data_parallel"), batch_size=64)
    assert taken.fingerprint == plan.fingerprint and taken.time_s == of_model.row("data_parallel").time_s
    assert tensoropt.strategy_rows(table.plan("data_parallel"))
    gc.collect()
    try:
        tensoropt.strategy_rows(Plan.from_json(plan.to_json()))
    except PlanError as error:
        assert "nothing here was planned as that one. Build and plan the model, or train a step" in str(error), error
    else:
        raise AssertionError("the plan of a model that is gone was shown")


@case
def plans_keep_to_layout_maps_on_meshes_of_names() -> None:
    named, both = {"data": 2, "model": 4}, [(None, "d1", "d1"), (None, "d0", "d0")]
    for mesh, layout_map, expected in (
        (None, {".*kernel": (None, "model")}, [("d1",) * 3, ("d1",) * 3]),
        (named, {"net/up/kernel": ("data", "model")}, [("d0", "d1", "d1")]),
        (named, {".*up/kernel": (None, "model"), ".*down/kernel": ("model", None)}, both),
        (None, {".*up/kernel": (None, None)}, [(None,) * 3]),
    ):
        for option in ("mini_time", "mini_memory"):
            plan = tensoropt.keras.plan(
                _model(), _eight(), option=option, batch_size=64, layout_map=layout_map, mesh=mesh
            )
            assert _actions(plan)[: len(expected)] == expected, (layout_map, option, _actions(plan))


@case
def layout_maps_that_do_not_fit_say_why() -> None:
    named = {"data": 2, "model": 4}
    for arguments, words in (
        ({"layout_map": {"kernel": (None, "model")}}, "no variable of 'net' has a path that matches 'kernel'"),
        ({"layout_map": {".*/kernel": (None, None), ".*up/k.*": (None, None)}}, "matches several of its patterns"),
        ({"layout_map": {".*bias": (None, "model")}}, r"shape \[32\], of 1 dimensions, but the layout .* is for 2"),
        ({"layout_map": {".*kernel": (None, "modle")}, "mesh": named}, "mesh axis 'modle', which is not one of"),
        ({"layout_map": {".*kernel": ("model", "model")}}, "splits several dimensions by one mesh axis"),
        ({"layout_map": {".*up/kernel": ("a", "b")}}, "names 2 mesh axes, 'a', 'b', whose sizes are unknown"),
        ({"layout_map": {".*kernel": (None, "m")}, "mesh": {"d": 2, "m": 2}}, "has 4 devices, not 8"),
        ({"layout_map": {".*kernel": (None, "m")}, "topology": "v100"}, r"'net/down/kernel' .*: 8 % 16 != 0"),
        ({"layout_map": {".*kernel": (None, "model")}, "option": "data_parallel"}, "searches nothing"),
        (
            {"layout_map": {".*kernel": (None, "model")}, "search": "data_parallel"},
            "stores variables as layout_map has it",
        ),
        ({"layout_map": {".*kernel": ["model"]}}, "must have a tuple of names"),
        ({"layout_map": {"(": (None,)}}, "no regular expression"),
        ({"layout_map": {}}, "must have patterns"),
        ({"mesh": named}, "which was not given"),
        ({"layout_map": {".*kernel": (None, "m")}, "mesh": {"m": 0}}, "must give the size"),
    ):
        try:
            tensoropt.keras.plan(_model(), **{"topology": _eight(), "batch_size": 64, **arguments})
        except PlanError as error:
            assert re.search(words, str(error)), (words, str(error))
        else:
            raise AssertionError(f"{arguments} was taken")


@case
def models_that_do_not_say_what_they_take_ask_for_an_example() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Own()
    model.compile("sgd", "mse")
    for size, words in ((8, "Give example="), (0, "at least 1"), (None, "example=")):
        try:
            tensoropt.keras.plan(model, _eight(), batch_size=size)
        except TensorOptError as error:
            assert words in str(error), error
        else:
            raise AssertionError("a model of unknown inputs was planned")
    example = (np.zeros((16, 8), np.float32), np.zeros((16, 4), np.float32))
    assert tensoropt.keras.plan(model, _eight(), example=example).mesh.size == 8


def main() -> None:
    """Runs all cases."""
    failures = {}
    for name, run in CASES.items():
        try:
            run()
        except Exception:
            failures[name] = traceback.format_exc()
        else:
            failures[name] = ""
    print("RESULT", json.dumps(failures), flush=True)


if __name__ == "__main__":
    main()
