"""From a model to a plan, for clusters that are not there."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]


def build() -> None:
    """A wide classifier: its variables are most of its memory."""
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [16], name="y")
    w1 = tensoropt.get_variable("w1", [8, 512])
    w2 = tensoropt.get_variable("w2", [512, 8])
    logits = tensoropt.matmul(tensoropt.nn.relu(tensoropt.matmul(x, w1)), w2, name="logits")
    loss = tensoropt.softmax_cross_entropy(y, logits)
    tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def test_options_trade_time_for_memory() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    plans = {o: tensoropt.find_strategy(o, topology=cpu(4)) for o in ("mini_time", "mini_memory", "data_parallel")}
    assert plans["mini_time"].time_s <= min(plan.time_s for plan in plans.values())
    assert plans["mini_memory"].memory_bytes <= min(plan.memory_bytes for plan in plans.values())
    assert plans["mini_memory"].memory_bytes < plans["data_parallel"].memory_bytes
    assert {plan.mesh.size for plan in plans.values()} == {4}
    assert {o: plan.option for o, plan in plans.items()} == {o: o for o in plans}


def test_the_memory_limit_is_kept_and_written_down() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    least = tensoropt.find_strategy("mini_memory", topology=cpu(4)).memory_bytes
    tight = tensoropt.find_strategy("mini_time", topology=cpu(4), memory_bytes=least)
    assert tight.memory_bytes <= least
    assert tight.notes["memory_limit_bytes"] == least
    with pytest.raises(tensoropt.errors.InfeasibleError, match=r"the least that any takes is \S+ bytes: 1 bytes are"):
        tensoropt.find_strategy("mini_time", topology=cpu(4), memory_bytes=least - 1)


def test_the_amount_that_an_error_names_is_enough() -> None:
    import re

    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    with pytest.raises(tensoropt.errors.InfeasibleError, match=r"Allow \d+ bytes") as failure:
        tensoropt.find_strategy("mini_time", topology=cpu(4), memory_bytes=1)
    allowed = re.search(r"Allow (\d+) bytes", str(failure.value))
    assert allowed is not None
    assert tensoropt.find_strategy("mini_time", topology=cpu(4), memory_bytes=int(allowed[1]))


def test_the_same_model_gets_the_same_plan() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    texts = []
    for _ in range(2):
        tensoropt.reset_default_graph()
        build()
        data = tensoropt.find_strategy(topology=cpu(4)).to_json()
        data["notes"].pop("search_seconds")
        texts.append(data)
    assert texts[0] == texts[1]


def test_a_plan_is_found_again_in_its_file(tmp_path: Path) -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    plan = tensoropt.find_strategy(topology=cpu(4))
    plan.save(tmp_path / "plan.json")
    assert tensoropt.find_strategy(tmp_path / "plan.json", topology=cpu(4)).to_json() == plan.to_json()
    with pytest.raises(tensoropt.errors.PlanError, match=r"is for 4 devices, this job has 2\. Run it with mpirun -n 4"):
        tensoropt.find_strategy(tmp_path / "plan.json", topology=cpu(2))


def test_feeding_whole_batches_frees_the_batch_from_the_devices() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    x = tensoropt.placeholder(tensoropt.float32, [5, 8], name="x")
    w = tensoropt.get_variable("w", [8, 4])
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_mean(tensoropt.matmul(x, w)))
    with pytest.raises(tensoropt.errors.PlanError, match=r"'x'.*batch of 5 cannot be shared by 4 devices: 5 % 4 != 0"):
        tensoropt.find_strategy(topology=cpu(4))
    assert tensoropt.find_strategy(topology=cpu(4), feed="global").notes["feed"] == "global"


@pytest.mark.parametrize("search", ["ft", "data_parallel"])
def test_an_input_that_holds_no_samples_need_not_be_shared(search: str) -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    y = tensoropt.placeholder(tensoropt.float32, [8, 4], name="y")
    state = tensoropt.placeholder(tensoropt.float32, [2, 8, 4], name="state")
    w = tensoropt.get_variable("w", [4, 4])
    error = tensoropt.matmul(x + state[0] + state[1], w) - y
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_mean(error * error))
    plan = tensoropt.find_strategy(topology=cpu(4), search=search)
    assert plan.configuration("x").actions == ("d0",) * 2
    assert "d0" not in plan.configuration("state").actions


def test_rows_name_every_operator_of_training_with_its_layouts() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    plan = tensoropt.find_strategy("data_parallel", topology=cpu(4))
    rows = {row["operator"]: row for row in tensoropt.strategy_rows(plan)}
    assert rows["logits"]["type"] == "MatMul"
    assert rows["logits"]["mesh"] == [4]
    assert rows["logits"]["splits"] == ["split m"]
    assert rows["logits"]["inputs"] == [[0, -1], [-1, -1]]
    assert rows["logits"]["outputs"] == [[0, -1]]
    assert rows["w1"]["memory_bytes"] == 2 * 8 * 512 * 4  # with its gradient
    assert rows["w1/Momentum"]["memory_bytes"] == 8 * 512 * 4
    assert all(row["time_s"] >= 0 and row["memory_bytes"] >= 0 for row in rows.values())


def test_the_table_is_printed() -> None:
    from rich.console import Console

    import tensoropt
    from tensoropt.cluster.presets import cpu

    build()
    out = io.StringIO()
    tensoropt.show_strategy(tensoropt.find_strategy(topology=cpu(2)), Console(file=out, width=140), full=True)
    text = out.getvalue()
    assert "mini_time on 2 devices" in text
    for part in ("operator", "mesh", "tensor maps", "logits", "w1"):
        assert part in text


def test_a_table_needs_the_graph_that_its_plan_is_for() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu
    from tensoropt.plan.plan import Plan

    build()
    plan = tensoropt.find_strategy(topology=cpu(2))
    read = Plan.from_json(plan.to_json())
    rows = tensoropt.strategy_rows(plan)
    assert tensoropt.strategy_rows(read) == rows
    tensoropt.get_variable("another", [2])
    tensoropt.find_strategy(topology=cpu(2))
    assert tensoropt.strategy_rows(plan) == rows
    with pytest.raises(tensoropt.errors.PlanError, match=r"was made for the graph .* call find_strategy again"):
        tensoropt.strategy_rows(read)


def test_an_op_without_a_rule_warns_with_its_price(caplog: pytest.LogCaptureFixture) -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

    x = tensoropt.placeholder(tensoropt.float32, [4, 4], name="x")
    w = tensoropt.get_variable("w", [4, 4])
    rounded = tensoropt.quantization.quantize_and_dequantize_v2(tensoropt.matmul(x, w), -1.0, 1.0, name="rounded")
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_mean(rounded))
    with caplog.at_level(logging.WARNING, logger="tensoropt"):
        plan = tensoropt.find_strategy(topology=cpu(2))
    assert "QuantizeAndDequantizeV4 has no rule: 1 operators (first: QuantizeAndDequantizeV4 'rounded'" in caplog.text
    assert "s per step" in caplog.text
    assert set(plan.configuration("rounded").actions) == {None}


def test_every_optimizer_of_a_variable_keeps_slots_of_its_own() -> None:
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    w = tensoropt.get_variable("w", [4])
    loss = tensoropt.reduce_sum(tensoropt.square(w))
    adam = tensoropt.train.AdamOptimizer(0.1)
    adam.minimize(loss)
    adam.minimize(loss * 2.0)
    tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    graph = import_model(current_model()).graph
    variables = {op.name for op in graph.variables() if op.outputs[0].shape == (4,)}
    assert variables == {"w", "w/Adam", "w/Adam_1", "w/Momentum"}
