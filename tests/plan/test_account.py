"""What a plan's file says to readers who have no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.spec import TensorSpec
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import trained_mlp

pytestmark = pytest.mark.pure


def _plan() -> Plan:
    space = SearchSpace(trained_mlp(), AnalyticCost(cpu(4)), reuse=True)
    found = apply_baseline("zero3", space)
    return space.plan(found.assignments[0], "zero3", alternatives=found.alternatives[0])


def test_a_file_has_what_operators_are_and_the_cluster(tmp_path: Path) -> None:
    plan = _plan()
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan and loaded.graph is None
    about = loaded.operators["w1"].about
    assert about is not None and plan.graph is not None
    assert about.outputs == (TensorSpec(plan.graph["w1"].outputs[0].shape, "float32"),)
    assert (about.type, about.role, about.held) == ("Variable", "variable", "weights")
    assert loaded.setting is not None and loaded.setting.batch == 8
    assert [(level.name, level.size) for level in loaded.setting.levels] == [("device", 4)]
    assert {move.kind for entry in loaded.edges.values() for move in entry.moves} >= {"all_gather", "reduce_scatter"}


def test_a_file_of_the_first_version_loads_without_all_that() -> None:
    plan = _plan()
    old = json.loads(json.dumps(plan.to_json()))
    old["schema_version"] = 1
    del old["setting"]
    for entry in old["operators"].values():
        entry.pop("about", None)
    for entry in old["edges"]:
        entry.pop("moves", None)
    loaded = Plan.from_json(old)
    assert loaded.setting is None and all(entry.about is None for entry in loaded.operators.values())
    assert {edge: entry.forward for edge, entry in loaded.edges.items()} == {
        edge: entry.forward for edge, entry in plan.edges.items()
    }
    assert plan.graph is not None
    loaded.check(plan.graph)
    for extra in ({"setting": None}, {"operators": plan.to_json()["operators"]}, {"edges": plan.to_json()["edges"]}):
        with pytest.raises(PlanError, match="unknown field"):
            Plan.from_json(old | extra)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (("setting",), {}, "field 'setting': field 'cluster' is missing"),
        (("setting", "levels"), 3, "must be an array"),
        (("setting", "levels"), [{"name": "a"}], r"levels\[0\]: field 'size' is missing"),
        (("setting", "batch"), 0, "must be at least 1"),
        (("operators", "w1", "about", "role"), "boss", "field 'role' must be one of variable, slot"),
        (("operators", "w1", "about", "held"), 1, "must be a string"),
        (("operators", "w1", "about", "outputs"), [{"shape": [-1], "dtype": "float32"}], "must be at least 0"),
        (("operators", "w1", "about", "words"), {"d0": 1}, "must be a string"),
        (("operators", "w1", "about", "more"), 1, "unknown field 'more'"),
        (("edges", 0, "moves"), [{"kind": "all_gather"}], "field 'when' is missing"),
        (("edges", 0, "moves", 0, "axes"), [9], "field 'axes' must name axes of"),
        (("edges", 0, "moves", 0, "when"), "later", "field 'when' must be one of forward"),
        (("edges", 0, "moves", 0, "seconds"), -1, "must be at least 0"),
    ],
)
def test_what_is_wrong_in_it_is_named(field: tuple[Any, ...], value: Any, message: str) -> None:
    data = json.loads(json.dumps(_plan().to_json()))
    data["edges"] = [entry for entry in data["edges"] if entry.get("moves")]
    place = data
    for name in field[:-1]:
        place = place[name]
    place[field[-1]] = value
    with pytest.raises(PlanError, match=message):
        Plan.from_json(data)
