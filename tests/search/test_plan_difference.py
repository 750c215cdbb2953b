"""Two plans side by side."""

from __future__ import annotations

import json
import math

import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.graph.graph import Graph
from tensoropt.plan.plan import Plan
from tensoropt.search.plan_difference import Difference
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import deep, mlp

pytestmark = pytest.mark.pure


def _plan(graph: Graph, baseline: str, devices: int = 4) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True)
    found = apply_baseline(baseline, space)
    return space.plan(found.assignments[0], baseline, alternatives=found.alternatives[0])


def test_layers_that_are_stored_differently_are_named_with_what_that_costs() -> None:
    graph = deep(4, batch=16, width=16)
    one, other = _plan(graph, "data_parallel"), _plan(graph, "zero3")
    difference = Difference.of(one, Plan.from_json(json.loads(json.dumps(other.to_json()))))
    assert difference.same_model and [len(layer.layers) for layer in difference.layers] == [4]
    (layer,) = difference.layers
    assert (layer.split, layer.other_split) == ("batch over 4", "batch over 4")
    assert (layer.pieces, layer.other_pieces) == (1, 4)
    assert math.isclose(layer.more_s, other.time_s - one.time_s, rel_tol=1e-9)  # all layers are there
    assert math.isclose(layer.more_bytes, other.memory_bytes - one.memory_bytes, rel_tol=1e-9)
    for pairs, whole in ((difference.seconds, "time_s"), (difference.bytes, "memory_bytes")):
        for place, plan in enumerate((one, other)):
            assert math.isclose(math.fsum(pair[place] for pair in pairs.values()), getattr(plan, whole), rel_tol=1e-12)
    text = str(difference)
    for part in ("one:   data_parallel on 4", "other: zero3 on 4", "all_gather", "w* ×4", "1/4", "(4 of 4)"):
        assert part in text
    assert json.loads(difference.to_json())["layers"][0]["other_pieces"] == 4


def test_equal_plans_do_not_differ_and_other_models_are_told() -> None:
    plan = _plan(mlp(batch=16), "zero3")
    same = Difference.of(plan, plan)
    assert same.layers == () and "All 2 layers are split and stored alike." in str(same)
    other = Difference.of(plan, _plan(deep(1, batch=16), "zero3", 2))
    assert not other.same_model and "different models" in str(other)
    assert [(layer.layers, layer.split, layer.other_split) for layer in other.layers] == [
        (("w1", "w2"), "batch over 4", None),
        (("w0",), None, "batch over 2"),
    ]
