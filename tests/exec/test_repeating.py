"""Micro-batches between the first and the last are calls of one function, and give what ops of their own would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.graph.spec import TensorId
from tests.effort import EVERY_CASE
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf

_ROWS, _WORDS, _WIDTH = 24, 10, 4


def a_model_of_words() -> tuple[list[Any], dict[str, np.ndarray]]:
    """Rows as gradients, a loss of samples and of weights, and what each sample gives."""
    words = to.placeholder(to.int32, [_ROWS, 3], name="words")
    table = to.get_variable("table", [_WORDS, _WIDTH], initializer=to.random_normal_initializer(seed=1))
    w = to.get_variable("w", [3 * _WIDTH, 2], initializer=to.random_normal_initializer(seed=2))
    found = to.tanh(to.matmul(to.reshape(to.nn.embedding_lookup(table, words), [_ROWS, 3 * _WIDTH]), w))
    right = to.equal(to.argmax(found, 1), 0)
    loss = to.reduce_mean(to.square(found)) + 0.1 * to.nn.l2_loss(w)
    train = to.train.GradientDescentOptimizer(0.5).minimize(loss)  # which shows how large gradients are
    fed = {"words": np.random.default_rng(0).integers(0, _WORDS, (_ROWS, 3)).astype(np.int32)}
    return [loss, found, to.reduce_any(right), train], fed


def a_model_of_numbers() -> tuple[list[Any], dict[str, np.ndarray]]:
    """Of gradients nothing is read in a micro-batch, so that nothing but their sums needs them."""
    x = to.placeholder(to.float32, [_ROWS, 3], name="x")
    w = to.get_variable("w", [3, 2], initializer=to.random_normal_initializer(seed=1))
    found = to.matmul(x, w) + to.get_variable("b", [2], initializer=to.zeros_initializer())
    loss = to.reduce_mean(to.square(found))
    train = to.train.GradientDescentOptimizer(0.5).minimize(loss)
    return [loss, found, train], {"x": np.random.default_rng(0).normal(size=(_ROWS, 3)).astype(np.float32)}


def a_model_that_counts_places() -> tuple[list[Any], dict[str, np.ndarray]]:
    """The places of the largest numbers, counted from the batch's first, so that each micro-batch has its own ops."""
    images = to.placeholder(to.float32, [_ROWS, 4, 4, 1], name="images")
    scale = to.get_variable("scale", [], initializer=to.ones_initializer())
    largest, places = to.nn.max_pool_with_argmax(
        images * scale, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME", include_batch_in_index=True
    )
    loss = to.reduce_mean(largest)
    train = to.train.GradientDescentOptimizer(0.5).minimize(loss)
    fed = {"images": np.random.default_rng(0).random((_ROWS, 4, 4, 1)).astype(np.float32)}
    return [loss, places, train], fed


def trained(model: Callable[[], Any], ranks: int, **split: Any) -> tuple[list[list[Any]], int]:
    """All results of three steps on each rank, and how many ops the local graph of one has."""
    to.reset_default_graph()
    fetches, fed = model()
    plan = to.find_strategy("mini_memory", topology=cpu(ranks), feed="global", **split)
    graph = import_model(current_model()).graph
    names = [fetch.name if isinstance(fetch, tf.Operation) else TensorId(fetch.op.name) for fetch in fetches]

    def run(engine: Any) -> tuple[list[Any], int]:
        executor = Executor(DeviceState(graph, plan, engine, config=session_config()))
        try:
            random = np.random.default_rng(3)
            shapes = {op.name: op.outputs[0].shape for op in graph.variables()}
            start: Mapping[str, Any] = {name: abs(random.normal(size=shape)) for name, shape in shapes.items()}
            executor.state.set_variables(lambda name: start[name].astype(np.float32))
            results = [value for _ in range(3) for value in executor.run(names, fed) if value is not None]
            return results, len(executor.state.tf_graph.get_operations())
        finally:
            executor.state.close()

    every = run_threads(ranks, plan.mesh.shape, run)
    return [results for results, _ in every], every[0][1]


@pytest.mark.parametrize(
    ("model", "ranks", "recompute"),
    [
        (a_model_of_words, 1, False),
        (a_model_of_numbers, 2, False),
        (a_model_of_numbers, 1, True),
        (a_model_of_words, 2, True),
    ][0 if EVERY_CASE else 2 :],
)
def test_calls_give_what_whole_batches_do_and_the_graph_does_not_grow(model: Any, ranks: int, recompute: bool) -> None:
    (whole, *_), _ = trained(model, ranks)
    sizes = []
    for times in (4, 12):
        every, size = trained(model, ranks, micro_batches=times, recompute=recompute)
        sizes.append(size)
        for results in every:
            for found, wanted in zip(results, whole, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    # What reads a result of a call has a few ops; there are three such, and the rows of the table's gradient.
    assert sizes[1] - sizes[0] <= 8 * 5 * 6


def test_what_depends_on_the_time_has_ops_of_its_own() -> None:
    (whole, *_), _ = trained(a_model_that_counts_places, 1)
    sizes = []
    for times in (4, 12):
        (found, *_), size = trained(a_model_that_counts_places, 1, micro_batches=times)
        sizes.append(size)
        for one, other in zip(found, whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert sizes[1] - sizes[0] > 8 * 20
