"""Arguments that several calls take, and what is said of those that they cannot take."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from tensoropt.errors import ClusterError, GraphError, PlanError
from tensoropt.graph.graph import Edge
from tensoropt.graph.spec import TensorId
from tests.plan.small_graphs import mlp

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]


def build() -> Any:
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [8, 4])))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


def test_a_cluster_may_be_named_after_a_preset() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    loss = build()
    there = preset("p100")
    assert tensoropt.find_strategy(topology="p100").operators == tensoropt.find_strategy(topology=there).operators
    assert tensoropt.find_frontier("p100").point(0) == tensoropt.find_frontier(there).point(0)
    assert tensoropt.compare(loss, "p100", methods=["data_parallel"]).topology == there.name
    assert tensoropt.profile_strategies([2], topology="p100").topology == there.name


@pytest.mark.parametrize("call", ["find_strategy", "find_frontier", "profile_strategies", "compare", "init"])
def test_a_cluster_that_is_none_is_refused(call: str) -> None:
    import tensoropt

    with pytest.raises(ClusterError, match=r"Cluster preset 'p': unknown\. Use one of v100"):
        getattr(tensoropt, call)(topology="p")
    with pytest.raises(PlanError, match=rf"{call}: topology must be a Topology or the name of a preset, got 4\. Give "):
        getattr(tensoropt, call)(topology=4)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"memory_bytes": "1GB"}, r"memory_bytes must be a number of bytes, got '1GB'\. Give for example 8e9"),
        ({"memory_bytes": float("nan")}, r"memory_bytes must be a number of bytes, got nan\. Give"),
        ({"memory_bytes": 0.0}, r"memory_bytes must be above 0, got 0\.0\. Leave it out"),
        ({"batch_size": 2.5}, r"batch_size must be a whole number, got 2\.5\. Give"),
        ({"batch_size": "16"}, r"batch_size must be a whole number, got '16'\. Give"),
    ],
)
@pytest.mark.parametrize("call", ["find_strategy", "profile_strategies", "compare"])
def test_sizes_that_are_none_are_refused(call: str, named: dict[str, Any], message: str) -> None:
    import tensoropt

    build()
    with pytest.raises(PlanError, match=rf"{call}: {message}"):
        getattr(tensoropt, call)(topology="p100", **named)


def test_lists_that_are_none_are_refused() -> None:
    import tensoropt

    build()
    with pytest.raises(
        PlanError, match=r"compare: methods must be a list, got 'ft'\. Give for example methods=\['ft', "
    ):
        tensoropt.compare(topology="p100", methods="ft")
    with pytest.raises(
        PlanError, match=r"profile_strategies: devices must be a list, got 4\. Give for example devices="
    ):
        tensoropt.profile_strategies(4, topology="p100")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"devices must be whole numbers of at least 1, got '2' in \['2'\]"):
        tensoropt.profile_strategies(["2"], topology="p100")  # type: ignore[list-item]
    for count in (float("inf"), float("nan"), 0.5):
        with pytest.raises(PlanError, match=rf"devices must be whole numbers of at least 1, got {count} in "):
            tensoropt.profile_strategies([count], topology="p100")  # type: ignore[list-item]
    with pytest.raises(PlanError, match=r"compare: methods must have at least one, got none\. Leave it out for all"):
        tensoropt.compare(topology="p100", methods=[])
    with pytest.raises(PlanError, match=r"price_per_device_hour must be a number of at least 0, got '3'"):
        tensoropt.profile_strategies([2], topology="p100", price_per_device_hour="3")  # type: ignore[arg-type]


def test_a_graph_has_all_sizes() -> None:
    import tensoropt

    with pytest.raises(PlanError, match=r"compare: batch_size is of a model's open .* a Graph has all sizes, got 7\."):
        tensoropt.compare(mlp(), "p100", batch_size=7)


@pytest.mark.parametrize("call", ["strategy_rows", "show_strategy"])
def test_what_is_shown_must_be_a_plan(call: str) -> None:
    import tensoropt

    with pytest.raises(
        PlanError, match=r"show_strategy: plan must be a Plan, got str\. Give what find_strategy or a comp"
    ):
        getattr(tensoropt, call)("plan")


def test_a_model_that_computes_nothing_is_refused() -> None:
    import tensoropt

    tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    for option in ("mini_time", "mini_parallelism", "data_parallel"):
        with pytest.raises(
            GraphError, match=r"nothing to plan: .* got placeholders at most\. Build a loss and call opt"
        ):
            tensoropt.find_strategy(option, topology="p100")
    for call in (tensoropt.find_frontier, tensoropt.compare, tensoropt.profile_strategies):
        with pytest.raises(GraphError, match=r"nothing to plan: "):
            call(topology="p100")


def test_a_model_that_nothing_minimizes_is_planned_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    import tensorflow as tf

    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    product = tensoropt.matmul(x, tensoropt.get_variable("w", [8, 4]), name="product")
    with caplog.at_level(logging.WARNING, logger="tensoropt"):
        plan = tensoropt.find_strategy(topology="p100")
        assert caplog.text.count("without gradients. Call optimizer.minimize(loss) first to plan training") == 1
        assert not plan.edge(Edge(TensorId("w", 0), "product", 1)).backward
        caplog.clear()
        loss = tensoropt.reduce_mean(product)
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        tensoropt.find_strategy(topology="p100")
        said = r"plan training\. \w+ '(step/)?gradients/.*' \(test_arguments.py:\d+\) is of gradients that Tens"
        assert re.search(said, caplog.text) and "derive optimizers from tensoropt.train.Optimizer" in caplog.text
        caplog.clear()
        tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
        tensoropt.find_strategy(topology="p100")
        assert not caplog.text


def test_updates_that_a_script_writes_itself_are_planned_as_training(caplog: pytest.LogCaptureFixture) -> None:
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    w = tensoropt.get_variable("w", [8, 4])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, w, name="product"))
    tensoropt.group(w.assign(w - 0.1 * tensoropt.gradients(loss, [w])[0]))
    with caplog.at_level(logging.WARNING, logger="tensoropt"):
        plan = tensoropt.find_strategy(topology="p100")
    assert not caplog.text
    assert any("Gradient" in name or "gradients" in name for name in plan.operators)


@pytest.mark.parametrize(("shape", "remedy"), [([0, 8], "Give it a batch that has samples"), ([8, 0], "Leave it out")])
def test_an_input_without_numbers_is_refused(shape: list[int], remedy: str) -> None:
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, shape, name="x")
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [shape[1], 4])))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    said = rf"Placeholder 'x': every size must be at least 1, got the shape \({shape[0]}, {shape[1]}\)\. {remedy}"
    with pytest.raises(GraphError, match=said):
        tensoropt.find_strategy(topology="p100")
