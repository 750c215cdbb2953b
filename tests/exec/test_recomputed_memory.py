"""What recomputation and micro-batches save of a device's memory: TensorFlow's trace beside what plans predict."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from benchmarks.accuracy_memory import memory_parts
from benchmarks.models import transformer
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.mpi_support import run_mpi
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traces of all runs from here on."""
    make_callable = tf.compat.v1.Session._make_callable_from_options
    traces: list[Any] = []

    def tracing(session: Any, options: Any) -> Any:
        slow = type(options)()
        slow.CopyFrom(options)
        slow.run_options.trace_level = tf.compat.v1.RunOptions.FULL_TRACE
        made = make_callable(session, slow)

        def call(*feeds: Any) -> Any:
            metadata = tf.compat.v1.RunMetadata()
            values = made(*feeds, run_metadata=metadata)
            traces.append(metadata.step_stats)
            return values

        return call

    monkeypatch.setattr(tf.compat.v1.Session, "_make_callable_from_options", tracing)
    return traces


def test_a_transformer_takes_as_much_less_as_predicted_and_trains_alike(traced: list[Any]) -> None:
    graph, plain, again, feeds = _planned(1)
    assert len(again.again) > 20
    found = [_measured(graph, plan, feeds, traced) for plan in (plain, again)]
    (whole, predicted_whole, losses), (less, predicted_less, losses_again) = found
    np.testing.assert_array_equal(losses, losses_again)
    assert less == pytest.approx(predicted_less, rel=0.15)
    assert less / whole == pytest.approx(predicted_less / predicted_whole, rel=0.15)
    assert less < 0.5 * whole


def test_two_ranks_train_to_the_bit_as_without() -> None:
    graph, plain, again, feeds = _planned(2)
    one, other = (
        [losses for losses, _ in run_threads(2, plan.mesh.shape, functools.partial(_train, graph, plan, feeds))]
        for plan in (plain, again)
    )
    np.testing.assert_array_equal(one, other)


def test_micro_batches_take_as_much_less_as_predicted_and_train_alike(traced: list[Any]) -> None:
    graph, whole, _, feeds = _planned(1)
    _, split, both, _ = _planned(1, 4, graph)
    assert (whole.micro_batches, split.micro_batches, both.micro_batches) == (1, 4, 4)
    (of_whole, predicted_whole, losses), *found = [
        _measured(graph, plan, feeds, traced) for plan in (whole, split, both)
    ]
    for measured, predicted, others in found:
        np.testing.assert_allclose(others, losses, rtol=1e-6)
        assert predicted == pytest.approx(measured, rel=0.2)
        assert predicted / predicted_whole == pytest.approx(measured / of_whole, rel=0.15)
    assert found[0][0] < 0.4 * of_whole
    assert found[1][0] < 0.8 * found[0][0]


def _measured(
    graph: Any, plan: Plan, feeds: Mapping[str, np.ndarray], traced: list[Any]
) -> tuple[float, float, list[float]]:
    """The bytes that a step takes beside variables and inputs, measured and predicted, and the losses of its steps."""
    traced.clear()
    losses, tf_graph = run_threads(1, (), functools.partial(_train, graph, plan, feeds))[0]
    measured = max(memory_parts(trace, tf_graph)["step"] for trace in traced[-2:])
    parts = plan.notes["peak_memory"]["parts"]
    return measured, sum(size for name, size in parts.items() if name not in ("variables", "inputs")), losses


def _planned(ranks: int, micro_batches: int = 1, graph: Any = None) -> tuple[Any, Plan, Plan, Mapping[str, np.ndarray]]:
    """A Transformer's graph, its data parallel plan, the one of least memory by recomputation alone, and a batch."""
    made = transformer(layers=4, width=64, heads=4, length=64, vocabulary=128, batch_size=16)
    if graph is None:
        loss = to.identity(made.build(to, made.batch_size).loss, name="the_loss")
        to.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        graph = import_model(current_model()).graph
    cost = AnalyticCost(cpu(ranks))
    chosen = data_parallel(SearchSpace(graph, cost, micro_batches=micro_batches))
    allowed = {name: (one,) for name, one in chosen.items()}
    space = SearchSpace(graph, cost, allowed=allowed, recompute=True, micro_batches=micro_batches)
    smallest = get_finder("ft").find(space).frontier.point(0)
    again = space.plan(smallest.assignment, "again", alternatives=smallest.alternatives)
    plain = space.plan(space.assignment(chosen), "plain")
    return graph, plain, again, made.batch(np.random.default_rng(0), made.batch_size)


def _train(graph: Any, plan: Plan, feeds: Mapping[str, np.ndarray], engine: Any) -> tuple[list[float], Any]:
    random = np.random.default_rng(1)
    executor = Executor(DeviceState(graph, plan, engine, config=session_config()))
    values = {op.name: random.normal(0.0, 0.1, op.outputs[0].shape) for op in graph.of_type("Variable")}
    try:
        executor.state.set_variables(lambda name: values[name])
        shares = {name: np.split(array, engine.size)[engine.rank] for name, array in feeds.items()}
        losses = [float(executor.run([TensorId("the_loss"), "train"], shares)[0]) for _ in range(3)]
        return losses, executor.state.tf_graph
    finally:
        executor.state.close()


@pytest.mark.mpi
def test_ranks_of_a_job_train_as_without() -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "recomputing.py"
    printed = run_mpi(program, 2, timeout=200).stdout
    assert "data_parallel: equal" in printed
    assert "mini_memory: equal" in printed


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["graph", "keras"])
def test_ranks_of_a_job_train_in_micro_batches_as_by_whole_batches(model: str) -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "splitting_in_time.py"
    printed = run_mpi(program, 2, model, timeout=240).stdout
    assert printed.count("equal") == 2, printed
