"""What a plan is explained by: parts that add up, collectives, and runner-ups, which brute force finds too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu, v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import TensorOptError
from tensoropt.graph.graph import Graph
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration, at
from tensoropt.plan.plan import Plan
from tensoropt.problem.brute_force import brute_force
from tensoropt.search.alternatives import RIVALS, explained, runner_up
from tensoropt.search.explanation import COLLECTIVES, Explanation
from tensoropt.search.finding import NO_LIMIT
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tensoropt.space.traffic import sent_bytes
from tests.plan.small_graphs import (
    convolutions,
    deep,
    embedding,
    mlp,
    remembering,
    tied,
    trained,
    trained_mlp,
    two_lookups,
)

pytestmark = pytest.mark.pure

_MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp(batch=16, width=32),
    "bfloat16": lambda: mlp(batch=16, width=32, dtype="bfloat16"),
    "trained_mlp": trained_mlp,
    "slots": lambda: trained(mlp(batch=16), "w1", slots=2),
    "deep": lambda: deep(4, batch=16, width=16),
    "convolutions": lambda: convolutions(batch=16),
    "tied": lambda: tied(batch=16, more=2),
    "remembering": lambda: remembering(batch=16),
    "embedding": lambda: embedding(batch=16),
    "two_lookups": lambda: two_lookups(batch=16),
}


def _space(graph: Graph, devices: int = 4) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True)


def _plan(space: SearchSpace, name: str = "ft", point: int = -1) -> Plan:
    found = get_finder(name).find(space).frontier
    return space.plan(found.assignments[point], name, alternatives=found.alternatives[point])


@pytest.mark.parametrize("model", _MODELS)
def test_parts_add_up_for_any_plan_of_ten_models(model: str) -> None:
    for name in ("data_parallel", "zero3", "ft"):
        space = _space(_MODELS[model]())
        try:
            plan = _plan(space, name, 0)
        except TensorOptError:
            continue  # it does not apply
        explanation = Explanation.of(Plan.from_json(json.loads(json.dumps(plan.to_json()))))
        assert math.isclose(math.fsum(explanation.seconds.values()), plan.time_s, rel_tol=1e-12)
        assert math.isclose(math.fsum(explanation.bytes.values()), plan.memory_bytes, rel_tol=1e-12)
        network_s = float(space.network_seconds(*_strategy(space, plan))[0])
        own = ("compute", "compute again", "update", "local copies", "constant")
        told = math.fsum(value for part, value in explanation.seconds.items() if part not in own)
        assert math.isclose(told, network_s, rel_tol=1e-9, abs_tol=1e-15)
        assert explanation.peak is not None
        assert math.isclose(math.fsum(explanation.peak.bytes.values()), plan.peak_bytes, rel_tol=1e-12)
        sent = math.fsum(one.sent_bytes for one in explanation.collectives)
        if explanation.collectives_in_all == sum(len(one.edges) for one in explanation.collectives):
            assert math.isclose(sent, sent_bytes(plan))
        else:
            assert len(explanation.collectives) == COLLECTIVES


def _strategy(space: SearchSpace, plan: Plan) -> tuple[tuple[int, ...], list[int]]:
    assignment = space.assignment({op.name: plan.configuration(op.name) for op in space.operators})
    keeps = [("both", "before", "after").index(plan.edge(edge).keep) for edge in space.edges]
    return assignment, [0] * len(space.operators) + keeps


@pytest.mark.parametrize("make", [lambda: deep(1, batch=6, width=6), lambda: embedding(batch=6, rows=12, width=6)])
@pytest.mark.parametrize("devices", [2, 3])
def test_a_runner_up_is_what_brute_force_finds_without_the_choice(make: Callable[[], Graph], devices: int) -> None:
    space = _space(make(), devices)
    plan, tried = _plan(space), 0
    for op in space.operators:
        chosen = plan.configuration(op.name)
        cuts = sorted(action for action in chosen.actions if action)
        others = tuple(c for c in space.choices(op.name) if sorted(a for a in c.actions if a) != cuts)
        if not others or traits(op).is_sink:
            continue
        smaller = SearchSpace(space.graph, space.cost, allowed={op.name: others}, reuse=True)
        frontier = brute_force(smaller.problem)
        found = runner_up(space, op.name, chosen, NO_LIMIT)
        assert found is not None and math.isclose(found.time_s, float(frontier.time_s[-1]), rel_tol=1e-9), op.name
        assert space.choices(op.name)[found.assignment[space.operators.index(op)]] in others
        for limit in np.unique(frontier.memory_bytes).tolist():
            within = runner_up(space, op.name, chosen, MemoryLimit(limit, "test"))
            assert within is not None and within.memory_bytes <= limit
            assert within.time_s >= frontier.best(limit).time_s * (1 - 1e-9)
        assert runner_up(space, op.name, chosen, MemoryLimit(float(frontier.memory_bytes[0]) / 2, "test")) is None
        tried += 1
    assert tried >= 4


def test_every_split_layer_has_a_runner_up_that_loses_to_the_fastest_plan() -> None:
    space = _space(mlp(batch=64, width=256, classes=64))
    plan = _plan(space)
    explanation = explained(plan, space)
    assert explanation.missing is None and explanation.runner_ups is not None and explanation.rivals is not None
    split = [one for one in explanation.runner_ups if one.lost_s is not None]
    assert split and all(one.lost_s is not None and one.lost_s >= 0 and one.instead != one.split for one in split)
    rivals = {one.name: one for one in explanation.rivals}
    assert tuple(rivals) == RIVALS
    for name in ("data_parallel", "zero2", "zero3"):
        alone = float(apply_baseline(name, space).time_s[0])
        assert rivals[name].time_s == alone >= plan.time_s
        assert "slower" in rivals[name].why or alone == plan.time_s
    text = str(explanation)
    for part in ("Time of a step", "Memory of a device", "Second-best splits", "Known layouts", "data_parallel"):
        assert part in text
    data = json.loads(explanation.to_json())
    assert [row["layers"] for row in data["layers"]] == [["w1"], ["w2"]]
    assert data["seconds"] == dict(explanation.seconds) and len(data["runner_ups"]) == len(explanation.runner_ups)


def test_a_plan_that_was_chosen_for_its_memory_is_compared_with_what_takes_no_more() -> None:
    space = _space(mlp(batch=64, width=64, classes=16))
    frontier = get_finder("ft").find(space).frontier
    plan = space.plan(frontier.assignments[0], "mini_memory", alternatives=frontier.alternatives[0])
    explanation = explained(plan, space)
    assert explanation.runner_ups
    for one in explanation.runner_ups:
        assert one.memory_bytes is None or one.memory_bytes <= plan.memory_bytes * 1.001
        assert one.lost_s is None or one.lost_s >= -1e-12


def test_a_limit_of_memory_holds_for_runner_ups_and_rivals_say_that_they_do_not_fit() -> None:
    space = _space(mlp(batch=64, width=256, classes=64))
    frontier = get_finder("ft").find(space).frontier
    limit = float(frontier.memory_bytes[0]) * 1.05
    point = frontier.best(limit)
    notes = {"memory_limit_bytes": limit}
    plan = space.plan(point.assignment, "mini_time", notes, alternatives=point.alternatives)
    explanation = explained(plan, space)
    assert explanation.runner_ups and explanation.rivals
    assert all(one.memory_bytes is None or one.memory_bytes <= limit for one in explanation.runner_ups)
    (common,) = [one for one in explanation.rivals if one.name == "data_parallel"]
    assert common.fits is False and "does not fit" in common.why


def test_a_plan_outside_of_the_space_is_explained_without_runner_ups() -> None:
    space = SearchSpace(mlp(batch=16), AnalyticCost(cpu(4)), placements=True)
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    plan = space.plan(space.assignment(chosen | {"h": Configuration((at(1), "m"))}), "by hand")
    explanation = explained(plan, _space(mlp(batch=16)))
    assert explanation.runner_ups is None and "that the searched space has not" in str(explanation.missing)
    assert explanation.peak is None and explanation.rivals is not None


def test_equal_collectives_of_a_deep_model_are_one() -> None:
    space = SearchSpace(deep(8, batch=16), AnalyticCost(v100(1)), reuse=True)
    explanation = Explanation.of(_plan(space, "data_parallel"))
    (first, *_) = explanation.collectives
    assert (first.kind, first.when, first.axes, len(first.edges)) == ("all_reduce", "backward", "data", 8)
    assert "w*:0 -> h*[1] ×8" in str(explanation) and "the plan's model is not here" in str(explanation)


def test_nothing_possible_is_no_runner_up() -> None:
    space = _space(mlp(batch=16))
    plan = _plan(space)
    assert runner_up(space, "h", plan.configuration("h"), MemoryLimit(1.0, "test")) is None
    alone = SearchSpace(space.graph, space.cost, allowed={"h": (plan.configuration("h"),)}, reuse=True)
    assert runner_up(alone, "h", plan.configuration("h"), NO_LIMIT) is None
