"""The table of a plan by layers: what it says, and that it needs nothing but the plan."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Graph
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import PlanSummary, axes_text, family_name
from tensoropt.search.explanation import Explanation
from tensoropt.search.plan_difference import Difference
from tensoropt.search.strategy_table import StrategyTable, fitted
from tensoropt.space.space import SearchSpace
from tensoropt.storage.document import parse_json
from tests.plan.small_graphs import deep, mlp, trained_mlp
from tests.storage.mutations import mutated_document

pytestmark = pytest.mark.pure


def _plan(graph: Graph, baseline: str, devices: int = 4) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True)
    found = apply_baseline(baseline, space)
    plan = space.plan(found.assignments[0], baseline, alternatives=found.alternatives[0])
    return Plan.from_json(json.loads(json.dumps(plan.to_json())))


def _by_hand(graph: Graph, actions: dict[str, tuple[str | None, ...]]) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(4)), reuse=True)
    chosen = {op.name: Configuration(actions.get(op.name, (None, None))) for op in space.operators}
    return space.plan(space.assignment(chosen), "by hand")


def test_rows_add_up_to_the_plan_and_equal_layers_are_one() -> None:
    plan = _plan(deep(6, batch=16), "data_parallel")
    table = StrategyTable.of(plan)
    rows = table.to_json()
    assert plan.setting is not None
    assert [layer for row in rows for layer in row["layers"]] == [f"w{i}" for i in range(6)]
    assert max(len(row["layers"]) for row in rows) >= 4  # the first and the last one may differ
    seconds = math.fsum(row["own_s"] + row["network_s"] for row in rows) + plan.setting.constant_s
    assert math.isclose(seconds, plan.time_s, rel_tol=1e-12)
    assert math.isclose(math.fsum(row["memory_bytes"] for row in rows), plan.memory_bytes, rel_tol=1e-12)
    assert "w* ×" in str(table)


def test_what_is_not_data_parallel_is_marked() -> None:
    assert not any(row["differs"] for row in StrategyTable.of(_plan(trained_mlp(), "data_parallel")).to_json())
    (first, second) = StrategyTable.of(_plan(mlp(batch=16), "zero3")).to_json()
    assert (first["split"], first["pieces"], first["differs"]) == ("batch over 4", 4, True)
    assert "* w1" in str(StrategyTable.of(_plan(mlp(batch=16), "zero3"))) and second["layers"] == ("w2",)


def test_splits_are_said_in_words_and_mesh_axes_have_names() -> None:
    mixed = _by_hand(mlp(batch=16), {"h": ("m", "n"), "w1": (None, "d1"), "y": ("m", "k"), "w2": (None, "d0")})
    summary = PlanSummary(mixed)
    assert [layer.text for layer in summary.layers] == ["batch over 2 × columns over 2", "batch over 2 × rows over 2"]
    assert [(axis.name, axis.size) for axis in summary.mesh] == [("data", 2), ("model", 2)]
    assert "mesh: data 2 × model 2" in str(StrategyTable.of(mixed))
    assert axes_text((0, 1), summary.mesh) == "data × model" and axes_text((1,), summary.mesh) == "model"
    alike = PlanSummary(_by_hand(mlp(batch=16), {"h": ("n", "n"), "y": ("k", "k")}))
    assert [(axis.name, axis.size) for axis in alike.mesh] == [("model", 4)]
    assert axes_text((1,), alike.mesh) == "model[1]"
    crossed = PlanSummary(_by_hand(mlp(batch=16), {"h": ("m", "n"), "y": ("k", "m")}))
    assert [axis.name for axis in crossed.mesh] == ["a", "b"]


def test_it_fits_80_columns_and_names_are_shortened_in_their_middle() -> None:
    plan = _plan(mlp(batch=16), "zero3")
    scope = "transformer_encoder_layer_17/self_attention_block/query_projection_of_all_heads"
    operators = {
        name: entry
        if entry.about is None
        else dataclasses.replace(entry, about=dataclasses.replace(entry.about, layer=f"{scope}/{entry.about.layer}"))
        for name, entry in plan.operators.items()
    }
    out = io.StringIO()
    StrategyTable.of(dataclasses.replace(plan, operators=operators)).show(Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.rstrip().split()[1:2] == [fitted(f"{scope}/w1", 25)]]
    assert line.startswith("* transfor…") and "_heads/w1 batch over 4" in line
    assert fitted("short", 5) == "short" and len(fitted(scope, 20)) == 20


def test_numbers_in_names_of_equal_layers_are_left_out() -> None:
    assert family_name(["a1/b0", "a2/b0"]) == "a*/b0" and family_name(["a1"]) == "a1"


def test_a_plan_of_before_says_what_to_do() -> None:
    plan = dataclasses.replace(_plan(mlp(), "data_parallel"), setting=None)
    with pytest.raises(PlanError, match=r"says nothing of its operators.*find_strategy.*full=True"):
        StrategyTable.of(plan)


def test_a_file_is_shown_without_tensorflow(tmp_path: Path) -> None:
    _plan(mlp(batch=16), "zero3").save(tmp_path / "plan.json")
    program = (
        "import sys; from tensoropt.plan.plan import Plan; from tensoropt.search.strategy_table import StrategyTable\n"
        f"StrategyTable.of(Plan.load({str(tmp_path / 'plan.json')!r})).show(); assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "zero3 on 4 devices" in done.stdout and "batch over 4" in done.stdout


def test_whatever_loads_is_shown_or_refused() -> None:
    document = json.loads(json.dumps(_plan(mlp(batch=16), "zero3").to_json()))
    seeded, shown = random.Random(0), 0
    for _ in range(400):
        try:
            plan = Plan.from_json(parse_json(mutated_document(document, seeded)))
        except (PlanError, ValueError):
            continue
        try:
            texts = [str(StrategyTable.of(plan)), str(Explanation.of(plan)), str(Difference.of(plan, plan))]
        except PlanError:
            continue
        assert all(text.replace("\n", "").isprintable() for text in texts)
        shown += 1
    assert 40 < shown < 400
