"""What the last rank has or makes otherwise than the others, case by case.

Prints what each rank got as a line of JSON, and then runs steps from two threads, which ends the job.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.errors import TensorOptError
from tensoropt.exec.engines.mpi4py_engine import Mpi4pyEngine

# Variables that a launch by ssh passes to some ranks only, and not to rank 0.
_IS_LAST = int(os.environ["OMPI_COMM_WORLD_RANK"]) == int(os.environ["OMPI_COMM_WORLD_SIZE"]) - 1
if _IS_LAST:
    os.environ |= {
        "TENSOROPT_COLLECTIVES": "mpi",
        "TENSOROPT_COSTS": "measured",
        "TENSOROPT_STALL_SECONDS": "0",
    }

_SHAPE = [64, 300]  # more than is compared of an array without leaving something out
CASES: dict[str, Callable[[], object]] = {}


def case(function: Callable[[], object]) -> Callable[[], object]:
    """Registers a case under its function's name, with spaces."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def built(initializer: Any = None, seed: int = 1, scale: float = 1.0) -> tuple[Any, Any]:
    """A model, planned and built: its training step and its placeholder."""
    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, _SHAPE, name="x")
    w = tensoropt.get_variable("w", [300, 4], initializer=initializer or tensoropt.initializers.zeros())
    dropped = tensoropt.nn.dropout(x * tensoropt.constant([scale]), rate=0.5, seed=seed)
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(dropped, w) - 1.0))
    step = tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
    return step, x


def drawn(seed: int, shape: list[int] = _SHAPE) -> np.ndarray:
    """Numbers that a seed decides."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@case
def settings_of_one_rank() -> object:
    built()
    executor = current_job().executor
    assert executor is not None
    return type(executor.state.engine) is Mpi4pyEngine


@case
def constants_as_initial_values() -> object:
    return built(tensoropt.initializers.constant(drawn(_IS_LAST, [300, 4])))


@case
def seeds_of_an_initializer() -> object:
    return built(tensoropt.initializers.random_normal(seed=3 + _IS_LAST))


@case
def seeds_of_an_operator() -> object:
    return built(seed=3 + _IS_LAST)


@case
def constants() -> object:
    return built(scale=2.0 + _IS_LAST)


@case
def initial_values_drawn_outside_of_tensorflow() -> object:
    import tensorflow as tf

    def initializer(shape: Any, dtype: Any = None, **_: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda: drawn(_IS_LAST, [300, 4]), [], tf.float32), shape)

    return built(initializer)


@case
def whole_batches() -> object:
    step, x = built()
    return tensoropt.run(step, {x: drawn(_IS_LAST)})


@case
def order_of_whole_batches() -> object:
    step, x = built()
    return tensoropt.run(step, {x: drawn(1)[:: -1 if _IS_LAST else 1]})


@case
def whole_batches_of_the_hundredth_step() -> object:
    step, x = built()
    for number in range(100):
        is_other = _IS_LAST and 20 < number < 90
        tensoropt.run(step, {x: drawn(is_other)})  # not compared between the tenth and the hundredth
    return tensoropt.run(step, {x: drawn(_IS_LAST)})


@case
def shares() -> object:
    step, x = built()
    size, rank = tensoropt.world_size(), tensoropt.world_rank()
    return tensoropt.run(step, {x: drawn(rank, [_SHAPE[0] // size, _SHAPE[1]])})


def run_from_two_threads() -> None:
    """Fails on a rank as soon as its threads are in a run at once, and then ends the job."""
    step, x = built()
    start = threading.Barrier(2)

    def train() -> None:
        start.wait()
        for _ in range(1000):
            tensoropt.run(step, {x: drawn(0)})

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("over", flush=True)


def main() -> None:
    """Runs all cases."""
    tensoropt.init()
    got: dict[str, tuple[str, str]] = {}
    for name, function in CASES.items():
        try:
            got[name] = ("", str(function()))
        except TensorOptError as error:
            got[name] = (type(error).__name__, str(error))
    ranks = current_job().world.comm.gather(got)
    if ranks:
        print("RESULT", json.dumps(ranks), flush=True)
    run_from_two_threads()


if __name__ == "__main__":
    main()
