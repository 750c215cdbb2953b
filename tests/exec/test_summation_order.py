"""Sums of several terms are added two at a time, in the same order on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.exec.program import executor as executors
from tensoropt.exec.program.device_state import DeviceState
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf


def test_the_order_of_three_terms_in_one_sum_depends_on_who_else_reads_them() -> None:
    """The reason for all of this: what TensorFlow's own sum gives differs with what has run so far."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float64, [8])
        small, large, minus = x * 1.5, tf.exp(x) * 1e16, tf.exp(x) * -1e16
        total = tf.add_n([small, large, minus])
        with tf.compat.v1.Session(graph=graph) as session:
            alone = session.run(total, {x: np.ones(8)})
            beside_readers = session.run([total, small, large], {x: np.ones(8)})[0]
    assert set(alone) == {0.0} and set(beside_readers) == {1.5}


def test_no_sum_of_a_program_has_more_than_two_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensoropt.placeholder(tensoropt.float64, [4, 3], name="x")
    w = tensoropt.get_variable("w", [3, 3], tensoropt.float64)
    h = tensoropt.matmul(x, w)
    # A sum of three by the model, a chain of three sums of two, and a gradient from three readers.
    y = tensoropt.add_n([tensoropt.tanh(h), tensoropt.sin(h), tensoropt.cos(h)])
    loss = tensoropt.reduce_mean(tensoropt.square(y) + tensoropt.exp(h) + tensoropt.sigmoid(h) + y, name="loss")
    tensoropt.train.AdamOptimizer(0.1).minimize(loss, name="train")
    plan = tensoropt.find_strategy("data_parallel", topology=cpu(1))
    imported = import_model(current_model())
    built: list[tuple[Any, Sequence[Any], Sequence[Any]]] = []
    right = executors.callable_of

    def watched(session: Any, values: Sequence[Any], feeds: Sequence[Any]) -> Any:
        built.append((session, values, feeds))
        return right(session, values, feeds)

    monkeypatch.setattr(executors, "callable_of", watched)

    def run(engine: Any) -> list[int]:
        executor = executors.Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        executor.state.set_variables(lambda name: np.ones(imported.graph[name].outputs[0].shape))
        executor.run(["train"], {"x": np.ones((4, 3))})
        session, values, feeds = built[0]
        seen = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        session.run(list(values), {feed: np.ones((4, 3)) for feed in feeds}, options=options, run_metadata=seen)
        executor.state.close()
        return [
            sum(not name.startswith("^") for name in node.input)
            for graph in seen.partition_graphs
            for node in graph.node
            if node.op in ("Add", "AddV2", "AddN")
        ]

    terms = run_threads(1, (1,), run)[0]
    assert len(terms) >= 6 and set(terms) == {2}
