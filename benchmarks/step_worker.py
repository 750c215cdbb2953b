"""One variant of :mod:`benchmarks.step`; prints one line of JSON on rank 0."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.models import MODELS, Model

_WARM_UP = 10
_SEED = 7


def main() -> None:
    """Runs one variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--steps", type=int, default=50)
    flags = parser.parse_args()
    model = MODELS[flags.model]
    runners = {"one_process": _one_process, "horovod": _horovod}
    report = runners.get(flags.variant, _tensoropt)(model, flags.variant, flags.steps)
    if report is not None:
        print(json.dumps(report))


def _measure(step: Callable[[dict[str, np.ndarray]], float], model: Model, steps: int, rank: int, size: int) -> Any:
    """Trains on this rank's shares of the same batches."""
    rng = np.random.default_rng(_SEED)
    seconds, losses = [], []
    for number in range(_WARM_UP + steps):
        batch = model.batch(rng, model.batch_size)
        count = model.batch_size // size
        mine = {name: array[rank * count : (rank + 1) * count] for name, array in batch.items()}
        started = time.perf_counter()
        losses.append(step(mine))
        if number >= _WARM_UP:
            seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "losses": losses}


def _tensoropt(model: Model, variant: str, steps: int) -> dict[str, Any] | None:
    import tensoropt

    tensoropt.init()
    tensoropt.set_random_seed(_SEED)
    built = model.build(tensoropt, model.batch_size)
    train_op = tensoropt.train.GradientDescentOptimizer(model.learning_rate).minimize(built.loss)
    plan = tensoropt.find_strategy(variant)
    tensoropt.build_execution_graph(plan=plan)

    def step(batch: dict[str, np.ndarray]) -> float:
        loss, _ = tensoropt.run([built.loss, train_op], {built.feeds[name]: array for name, array in batch.items()})
        return float(loss)

    result = _measure(step, model, steps, tensoropt.world_rank(), tensoropt.world_size())
    result["strategy"] = tensoropt.strategy_rows(plan)
    return result if tensoropt.world_rank() == 0 else None


def _one_process(model: Model, variant: str, steps: int) -> dict[str, Any]:
    del variant
    import tensorflow as tf

    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(_SEED)
        built = model.build(tf.compat.v1, model.batch_size)
        train_op = tf.compat.v1.train.GradientDescentOptimizer(model.learning_rate).minimize(built.loss)
        session = tf.compat.v1.Session()
        session.run(tf.compat.v1.global_variables_initializer())

        def step(batch: dict[str, np.ndarray]) -> float:
            feeds = {built.feeds[name]: array for name, array in batch.items()}
            return float(session.run([built.loss, train_op], feeds)[0])

        return dict(_measure(step, model, steps, 0, 1))


def _horovod(model: Model, variant: str, steps: int) -> dict[str, Any] | None:
    del variant
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(_SEED)
        built = model.build(tf.compat.v1, model.batch_size // hvd.size())
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(model.learning_rate)
        pairs = optimizer.compute_gradients(built.loss)
        # The embedding's gradient travels as rows, which is Horovod's own and here its faster way.
        averaged = [(hvd.allreduce(gradient, op=hvd.Average), variable) for gradient, variable in pairs]
        train_op = optimizer.apply_gradients(averaged)
        mean = hvd.allreduce(built.loss, op=hvd.Average)
        session = tf.compat.v1.Session()
        session.run(tf.compat.v1.global_variables_initializer())

        def step(batch: dict[str, np.ndarray]) -> float:
            feeds = {built.feeds[name]: array for name, array in batch.items()}
            return float(session.run([mean, train_op], feeds)[0])

        result = _measure(step, model, steps, hvd.rank(), hvd.size())
    return dict(result) if hvd.rank() == 0 else None


if __name__ == "__main__":
    main()
