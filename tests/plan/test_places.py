"""Parts of a step at different places, the order of their tasks, and the one order of all messages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.exec.engines.global_order import why_not_in_order
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import Configuration, at
from tensoropt.plan.places import Places, Schedule, places_of, schedule
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import deep, embedding, tied

pytestmark = pytest.mark.pure


def _placed(graph: Graph, devices: int, stage_of: dict[str, int], times: int = 1) -> tuple[Plan, Places]:
    """A plan with operators of a chain of stages, each on one device, and where its operators are."""
    mesh = AnalyticCost(cpu(devices)).mesh
    allowed = {}
    for name, stage in stage_of.items():
        allowed[name] = (Configuration(tuple(at(place) for place in mesh.coordinates(stage))),)
    space = SearchSpace(graph, AnalyticCost(cpu(devices)), allowed=allowed, placements=True, micro_batches=times)
    plan = space.plan([0] * len(space.operators), "by hand")
    places = places_of(space.graph, plan, space.steps)
    assert places is not None
    return plan, places


def _stages(graph: Graph, stages: int) -> dict[str, int]:
    """Operators of a deep perceptron, its layers in stages of as many each."""
    layers = sum(op.name.startswith("w") for op in graph.operators)
    result = {}
    for op in graph.operators:
        number = op.name[1:]
        result[op.name] = int(number) * stages // layers if number.isdigit() else stages - 1
    first = [op.name for op in graph.operators if not op.inputs and not op.name.startswith("w")]
    return result | dict.fromkeys(first, 0)


def _order(stages: int, times: int, layers: int = 4) -> tuple[Schedule, Plan, Places]:
    graph = deep(layers, batch=16)
    plan, places = _placed(graph, stages, _stages(graph, stages), times)
    each = [op.name for op in places.graph.operators if plan.configuration(op.name).at and not op.name.startswith("w")]
    even = {name: dataclasses.replace(entry, time_s=0.0) for name, entry in plan.operators.items()}
    for stage in range(stages):  # each stage takes three seconds for each micro-batch
        name = next(name for name in each if places.part[name].level == stage)
        even[name] = dataclasses.replace(even[name], time_s=3.0 * times)
    free = {edge: dataclasses.replace(entry, time_s=0.0) for edge, entry in plan.edges.items()}
    plan = dataclasses.replace(plan, operators=even, edges=free)
    return schedule(places, plan, each, times), plan, places


@pytest.mark.parametrize(("stages", "times"), [(2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8)])
def test_equal_stages_take_what_one_forward_one_backward_takes(stages: int, times: int) -> None:
    order, _, places = _order(stages, times)
    # Three seconds for each micro-batch, and as many for each stage before the first one is through.
    assert order.seconds == pytest.approx(3.0 * (times + stages - 1), abs=1e-6)
    done = [(task.part.level, task.time, task.backward) for task in order.tasks if task.source is None]
    assert len(done) == len(set(done)) == 2 * stages * times
    for stage in range(stages):
        own = [(time, backward) for level, time, backward in done if level == stage]
        flying = np.cumsum([-1 if backward else 1 for _, backward in own])
        assert max(flying) == min(times, stages - stage)
    assert {places.part[name].level for name in places.part} >= set(range(stages))


@pytest.mark.parametrize("stages", [2, 4])
def test_messages_between_stages_are_in_one_order(stages: int) -> None:
    order, _, _ = _order(stages, 8)
    ranks: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(stages)]
    for task in order.tasks:
        own = task.part.level
        if task.source is not None:
            other = task.source.level
            message = f"{task.time} {'back' if task.backward else 'on'} to {own}", tuple(sorted((own, other)))
            for rank in message[1]:
                ranks[rank].append(message)
    assert why_not_in_order(ranks) is None
    ranks[0].reverse()
    assert "ank 0 is at" in str(why_not_in_order(ranks))


def test_a_part_ends_where_what_it_makes_comes_back_from_another_place() -> None:
    graph = deep(3, batch=16)
    stage_of = _stages(graph, 1)
    middle = [name for name in stage_of if "1" in name]
    plan, places = _placed(graph, 2, stage_of | dict.fromkeys(middle, 1))
    levels = {name: places.part[name].level for name in places.part}
    last = max(levels.values())
    assert last == 2 and {levels[name] for name in middle if not name.startswith("w")} == {1}
    crossing = [edge for edge in graph.edges() if places.crosses(edge) and not edge.tensor.op.startswith("w")]
    assert crossing and all(levels[edge.tensor.op] < levels[edge.consumer] for edge in crossing)
    plan.check(graph)


def test_ways_of_gradients_end_at_what_is_stopped() -> None:
    graph = tied()
    _, places = _placed(graph, 2, dict.fromkeys((op.name for op in graph.operators), 0))
    losses = [op.name for op in graph.operators if not graph.consumers(TensorId(op.name))]
    sources = [op.name for op in graph.operators if op.name.startswith("w")]
    ways = places.ways(losses, sources)
    assert ways and ways <= graph.differentiable
    stopped = next(iter(sorted(ways))).tensor
    assert all(edge.tensor != stopped for edge in places.ways(losses, sources, [str(stopped)]))


def test_rows_of_a_gradient_come_back_within_a_place_only() -> None:
    graph = embedding()
    everywhere = dict.fromkeys((op.name for op in graph.operators), 0)
    plan, _ = _placed(graph, 2, everywhere)
    plan.check(graph)
    space = SearchSpace(graph, AnalyticCost(cpu(2)), placements=True)
    table = Edge(TensorId("table"), "rows", 0)
    given, wanted = (
        space.choices(name).index(Configuration((at(place),))) for place, name in enumerate(("table", "rows"))
    )
    assert not np.isfinite(space.edge_costs(table, given, wanted)[0])
    with pytest.raises(PlanError, match="rows of a gradient come back"):
        _placed(graph, 2, everywhere | {"table": 1})[0].check(graph)
