"""Data parallelism as a strategy of the search space."""

from __future__ import annotations

import collections

import pytest

from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.graph.graph import Graph
from tensoropt.plan.configuration import DEFER, Configuration
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import embedding, mlp, tied

pytestmark = pytest.mark.pure


def _plan(graph: Graph, devices: int) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(devices)))
    plan = space.plan(space.assignment(data_parallel(space)), "data_parallel")
    plan.check(graph)
    return plan


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_variables_are_whole_and_each_gradient_is_all_reduced_once(devices: int) -> None:
    graph = mlp()
    plan = _plan(graph, devices)
    axes = len(plan.mesh.axes)
    for variable in graph.of_type("Variable"):
        assert plan.configuration(variable.name) == Configuration((None,) * axes)
    assert plan.configuration("h") == Configuration(("m",) * axes)
    assert plan.configuration("a") == Configuration(("d0",) * axes)
    backward = collections.Counter(
        (edge.tensor.op, step.kind.value) for edge, entry in plan.edges.items() for step in entry.backward
    )
    assert {key: n for key, n in backward.items() if key[1] != "slice"} == {
        (variable.name, "all_reduce"): 1 for variable in graph.of_type("Variable")
    }
    forward = [
        (str(edge), step.kind.value)
        for edge, entry in plan.edges.items()
        for step in entry.forward
        if not step.kind.is_local
    ]
    assert forward == [("loss:0 -> loss:0/sink[0]", "all_reduce")]


def test_a_shared_variable_is_reduced_once() -> None:
    plan = _plan(tied(), 4)
    assert plan.configuration("w/fanout0") == Configuration((DEFER, DEFER))
    reduced = [str(edge) for edge, entry in plan.edges.items() if any(not s.kind.is_local for s in entry.backward)]
    assert reduced == ["w:0 -> w/fanout0[0]"]


def test_a_batch_that_devices_do_not_divide_is_computed_whole() -> None:
    plan = _plan(mlp(batch=6), 4)
    assert {str(entry.configuration) for entry in plan.operators.values()} == {"*,*"}
    assert plan.edges == {}


def test_one_device_needs_no_steps() -> None:
    assert _plan(mlp(), 1).edges == {}


def test_an_embedding_splits_its_batch() -> None:
    plan = _plan(embedding(), 4)
    assert plan.configuration("table") == Configuration((None, None))
    assert plan.configuration("ids") == Configuration(("d0", "d0"))
    assert len(set(plan.configuration("rows").actions)) == 1
    assert plan.configuration("rows").actions[0] is not None
