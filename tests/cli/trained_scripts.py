"""Three scripts in one: a graph, a Keras model, a function. ``trained_scripts.py FOLDER KIND…`` saves their plans.

Under mpirun each trains a step by its plan on the cluster in ``FOLDER/cluster.json``; commands stop it there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt

_BATCH = 16


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(_BATCH, 12)).astype(np.float32), rng.integers(0, 8, _BATCH).astype(np.int32)


def graph() -> Any:
    """A script of TensorFlow 1."""
    x = tensoropt.placeholder(tensoropt.float32, [None, 12], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [None], name="y")
    logits = tensoropt.layers.dense(tensoropt.layers.dense(x, 32, activation=tensoropt.nn.relu), 8)
    train_op = tensoropt.train.AdamOptimizer(0.01).minimize(tensoropt.softmax_cross_entropy(y, logits))
    plan = tensoropt.find_strategy("mini_time")
    tensoropt.build_execution_graph(plan=plan)
    tensoropt.run(tensoropt.global_variables_initializer())
    tensoropt.run(train_op, dict(zip((x, y), _arrays(), strict=True)))
    return plan


def keras() -> Any:
    """A Keras model, which is evaluated before it trains."""
    import keras

    import tensoropt.keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(8)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tensoropt.keras.parallelize(model, option="mini_memory")
    if tensoropt.world_rank() == 0 and len(sys.argv) == 3:  # on a cluster that is only described
        print("loss before", model.evaluate(*_arrays(), verbose=0))
    model.fit(*_arrays(), batch_size=_BATCH, verbose=0)
    return model.tensoropt_plan


def function() -> Any:
    """A loop of one's own, with a function that trains nothing before."""
    import tensorflow as tf

    weight = tf.Variable(np.ones((12, 8), np.float32), name="w")

    @tensoropt.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, weight)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    if len(sys.argv) == 3:

        @tensoropt.function
        def total(x: Any) -> Any:
            return tf.reduce_sum(x)

        print("total before", float(total(np.ones((4, 3), np.float32))))
    step(*_arrays())
    return step.tensoropt_plan


def main() -> None:
    """Runs some of them."""
    folder, *kinds = sys.argv[1:]
    tensoropt.init(topology=tensoropt.cluster.Topology.load(f"{folder}/cluster.json"))
    for kind in kinds:
        plan = {"graph": graph, "keras": keras, "function": function}[kind]()
        if tensoropt.world_rank() == 0:
            plan.save(Path(folder) / f"{kind}.json")


main()
