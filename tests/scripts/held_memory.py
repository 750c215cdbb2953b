"""Trains a deep perceptron in a process that may hold so much data, by a plan for a limit that whole batches exceed.

Arguments: ``graph`` or ``keras``; ``whole`` or ``split`` in micro-batches, with recomputation; the most bytes of data
that the process may have, or 0. Prints the losses, how many bytes of data the process has in the end, how many its
tensors had at once on a graphics card, if there is one, and how many the plan says.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tensoropt as to
from tensoropt.api.session.job import current_job

_ROWS, _FEATURES, _WIDTH, _LAYERS, _STEPS = 131072, 32, 128, 16, 2
_LIMIT_BYTES = 192 * 2**20


def data_bytes() -> int:
    """The private writable memory of this process, as the kernel counts it against a limit of data."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert found is not None
    return 1024 * int(found[1])


def card_bytes() -> int:
    """The most bytes that tensors of this process had at once on its graphics card; 0 where there is none."""
    cards = tf.config.list_physical_devices("GPU")
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if cards else 0


def of_a_graph(x: np.ndarray, plan: dict[str, Any]) -> list[float]:
    """The losses of a script of TensorFlow 1."""
    rows = to.placeholder(to.float32, [_ROWS, _FEATURES])
    hidden = to.layers.dense(rows, _WIDTH)
    for _ in range(_LAYERS):
        hidden = hidden + to.tanh(to.layers.dense(to.tanh(hidden), _WIDTH))
    loss = to.reduce_mean(to.square(to.layers.dense(hidden, 1)))
    train = to.train.AdamOptimizer(0.001).minimize(loss)
    to.build_execution_graph(plan=to.find_strategy(feed="global", **plan))
    return [float(to.run([loss, train], {rows: x})[0]) for _ in range(_STEPS)]


def of_keras(x: np.ndarray, plan: dict[str, Any]) -> list[float]:
    """The losses of a Keras model."""
    inputs = keras.Input((_FEATURES,))
    hidden = keras.layers.Dense(_WIDTH)(inputs)
    for _ in range(_LAYERS):
        hidden = hidden + keras.layers.Dense(_WIDTH, "tanh")(keras.layers.Activation("tanh")(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.001), "mse")
    to.keras.parallelize(model, **plan)
    history = model.fit(x, np.zeros(_ROWS), batch_size=_ROWS, epochs=_STEPS, shuffle=False, verbose=0).history
    return [float(loss) for loss in history["loss"]]


def main(kind: str, steps: str, most_bytes: int) -> None:
    """Trains, and says how that went."""
    if most_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    tf.config.experimental.enable_tensor_float_32_execution(False)  # where products on cards round more
    to.init()
    to.set_random_seed(1)
    keras.utils.set_random_seed(1)
    split = {"memory_bytes": _LIMIT_BYTES, "micro_batches": "auto", "recompute": True}
    plan = {"costs": "analytic", **(split if steps == "split" else {})}
    train: Callable[..., list[float]] = {"graph": of_a_graph, "keras": of_keras}[kind]
    x = np.random.default_rng(0).normal(size=(_ROWS, _FEATURES)).astype(np.float32)
    losses = train(x, plan)
    if to.world_rank() == 0:
        taken = {"data_bytes": data_bytes(), "card_bytes": card_bytes()}
        if kind == "graph":
            taken["planned_bytes"] = int(current_job().require_executor("a test").plan.memory_bytes)
        print("RESULT", json.dumps({"losses": losses, **taken}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
