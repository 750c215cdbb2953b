"""Plans: through a file and back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh, Step, StepKind
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan, row_edges, rules_of
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import assigning, embedding, mlp, tied, two_lookups

pytestmark = pytest.mark.pure


def _plan(graph: Graph, devices: int = 4, seed: int = 0) -> Plan:
    """The plan of random configurations."""
    space = SearchSpace(graph, AnalyticCost(cpu(devices)))
    random = np.random.default_rng(seed)
    assignment = [int(random.integers(len(space.choices(op.name)))) for op in space.operators]
    return space.plan(assignment, "random", {"exact": True, "seed": seed})


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("make", [mlp, tied])
def test_a_plan_survives_its_file(make: Any, devices: int, tmp_path: Path) -> None:
    graph = make(batch=24)
    for seed in range(5):
        plan = _plan(graph, devices, seed)
        plan.check(graph)
        plan.save(tmp_path / "plan.json")
        loaded = Plan.load(tmp_path / "plan.json")
        assert loaded == plan
        loaded.check(graph)


def test_equal_plans_are_equal_text(tmp_path: Path) -> None:
    for name in ("one", "other"):
        _plan(mlp(), seed=3).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_a_plan_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    plan = _plan(mlp(), seed=3)
    with pytest.raises(
        PlanError, match=r"Plan: cannot be written to '.*/no/plan\.json': No such file or directory\. Give"
    ):
        plan.save(tmp_path / "no" / "plan.json")
    with pytest.raises(
        PlanError, match=r"Plan: cannot be written to '.*': Is a directory\. Give a file in a directory"
    ):
        plan.save(tmp_path / ".." / tmp_path.name)
    assert list(tmp_path.iterdir()) == []
    assert not list(tmp_path.parent.glob("*.part"))


def test_text_does_not_depend_on_the_order_in_which_a_plan_was_put_together() -> None:
    plan = _plan(mlp(), seed=3)
    turned = dataclasses.replace(
        plan,
        operators=dict(reversed(list(plan.operators.items()))),
        edges=dict(reversed(list(plan.edges.items()))),
        notes=dict(reversed(list(plan.notes.items()))),
    )
    assert turned == plan
    assert json.dumps(turned.to_json()) == json.dumps(plan.to_json())


def test_an_edge_that_is_left_out_has_no_steps() -> None:
    plan = _plan(mlp(), devices=1)
    assert plan.edges == {}
    assert plan.edge(Edge(TensorId("x"), "h", 0)) == EdgePlan()


def test_what_is_kept_is_in_the_file_only_where_it_is_not_both(tmp_path: Path) -> None:
    plan = _plan(mlp(), seed=3)
    moved = [edge for edge, entry in sorted(plan.edges.items()) if entry.forward]
    kept = dict(zip(moved, ("before", "after", "before"), strict=False))
    edges = {edge: dataclasses.replace(e, keep=kept.get(edge, "both")) for edge, e in plan.edges.items()}
    changed = dataclasses.replace(plan, edges=edges)
    assert all("keep" not in entry for entry in plan.to_json()["edges"])
    written = [entry["keep"] for entry in changed.to_json()["edges"] if "keep" in entry]
    assert written == list(kept.values())
    changed.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == changed


def test_keeping_something_else_is_refused() -> None:
    step = Step(StepKind.SLICE, (0,), 0)
    with pytest.raises(PlanError, match=r"keep must be one of 'both', 'before', 'after'\. Got 'none'"):
        EdgePlan((step,), keep="none")
    with pytest.raises(PlanError, match=r"keep='before' chooses between .* Got no forward steps"):
        EdgePlan((), (step,), keep="before")


def test_an_operator_that_is_missing_is_named() -> None:
    with pytest.raises(PlanError, match="has no operator 'nothing'"):
        _plan(mlp()).configuration("nothing")


def test_a_plan_for_another_graph_is_refused() -> None:
    with pytest.raises(PlanError, match=r"was made for the graph .* call find_strategy again"):
        _plan(mlp()).check(mlp(width=8))


def test_a_plan_that_lacks_an_operator_is_refused() -> None:
    graph, plan = mlp(), _plan(mlp())
    operators = {name: entry for name, entry in plan.operators.items() if name != "a"}
    with pytest.raises(PlanError, match="has no operator 'a'"):
        dataclasses.replace(plan, operators=operators).check(graph)


def test_a_plan_with_an_illegal_configuration_is_refused() -> None:
    graph, plan = mlp(), _plan(mlp())
    operators = dict(plan.operators) | {"x": OperatorPlan(Configuration(("d1", "d1")), 0.0, 0.0)}
    with pytest.raises(PlanError, match=r"cannot run\. Placeholder 'x': axis 'd1' \(size 6\) .* 6 % 4 != 0"):
        dataclasses.replace(plan, operators=operators).check(graph)


def _whole(graph: Graph, devices: int) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(devices)))
    return space.plan([len(space.choices(op.name)) - 1 for op in space.operators], "whole")


def test_steps_that_end_elsewhere_are_refused() -> None:
    graph, plan = mlp(), _whole(mlp(), 2)
    edge = Edge(TensorId("h"), "hb", 0)
    slicing = Step(StepKind.SLICE, (0,), 0)
    forward = dataclasses.replace(plan, edges={edge: EdgePlan((slicing,), ())})
    with pytest.raises(
        PlanError, match=r"forward steps of edge h:0 -> hb\[0\] lead from \{\}\{\} to \{0\}\{\}, its ends"
    ):
        forward.check(graph)
    backward = dataclasses.replace(plan, edges={edge: EdgePlan((), (slicing,))})
    with pytest.raises(PlanError, match=r"backward steps of edge h:0 -> hb\[0\] lead from \{\}\{\} to \{0\}\{\}"):
        backward.check(graph)


def test_steps_that_cannot_start_or_do_not_divide_are_refused() -> None:
    graph, plan = mlp(), _whole(mlp(), 4)
    edge = Edge(TensorId("w1"), "h", 1)
    gather = EdgePlan((Step(StepKind.ALL_GATHER, (0,), 0),), ())
    with pytest.raises(PlanError, match=r"cannot run\. Step all_gather\{0\} dim 0: cannot start from layout \{\}\{\}"):
        dataclasses.replace(plan, edges={edge: gather}).check(graph)
    there_and_back = EdgePlan((Step(StepKind.SLICE, (0, 1), 0), Step(StepKind.ALL_GATHER, (0, 1), 0)), ())
    with pytest.raises(PlanError, match=r"cannot run\. w1:0 -> h\[1\]: dimension 0 \(size 6\) .* 6 % 4 != 0"):
        dataclasses.replace(plan, edges={edge: there_and_back}).check(graph)


def test_a_permute_that_does_not_find_its_pieces_is_refused() -> None:
    graph, plan = mlp(), _whole(mlp(), 2)
    edge = Edge(TensorId("h"), "hb", 0)
    steps = (Step(StepKind.SLICE, (0,), 0), Step(StepKind.PERMUTE, target=Layout(((), ()))))
    with pytest.raises(PlanError, match=r"layout \{0\}\{\} does not hold the same pieces"):
        dataclasses.replace(plan, edges={edge: EdgePlan(steps, ())}).check(graph)


def test_an_edge_that_the_graph_has_not_is_refused() -> None:
    plan = _whole(mlp(), 2)
    stray = Edge(TensorId("x"), "hb", 0)
    step = Step(StepKind.SLICE, (0,), 0)
    with pytest.raises(PlanError, match=r"edge x:0 -> hb\[0\] is not in the graph"):
        dataclasses.replace(plan, edges={stray: EdgePlan((step,), ())}).check(mlp())


def test_an_operator_that_the_graph_has_not_is_refused() -> None:
    plan = _whole(mlp(), 2)
    operators = dict(plan.operators) | {"stray": plan.operators["x"]}
    with pytest.raises(PlanError, match="operator 'stray' is not in the graph"):
        dataclasses.replace(plan, operators=operators).check(mlp())


@pytest.mark.parametrize("version", [None, 0, 3, "1"])
def test_another_schema_version_is_refused(version: Any) -> None:
    data = _plan(mlp()).to_json() | {"schema_version": version}
    with pytest.raises(PlanError, match=r"schema_version is .*, this version of tensoropt reads 1 and 2"):
        Plan.from_json(data)


@pytest.mark.parametrize("data", [[], "plan", None, 3])
def test_json_of_something_else_is_refused(data: Any) -> None:
    with pytest.raises(PlanError, match="schema_version is None"):
        Plan.from_json(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mesh", [1, 2]),
        ("mesh", None),
        ("edges", [{}]),
        ("edges", [{"tensor": "x", "consumer": "h", "position": 0, "forward": [], "backward": [], "time_s": 0}]),
        ("edges", 3),
        ("operators", []),
        ("operators", {"x": {"actions": 3, "time_s": 0, "memory_bytes": 0}}),
        ("time_s", "soon"),
        ("notes", 5),
    ],
)
def test_wrong_fields_are_refused(field: str, value: Any) -> None:
    data = _plan(mlp()).to_json() | {field: value}
    with pytest.raises(PlanError, match=r"not a plan: .*Save it with Plan\.save"):
        Plan.from_json(data)


@pytest.mark.parametrize("field", ["graph", "mesh", "option", "operators", "edges", "time_s", "memory_bytes", "notes"])
def test_missing_fields_are_refused(field: str) -> None:
    data = _plan(mlp()).to_json()
    del data[field]
    with pytest.raises(PlanError, match=rf"not a plan: the document: field '{field}' is missing"):
        Plan.from_json(data)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Plan '.*absent\.json': cannot be read"):
        Plan.load(tmp_path / "absent.json")
    (tmp_path / "half.json").write_text('{"schema_version": 1, "gra')
    with pytest.raises(PlanError, match=r"Plan '.*half\.json': cannot be read"):
        Plan.load(tmp_path / "half.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=r"Plan '.*binary\.json': cannot be read"):
        Plan.load(tmp_path / "binary.json")


def test_every_operator_has_a_rule() -> None:
    graph = mlp()
    assert list(rules_of(graph)) == [op.name for op in graph.operators]


def test_operators_that_are_alike_have_one_rule() -> None:
    spec = TensorSpec((4, 6), "float32")
    keep = MappingProxyType({"keep_dims": False})
    by_rows, by_columns = (MappingProxyType({1: np.array([axis], np.int32)}) for axis in (0, 1))
    sums = [
        Operator(name, "Sum", (TensorId("x"),), (TensorSpec(shape, "float32"),), keep, static)
        for name, shape, static in (
            ("a", (6,), by_rows),
            ("b", (6,), MappingProxyType({1: np.array([0], np.int32)})),
            ("c", (4,), by_columns),
        )
    ]
    rules = rules_of(Graph((Operator("x", "Placeholder", (), (spec,)), *sums)))
    assert rules["a"] is rules["b"] and rules["a"] != rules["c"]
    assert all(rules[op.name] == rule_of(op, (spec,)) for op in sums)


def test_the_mesh_is_that_of_the_topology() -> None:
    assert _plan(mlp(), devices=6).mesh == Mesh((2, 3))


def test_a_variable_that_is_not_assigned_where_it_is_held_is_refused() -> None:
    graph = assigning()
    plan = _whole(graph, 2)
    split = OperatorPlan(Configuration(("d0",)), 0.0, 0.0)
    step = Step(StepKind.SLICE, (0,), 0)
    edges = {Edge(TensorId(name), "write", position): EdgePlan((step,)) for position, name in enumerate(("v", "x"))}
    moved = dataclasses.replace(plan, operators=dict(plan.operators) | {"write": split}, edges=edges)
    with pytest.raises(PlanError, match=r"edge v:0 -> write\[0\] moves a variable .* from \{\}\{\} to \{0\}\{\}"):
        moved.check(graph)


def test_gradients_of_lookups_go_back_as_rows_through_their_fan_out() -> None:
    one, two, none = embedding(), two_lookups(), tied()
    assert {str(edge) for edge in row_edges(one, rules_of(one))} == {"table:0 -> rows[0]"}
    assert {str(edge) for edge in row_edges(two, rules_of(two))} == {
        "table:0 -> table/fanout0[0]",
        "table/fanout0:0 -> one[0]",
        "table/fanout0:0 -> other[0]",
    }
    assert row_edges(none, rules_of(none)) == frozenset()


def test_an_edge_of_rows_has_no_steps_back() -> None:
    graph = two_lookups()
    for seed in range(5):
        plan = _plan(graph, 4, seed)
        plan.check(graph)
        for edge in row_edges(graph, rules_of(graph)):
            assert plan.edge(edge).backward == ()
