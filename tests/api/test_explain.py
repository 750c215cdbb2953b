"""``explain`` and ``diff`` of a script's plans, and of files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tensoropt.cluster.presets import cpu
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan

pytestmark = pytest.mark.tf


def _build() -> None:
    import tensoropt

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [64, 64], name="x")
    hidden = tensoropt.nn.relu(tensoropt.matmul(x, tensoropt.get_variable("w1", [64, 256])))
    loss = tensoropt.reduce_mean(tensoropt.matmul(hidden, tensoropt.get_variable("w2", [256, 64])))
    tensoropt.train.AdamOptimizer(0.1).minimize(loss, name="train")


def test_a_plan_of_the_model_is_explained_whole_and_one_of_a_file_by_itself(tmp_path: Path) -> None:
    import tensoropt

    _build()
    plan = tensoropt.find_strategy(topology=cpu(4))
    explanation = tensoropt.explain(plan)  # its cluster is that of the last search
    assert explanation.missing is None and explanation.runner_ups and explanation.rivals
    assert all(one.lost_s is None or one.lost_s >= 0 for one in explanation.runner_ups)
    out = io.StringIO()
    explanation.show(Console(file=out, width=100))
    assert "Second-best splits" in out.getvalue()
    plan.save(tmp_path / "plan.json")
    read = tensoropt.explain(tmp_path / "plan.json")  # the model is still the current one
    assert read == explanation
    tensoropt.find_strategy(topology=cpu(2))
    far = tensoropt.explain(plan)
    assert far.runner_ups is None and "give topology=" in str(far.missing)
    assert tensoropt.explain(plan, cpu(4)).runner_ups == explanation.runner_ups
    with pytest.raises(PlanError, match=r"explain: the plan is for 4 devices .* topology= is .* Leave it out"):
        tensoropt.explain(plan, cpu(2))
    tensoropt.reset_default_graph()
    tensoropt.get_variable("another", [2])
    alone = tensoropt.explain(str(tmp_path / "plan.json"))
    assert alone.seconds == explanation.seconds


def test_plans_differ_from_data_parallelism(tmp_path: Path) -> None:
    import tensoropt

    _build()
    one = tensoropt.find_strategy("data_parallel", topology=cpu(4))
    other = tensoropt.find_strategy("mini_memory", topology=cpu(4))
    other.save(tmp_path / "plan.json")
    difference = tensoropt.diff(one, tmp_path / "plan.json")
    assert difference == tensoropt.diff(one, other) and difference.layers
    assert json.loads(difference.to_json())["same_model"] is True
    out = io.StringIO()
    tensoropt.show_strategy(tmp_path / "plan.json", Console(file=out, width=80))
    assert "mini_memory on 4 devices" in out.getvalue()


@pytest.mark.parametrize("call", ["explain", "diff"])
def test_what_is_no_plan_is_refused(call: str, tmp_path: Path) -> None:
    import tensoropt

    arguments = (3, 3)[: 1 + (call == "diff")]
    with pytest.raises(PlanError, match=rf"{call}: plan must be a Plan, got int\. Give what find_strategy"):
        getattr(tensoropt, call)(*arguments)
    with pytest.raises(PlanError, match=r"Plan '.*absent\.json': cannot be read"):
        getattr(tensoropt, call)(*[tmp_path / "absent.json"] * len(arguments))


def test_a_plan_of_before_is_shown_by_operators_only() -> None:
    import tensoropt

    _build()
    data = tensoropt.find_strategy(topology=cpu(2)).to_json()
    old = {**data, "schema_version": 1}
    del old["setting"]
    old["operators"] = {
        name: {k: v for k, v in entry.items() if k != "about"} for name, entry in data["operators"].items()
    }
    old["edges"] = [{k: v for k, v in entry.items() if k != "moves"} for entry in data["edges"]]
    plan = Plan.from_json(old)
    out = io.StringIO()
    tensoropt.show_strategy(plan, Console(file=out, width=140))
    assert "tensor maps" in out.getvalue()
    with pytest.raises(PlanError, match="says nothing of its operators"):
        tensoropt.explain(plan)


def test_a_plan_of_a_graph_is_explained_for_its_cluster() -> None:
    import tensoropt
    from tests.plan.small_graphs import mlp

    plan = tensoropt.compare(mlp(batch=16), cpu(4), methods=["zero3"]).plan("zero3")
    assert "give topology=" in str(tensoropt.explain(plan).missing)
    explanation = tensoropt.explain(plan, cpu(4))
    assert explanation.missing is None and explanation.rivals is not None
    (own,) = [one for one in explanation.rivals if one.name == "zero3"]
    assert own.time_s == plan.time_s and own.why == "as fast"
