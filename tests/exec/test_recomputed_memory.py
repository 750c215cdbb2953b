"""What recomputation and micro-batches save of a device's memory: TensorFlow's trace beside what plans predict."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
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
from tests.effort import EVERY_CASE, left_to_ci
from tests.mpi_support import run_mpi
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf


@pytest.fixture
def traced() -> Iterator[list[Any]]:
    """The traces of all runs from here on."""
    make_callable = tf.compat.v1.Session._make_callable_from_options
    yield traces_of_all_runs()
    tf.compat.v1.Session._make_callable_from_options = make_callable


def traces_of_all_runs() -> list[Any]:
    """A list to which each run from here on adds its trace."""
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

    tf.compat.v1.Session._make_callable_from_options = tracing
    return traces


def test_a_transformer_takes_as_much_less_as_predicted_and_trains_alike(traced: list[Any]) -> None:
    graph, plain, again, feeds = _planned(1)
    assert len(again.again) > 20
    found = [_measured(graph, plan, feeds, traced) for plan in (plain, again)]
    (whole, predicted_whole, losses), (less, predicted_less, losses_again) = found
    np.testing.assert_array_equal(losses, losses_again)
    assert less == pytest.approx(predicted_less, rel=0.2)
    assert less / whole == pytest.approx(predicted_less / predicted_whole, rel=0.2)
    assert less < 0.5 * whole


def test_two_ranks_train_to_the_bit_as_without() -> None:
    graph, plain, again, feeds = _planned(2)
    one, other = (
        [losses for losses, _ in run_threads(2, plan.mesh.shape, functools.partial(train_alike, graph, plan, feeds))]
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
        assert measured == pytest.approx(predicted, rel=0.2)
        assert measured / of_whole == pytest.approx(predicted / predicted_whole, rel=0.2)
    assert found[0][0] < 0.4 * of_whole
    assert found[1][0] < 0.8 * found[0][0]


def _measured(
    graph: Any, plan: Plan, feeds: Mapping[str, np.ndarray], traced: list[Any]
) -> tuple[float, float, list[float]]:
    """The bytes that a step takes beside variables and inputs, measured and predicted, and the losses of its steps.

    One thread runs the operators: two that share a core took up to a sixth more than predicted, by how they took
    turns. The order in which TensorFlow begins what may begin differs from graph to graph all the same: a whole step
    took 0.98 to 1.16 times what is predicted.
    """
    traced.clear()
    config = session_config()
    config.inter_op_parallelism_threads = 1
    losses, tf_graph = run_threads(1, (), functools.partial(train_alike, graph, plan, feeds, config=config))[0]
    return max(memory_parts(trace, tf_graph)["step"] for trace in traced[-2:]), step_bytes(plan), losses


def step_bytes(plan: Plan) -> float:
    """The bytes that a plan predicts of a step beside variables and inputs."""
    parts = plan.notes["peak_memory"]["parts"]
    return float(sum(size for name, size in parts.items() if name not in ("variables", "inputs")))


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


def train_alike(
    graph: Any, plan: Plan, feeds: Mapping[str, np.ndarray], engine: Any, config: Any = None
) -> tuple[list[float], Any]:
    """The losses of three steps from the same values of variables, and the local graph."""
    random = np.random.default_rng(1)
    executor = Executor(DeviceState(graph, plan, engine, config=config or session_config()))
    values = {op.name: random.normal(0.0, 0.1, op.outputs[0].shape) for op in graph.of_type("Variable")}
    try:
        executor.state.set_variables(lambda name: values[name])
        shares = {name: np.split(array, engine.size)[engine.rank] for name, array in feeds.items()}
        losses = [float(executor.run([TensorId("the_loss"), "train"], shares)[0]) for _ in range(3)]
        return losses, executor.state.tf_graph
    finally:
        executor.state.close()


@pytest.mark.mpi
@left_to_ci("another job of what two ranks do to the bit")
def test_ranks_of_a_job_train_as_without() -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "recomputing.py"
    printed = run_mpi(program, 2, timeout=200).stdout
    assert "data_parallel: equal" in printed
    assert "mini_memory: equal" in printed


@pytest.mark.mpi
@left_to_ci("another job of what stages of ZeRO send")
def test_stages_of_zero_take_what_is_predicted() -> None:
    printed = run_mpi(Path(__file__).with_name("zero_memory_ranks.py"), 2, timeout=200).stdout
    found = {}
    for line in printed.splitlines():
        name, _, figures = line.partition(": ")
        if name.startswith("zero"):
            found[name], predicted = map(float, figures.split())
            assert predicted == pytest.approx(found[name], rel=0.2), line
    for threads in (1, 2):
        one, two, three = (found[f"zero{stage} on {threads}"] for stage in (1, 2, 3))
        assert three < 0.7 * two < 0.7 * one


@pytest.mark.mpi
@left_to_ci("three jobs, of what ranks of random graphs do with images")
def test_one_large_image_takes_less_of_each_rank_the_more_there_are() -> None:
    found = []
    for ranks in (1, 2, 4):
        printed = run_mpi(Path(__file__).with_name("image_memory_ranks.py"), ranks, timeout=200).stdout
        _, _, figures = next(line for line in printed.splitlines() if line.startswith("image: ")).partition(": ")
        measured, predicted, cut, *losses = map(float, figures.split())
        assert measured == pytest.approx(predicted, rel=0.25), printed
        assert (cut >= 2) == (ranks > 1)
        found.append((measured, predicted, losses))
    (one, predicted_one, expected), *more = found
    for measured, predicted, losses in more:
        assert losses == pytest.approx(expected, rel=1e-5)
        assert measured / one == pytest.approx(predicted / predicted_one, rel=0.25)
    assert more[1][0] < 0.75 * more[0][0] < 0.6 * one


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4] if EVERY_CASE else [2])
@left_to_ci("another job of micro-batches")
def test_stages_of_zero_give_one_process_s_numbers_and_send_the_paper_s_bytes(ranks: int) -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "splitting_in_time.py"
    printed = run_mpi(program, ranks, "zero", timeout=240).stdout
    assert printed.count("bytes, equal") == 6, printed


@pytest.mark.mpi
@pytest.mark.parametrize("model", ["graph", "keras", "images", "moved", "fed"] if EVERY_CASE else ["graph"])
def test_ranks_of_a_job_train_in_micro_batches_as_by_whole_batches(model: str) -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "splitting_in_time.py"
    printed = run_mpi(program, 2, model, timeout=240).stdout
    assert printed.count("equal") == 2, printed


@pytest.mark.mpi
@pytest.mark.parametrize(("model", "ranks"), [("graph", 4), ("keras", 2), ("fed", 2)] if EVERY_CASE else [("fed", 2)])
def test_ranks_of_a_pipeline_train_as_by_whole_batches(model: str, ranks: int) -> None:
    program = Path(__file__).resolve().parent.parent / "scripts" / "splitting_in_time.py"
    printed = run_mpi(program, ranks, model, "pipelines", timeout=240).stdout
    assert printed.count("equal") == {("graph", 4): 7, ("keras", 2): 2, ("fed", 2): 2}[model, ranks], printed
    again = re.search(r"(\d+) operators made again", printed)
    assert model != "graph" or (again is not None and int(again[1]) > 0), printed
