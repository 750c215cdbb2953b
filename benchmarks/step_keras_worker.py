"""One Keras variant of :mod:`benchmarks.step`, which trains by ``fit`` when it is asked to (:mod:`benchmarks.turns`).

A step's seconds are those from the end of one batch to that of the next one, as a callback of ``fit`` sees them: with
what takes the batch out of the arrays, and with the loss, which callbacks are given.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

from benchmarks.models import OPTIMIZERS
from benchmarks.models_keras import KerasModel, in_keras
from benchmarks.step_worker import JIT, OPTIONS, SEED, models
from benchmarks.turns import take_turns

_RIVALS = ("keras_one_process", "keras_horovod", "keras_mirrored")
_WAIT_S = 60.0


def main() -> None:
    """Runs one variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--variant", choices=(*_RIVALS, *(f"keras_{option}" for option in OPTIONS)), required=True)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--refresh", action="store_true", help="measure anew what is cached")
    parser.add_argument("--turns", type=Path, required=True, metavar="FOLDER")
    flags = parser.parse_args()
    model = in_keras(models(flags.short)[flags.model])
    runners = {"one_process": _one_process, "horovod": _horovod, "mirrored": _mirrored}
    runners.get(flags.variant.removeprefix("keras_"), _tensoropt)(model, flags)


class _Clock(keras.callbacks.Callback):
    """The seconds and losses of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._since, self._sum = time.perf_counter(), 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        mean = float(logs["loss"])  # of all batches so far
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._since = now
        total = mean * (batch + 1)
        self.losses.append(total - self._sum)
        self._sum = total


def _trainer(
    model: KerasModel,
    compiled: Any,
    rank: int,
    size: int,
    mean: Callable[[Sequence[float]], Sequence[float]] = lambda losses: losses,
) -> Callable[[int], dict[str, Any]]:
    """Trains by ``fit`` on this rank's shares of batches that are the same in every variant.

    Args:
        model: the model.
        compiled: the same, as Keras has it.
        rank: this one.
        size: between so many ranks batches are shared out.
        mean: gives the losses of all ranks together.
    """
    rng = np.random.default_rng(SEED)
    count = model.twin.batch_size // size

    def train(steps: int) -> dict[str, Any]:
        batches = [model.batch(rng, model.twin.batch_size) for _ in range(steps)]
        x, y = (
            np.concatenate([array[rank * count : (rank + 1) * count] for array in arrays])
            for arrays in zip(*batches, strict=True)
        )
        clock = _Clock()
        compiled.fit(x, y, batch_size=count, shuffle=False, verbose=0, callbacks=[clock])
        return {"seconds": clock.seconds, "losses": list(mean(clock.losses))}

    return train


def _tensoropt(model: KerasModel, flags: argparse.Namespace) -> None:
    import tensoropt

    started = time.perf_counter()
    tensoropt.init(refresh=flags.refresh)
    init_s = time.perf_counter() - started
    compiled = model.compiled(flags.optimizer, SEED)
    example = model.batch(np.random.default_rng(SEED), model.twin.batch_size)
    started = time.perf_counter()
    plan = tensoropt.keras.plan(compiled, option=flags.variant.removeprefix("keras_"), example=example)
    find_s = time.perf_counter() - started
    search_s = float(plan.notes.get("search_seconds", 0.0))  # data parallelism is not searched
    tensoropt.keras.parallelize(compiled, plan)
    about = {
        "init_s": init_s,
        "profile_s": find_s - search_s,
        "search_s": search_s,
        "strategy": {name: str(each.configuration) for name, each in sorted(plan.operators.items())},
    }
    # Every rank has whole batches.
    take_turns(flags.turns, tensoropt.world_rank(), about, _trainer(model, compiled, 0, 1))


def _one_process(model: KerasModel, flags: argparse.Namespace) -> None:
    compiled = model.compiled(flags.optimizer, SEED, jit_compile=False if os.environ.get(JIT) == "0" else "auto")
    take_turns(flags.turns, 0, {}, _trainer(model, compiled, 0, 1))


def _horovod(model: KerasModel, flags: argparse.Namespace) -> None:
    """Horovod's own optimizer for Keras is one of Keras 2: here it is Keras 3's, whose gradients Horovod averages."""
    import horovod.tensorflow as hvd

    hvd.init()

    def averaging(optimizer: Any) -> Any:
        own = type(optimizer)

        class Averaging(own):  # type: ignore[misc, valid-type]
            def apply(self, grads: Any, trainable_variables: Any = None) -> None:
                # The embedding's gradient travels as rows, which is Horovod's own and here its faster way.
                super().apply([hvd.allreduce(each, op=hvd.Average) for each in grads], trainable_variables)

        return Averaging.from_config(optimizer.get_config())

    # XLA knows no operation of Horovod's on CPUs.
    compiled = model.compiled(flags.optimizer, SEED, wrapped=averaging, jit_compile=False)

    def mean(losses: Sequence[float]) -> list[float]:
        return list(np.mean(hvd.allgather_object(list(losses)), axis=0))

    take_turns(flags.turns, hvd.rank(), {}, _trainer(model, compiled, hvd.rank(), hvd.size(), mean))


def _mirrored(model: KerasModel, flags: argparse.Namespace) -> None:
    """A loop of one's own, since Keras 3's ``fit`` takes no such strategy."""
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": _addresses(flags.turns, rank, size)}, "task": {"type": "worker", "index": rank}}
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # Ranks are held between turns, which a check of their health may take for a failure.
    strategy.extended._stop_check_health_thread()
    with strategy.scope():
        compiled = model.compiled(flags.optimizer, SEED, jit_compile=False)
        compiled.optimizer.build(compiled.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, compiled(x, training=True))  # which Keras divides by the number of replicas
        gradients = tape.gradient(loss, compiled.trainable_variables)
        compiled.optimizer.apply(gradients, compiled.trainable_variables)
        return loss

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(x, y)), axis=None)

    rng = np.random.default_rng(SEED)
    count = model.twin.batch_size // size

    def train(steps: int) -> dict[str, Any]:
        seconds, losses = [], []
        for _ in range(steps):
            batch = [array[rank * count : (rank + 1) * count] for array in model.batch(rng, model.twin.batch_size)]
            started = time.perf_counter()
            losses.append(float(step(*map(tf.convert_to_tensor, batch))))
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "losses": losses}

    take_turns(flags.turns, rank, {}, train)


def _addresses(folder: Path, rank: int, size: int) -> list[str]:
    """Addresses of this host that are free, one for each rank; rank 0 chooses."""
    said = folder / "addresses"
    if rank == 0:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(size)]
            for each in sockets:
                each.bind(("localhost", 0))
            found = [f"localhost:{each.getsockname()[1]}" for each in sockets]
        made = said.with_suffix(".new")
        made.write_text(json.dumps(found), encoding="utf-8")
        made.replace(said)
    deadline = time.monotonic() + _WAIT_S
    while not said.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} waits in vain for {said}")
        time.sleep(0.01)
    addresses: list[str] = json.loads(said.read_text(encoding="utf-8"))
    return addresses


if __name__ == "__main__":
    main()
