"""Measured steps beside predictions: who comes last waits for nobody, and work is the slowest rank's."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tensoropt.cluster import CollectiveProfile, ProfileEntry
from tensoropt.cluster.presets import cpu
from tensoropt.cost import Curve, OpProfile, OpTime, ProfiledCost, gradient_positions, profile_key, whole_key
from tensoropt.errors import ProblemError
from tensoropt.graph.graph import Edge
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan
from tensoropt.plan.recorded_steps import Kernel, RankSteps
from tensoropt.search.measurement import Measurement
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp

pytestmark = pytest.mark.pure

_COLLECTIVES = [
    ProfileEntry(kind, (2,), (64, 4096), (1e-4, 3e-4))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
]
_EDGE = Edge(TensorId("w"), "product", 1)


def _plan() -> Plan:
    product = OperatorPlan(Configuration(("m",)), 3.0, 0.0)
    return Plan(Mesh((2,)), "graph", "mini_time", {"product": product}, {_EDGE: EdgePlan(time_s=2.0)}, 5.0, 0.0, {})


def _rank(work: float, waits: float, timed: tuple[float, ...] = (6.0, 8.0)) -> RankSteps:
    kernels = (
        Kernel("p/product", "product", False, False, 0.0, work),
        Kernel("p/all_reduce", str(_EDGE), True, True, work, 1.5 + waits),
        Kernel("p/back", "product", True, False, work + 1.5 + waits, 1.0),
        Kernel("p/gather", str(_EDGE), False, True, work + 3.0 + waits, 0.5),
    )
    return RankSteps(timed, (kernels, kernels))


def test_a_step_is_told_by_operators_and_edges() -> None:
    found = Measurement.of(_plan(), [_rank(2.0, 1.0), _rank(3.0, 0.0, (7.0, 9.0))])
    assert (found.step_s, found.predicted_s) == (8.0, 5.0)
    assert found.error == pytest.approx(3 / 8)
    rows = {row.subject: row for row in found.rows}
    product, edge = rows["product"], rows[str(_EDGE)]
    assert (product.seconds, product.predicted_s, product.error_s, product.communicates) == (4.0, 3.0, 1.0, False)
    assert (edge.seconds, edge.predicted_s, edge.waited_s, edge.communicates) == (2.0, 2.0, 1.0, True)
    assert [row.subject for row in found.rows] == ["product", str(_EDGE)]
    text = str(found)
    assert "a step took 8 s, predicted were 5 s (-38%)" in text and "In all work 4 s, predicted 3 s" in text
    assert json.loads(found.to_json())["rows"][0]["error_s"] == 1.0


def test_kernels_that_run_at_once_share_the_time() -> None:
    kernels = (
        Kernel("a", "product", False, False, 0.0, 4.0),
        Kernel("b", str(_EDGE), False, False, 1.0, 2.0),
        Kernel("c", "product", True, False, 6.0, 1.0),
    )
    rank = RankSteps((7.0,), (kernels,))
    found = Measurement.of(_plan(), [rank, rank])
    assert {row.subject: row.seconds for row in found.rows} == {"product": 4.0, str(_EDGE): 1.0}


def test_a_trace_that_slows_steps_down_is_set_to_their_pace() -> None:
    slow = _rank(2.0, 1.0, (3.25, 3.25))  # traced it takes 6.5
    found = Measurement.of(_plan(), [slow, slow])
    rows = {row.subject: row for row in found.rows}
    assert (found.step_s, rows["product"].seconds) == (3.25, pytest.approx(1.5))
    assert found.work_s["product"] == pytest.approx(1.5)


def test_what_steps_took_is_what_the_same_plan_is_then_predicted_to_take() -> None:
    graph = mlp()
    topology = dataclasses.replace(cpu(2), profile=CollectiveProfile.of(_COLLECTIVES))
    packing = Curve((100,), (1e-15,))  # beside collectives nothing, which have no factor of their own
    profile = OpProfile({}, {"sum": Curve((100,), (1e-6,)), "transpose": packing, "slice": packing})
    space = SearchSpace(graph, ProfiledCost(topology, graph, profile))
    times = {}
    for op in space.operators:
        known = op, space.rules[op.name], graph.input_specs(op)
        positions = gradient_positions(graph, op)
        whole = whole_key(*known, space.mesh, *positions)
        for choice in space.choices(op.name):
            times[profile_key(*known, choice, space.mesh, *positions)] = OpTime(op.type, 1e-4, 2e-4, 1e-3, whole=whole)
    profile = dataclasses.replace(profile, times=times)
    space = SearchSpace(graph, ProfiledCost(topology, graph, profile))
    data_parallel = space.assignment({op.name: _first_split(space, op.name) for op in space.operators})
    plan = space.plan(data_parallel, "mini_time", peak=False)
    rank = _took(plan, works=3.0, talks=5.0)
    found = Measurement.of(plan, [rank, rank])

    again = SearchSpace(graph, ProfiledCost(topology, graph, profile.scaled(found.factors(space))))
    once = again.plan(data_parallel, "mini_time", peak=False)
    works = [name for name, entry in plan.operators.items() if entry.time_s > 0]
    talks = [edge for edge, entry in plan.edges.items() if entry.time_s > 0]
    assert len(works) > 3 and len(talks) > 1
    for name in works:
        assert once.operators[name].time_s == pytest.approx(3 * plan.operators[name].time_s), name
    for edge in talks:
        assert once.edges[edge].time_s == pytest.approx(5 * plan.edges[edge].time_s), str(edge)
    # What comes true once changes nothing.
    assert Measurement.of(plan, [rank, rank]).factors(again) == pytest.approx(dict.fromkeys(found.factors(again), 1.0))


def _first_split(space: SearchSpace, name: str) -> Configuration:
    """By the batch where an operator has one."""
    choices = space.choices(name)
    return next((choice for choice in choices if choice.actions[0] is not None), choices[0])


def _took(plan: Plan, works: float, talks: float) -> RankSteps:
    """A rank where work and collectives take so many times what is predicted."""
    took = [(name, False, works * entry.time_s) for name, entry in plan.operators.items()]
    took += [(str(edge), True, talks * entry.time_s) for edge, entry in plan.edges.items()]
    kernels, now_s = [], 0.0
    for subject, collective, seconds in took:
        kernels.append(Kernel(f"{subject}/kernel", subject, False, collective, now_s, seconds))
        now_s += seconds
    return RankSteps((1e3,), (tuple(kernels),))


def test_a_trace_has_all_ranks_and_the_prediction_below() -> None:
    found = Measurement.of(_plan(), [_rank(2.0, 1.0), _rank(3.0, 0.0)])
    predicted = {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "device 0"}},
            {"ph": "X", "name": "product", "pid": 0, "tid": 0, "ts": 0.0, "dur": 3e6},
        ]
    }
    events = json.loads(found.chrome_trace(predicted))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0, measured", 1: "rank 1, measured", 2: "device 0, predicted"}
    spans = [event for event in events if event["ph"] == "X"]
    assert all(isinstance(event["ts"], float) and event["dur"] >= 0 for event in spans)
    assert [sum(event["pid"] == pid for event in spans) for pid in (0, 1, 2)] == [4, 4, 1]
    assert {event["tid"] for event in spans if "all_reduce" in event.get("args", {}).get("kernel", "")} == {1}


@pytest.mark.parametrize(
    "ranks",
    [[RankSteps((), ())], [_rank(1.0, 0.0), RankSteps((1.0, 1.0), ())], [RankSteps((1.0,), ())]],
    ids=["none", "one rank less", "none traced"],
)
def test_steps_that_say_nothing_are_refused(ranks: list[RankSteps]) -> None:
    with pytest.raises(ProblemError, match="must have run the same training steps, two at least"):
        Measurement.of(_plan(), ranks)
