"""One variant of :mod:`benchmarks.step`, which trains when it is asked to (:mod:`benchmarks.turns`)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import MODELS, OPTIMIZERS, SHORT, Model
from benchmarks.turns import take_turns

__all__ = ["JIT", "OPTIONS", "SEED", "Planned", "Step", "horovod", "models", "one_process", "trainer"]

OPTIONS = ("mini_time", "data_parallel", "mini_memory", "turning_point")
SEED = 7
JIT = "STEP_JIT_COMPILE"
"""An environment variable: 0 keeps Keras alone from compiling what it runs."""
Step = Callable[[dict[str, np.ndarray]], float]
"""Trains on arrays by placeholder name, and gives the loss."""


def models(short: bool) -> Mapping[str, Model]:
    """What can be measured: the models of benchmarks, or the same kinds in sizes that take a millisecond a step."""
    return SHORT if short else MODELS


def main() -> None:
    """Runs one variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--variant", choices=("one_process", "horovod", *OPTIONS), required=True)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--refresh", action="store_true", help="measure anew what is cached")
    parser.add_argument("--turns", type=Path, required=True, metavar="FOLDER")
    flags = parser.parse_args()
    model = models(flags.short)[flags.model]
    runners = {"one_process": _one_process, "horovod": _horovod}
    runners.get(flags.variant, _tensoropt)(model, flags)


def trainer(model: Model, rank: int, size: int, step: Step) -> Callable[[int], dict[str, Any]]:
    """Trains on this rank's shares of batches that are the same in every variant.

    Args:
        model: the model.
        rank: this one.
        size: how many share a batch.
        step: takes arrays by placeholder name, gives the loss.

    Returns:
        What :func:`benchmarks.turns.take_turns` takes.
    """
    rng = np.random.default_rng(SEED)
    count = model.batch_size // size

    def train(steps: int) -> dict[str, Any]:
        seconds, losses = [], []
        for _ in range(steps):
            batch = model.batch(rng, model.batch_size)
            mine = {name: array[rank * count : (rank + 1) * count] for name, array in batch.items()}
            started = time.perf_counter()
            losses.append(step(mine))
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "losses": losses}

    return train


def _tensoropt(model: Model, flags: argparse.Namespace) -> None:
    import tensoropt

    started = time.perf_counter()
    tensoropt.init(refresh=flags.refresh)
    init_s = time.perf_counter() - started
    planned = Planned(model, flags.optimizer)
    started = time.perf_counter()
    plan = tensoropt.find_strategy(flags.variant)
    find_s = time.perf_counter() - started
    search_s = float(plan.notes.get("search_seconds", 0.0))  # data parallelism is not searched
    started = time.perf_counter()
    step = planned.step(plan)
    about = {
        "init_s": init_s,
        "profile_s": find_s - search_s,
        "search_s": search_s,
        "build_s": time.perf_counter() - started,
        "strategy": tensoropt.strategy_rows(plan),
    }
    rank, size = tensoropt.world_rank(), tensoropt.world_size()
    take_turns(flags.turns, rank, about, trainer(model, rank, size, step))


class Planned:
    """A model that tensoropt trains, by one plan after another."""

    def __init__(self, model: Model, optimizer: str) -> None:
        """Builds the model.

        Args:
            model: which.
            optimizer: one of :data:`benchmarks.models.OPTIMIZERS`.
        """
        import tensoropt

        tensoropt.set_random_seed(SEED)
        self._built = model.build(tensoropt, model.batch_size)
        self._train = model.train(tensoropt, optimizer, self._built.loss)

    def step(self, plan: Any) -> Step:
        """A step by a plan, from initial values; those of earlier plans are over."""
        import tensoropt

        tensoropt.build_execution_graph(plan=plan)
        loss, feeds = self._built.loss, self._built.feeds

        def step(batch: dict[str, np.ndarray]) -> float:
            value, _ = tensoropt.run([loss, self._train], {feeds[name]: array for name, array in batch.items()})
            return float(value)

        return step


def _one_process(model: Model, flags: argparse.Namespace) -> None:
    take_turns(flags.turns, 0, {}, trainer(model, 0, 1, one_process(model, flags.optimizer)))


def one_process(model: Model, optimizer: str, scale: float = 1.0) -> Step:
    """A step of TensorFlow alone, from initial values times ``scale``."""
    import tensorflow as tf

    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(SEED)
        built = model.build(tf.compat.v1, model.batch_size)
        train_op = model.train(tf.compat.v1, optimizer, built.loss)
        return _session_step(tf, built, built.loss, train_op, scale)


def _horovod(model: Model, flags: argparse.Namespace) -> None:
    import horovod.tensorflow as hvd

    hvd.init()
    train = trainer(model, hvd.rank(), hvd.size(), horovod(model, flags.optimizer))
    take_turns(flags.turns, hvd.rank(), {}, train)


def horovod(model: Model, optimizer: str) -> Step:
    """A step by Horovod, which has begun, from initial values."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(SEED)
        built = model.build(tf.compat.v1, model.batch_size // hvd.size())
        # The embedding's gradient travels as rows, which is Horovod's own and here its faster way.
        train_op = model.train(
            tf.compat.v1, optimizer, built.loss, lambda gradient: hvd.allreduce(gradient, op=hvd.Average)
        )
        return _session_step(tf, built, hvd.allreduce(built.loss, op=hvd.Average), train_op)


def _session_step(tf: Any, built: Any, loss: Any, train_op: Any, scale: float = 1.0) -> Step:
    """A step of TensorFlow's own session, with trained variables at their initial values times ``scale``."""
    session = tf.compat.v1.Session()
    session.run(tf.compat.v1.global_variables_initializer())
    if scale != 1.0:
        session.run([tf.compat.v1.assign(v, v * scale) for v in tf.compat.v1.trainable_variables()])
    names = sorted(built.feeds)
    # Goes past most of Session.run's Python, as tensoropt's steps do.
    call = session.make_callable([loss, train_op], [built.feeds[name] for name in names])

    def step(batch: dict[str, np.ndarray]) -> float:
        return float(call(*(batch[name] for name in names))[0])

    return step


if __name__ == "__main__":
    main()
