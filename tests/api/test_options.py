"""The options of ``find_strategy``, frontiers and profiles, for clusters that are not there."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]

BATCH = 16


def build(batch: int | None = BATCH, width: int = 512) -> None:
    """A wide classifier: its variables are most of its memory, its activations depend on the batch."""
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [batch, 8], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [batch], name="y")
    w1 = tensoropt.get_variable("w1", [8, width])
    w2 = tensoropt.get_variable("w2", [width, 8])
    logits = tensoropt.matmul(tensoropt.nn.relu(tensoropt.matmul(x, w1)), w2, name="logits")
    loss = tensoropt.softmax_cross_entropy(y, logits)
    tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


def cpu(devices: int) -> Any:
    from tensoropt.cluster import preset

    return preset("cpu", devices=devices)


def find(option: Any = "mini_time", **named: Any) -> Any:
    import tensoropt

    return tensoropt.find_strategy(option, **named)


def least(devices: int) -> float:
    """The least memory that any strategy takes."""
    return float(find("mini_memory", topology=cpu(devices)).memory_bytes)


# ------------------------------------------------------------------------------------------------ mini_parallelism


def test_mini_parallelism_takes_the_fewest_devices_that_fit() -> None:
    build()
    needed = {devices: least(devices) for devices in (1, 2, 4, 8)}
    assert needed[1] > needed[2] > needed[4] > needed[8]
    for devices in (1, 2, 4, 8):
        plan = find("mini_parallelism", topology=cpu(8), memory_bytes=needed[devices])
        assert plan.mesh.size == devices
        assert plan.memory_bytes <= needed[devices]
        assert plan.option == "mini_parallelism"
        assert plan.notes["devices_of_job"] == 8
        # 3, 5, 6 and 7 do not divide the batch.
        assert sorted(map(int, plan.notes["fewer_devices"])) == list(range(1, devices))


def test_mini_parallelism_is_the_fastest_on_as_many_devices() -> None:
    build()
    limit = 1.5 * least(4)
    assert least(2) > limit
    plan = find("mini_parallelism", topology=cpu(8), memory_bytes=limit)
    assert plan.time_s == find("mini_time", topology=cpu(4), memory_bytes=limit).time_s


def test_mini_parallelism_takes_whole_hosts() -> None:
    from tensoropt.cluster import preset

    build(width=2048)
    topology = preset("k80", hosts=4)  # hosts of 2 x 2
    limit = find("mini_memory", topology=preset("k80", hosts=2)).memory_bytes
    plan = find("mini_parallelism", topology=topology, memory_bytes=limit)
    assert plan.mesh.shape == (2, 2, 2)
    assert set(plan.notes["fewer_devices"]) == {"1", "2", "4"}


def test_mini_parallelism_that_does_not_fit_says_what_every_count_takes() -> None:
    import tensoropt

    build()
    with pytest.raises(tensoropt.errors.InfeasibleError) as failure:
        find("mini_parallelism", topology=cpu(4), memory_bytes=least(4) - 8)
    text = str(failure.value)
    assert "on 4 devices of 4 processes of one host: no number of them holds a strategy within" in text
    assert re.search(r"1 devices: variables alone take [\d,]+ bytes", text)
    assert re.search(
        r"4 devices: no strategy takes less than [\d,]+ bytes per device, since [\d,]+ are needed on 2 devices", text
    )
    assert "the batch cannot be shared by 3 devices" in text
    assert "use 8 devices of this kind" in text


def test_a_plan_for_fewer_devices_is_accepted_only_where_it_was_asked_for(tmp_path: Path) -> None:
    import tensoropt

    build()
    few = find("mini_parallelism", topology=cpu(4), memory_bytes=least(2))
    few.save(tmp_path / "few.json")
    assert find(tmp_path / "few.json", topology=cpu(4)).to_json() == few.to_json()
    with pytest.raises(tensoropt.errors.PlanError, match=r"2 devices, this job has 4\. .*only plans of option='mini_p"):
        find(find(topology=cpu(2)), topology=cpu(4))
    with pytest.raises(tensoropt.errors.PlanError, match=r"2 devices, this job has 1\. .* with an option instead\.$"):
        find(few, topology=cpu(1))


# ------------------------------------------------------------------------------------------- frontiers and points


def test_points_of_the_frontier_are_options() -> None:
    import tensoropt

    build()
    frontier = tensoropt.find_frontier(cpu(4))
    assert len(frontier) > 2
    for point in (frontier.turning_point(), frontier.best(), frontier.point(0)):
        plan = find(point)
        assert (plan.time_s, plan.memory_bytes, plan.mesh.size) == (point.time_s, point.memory_bytes, 4)
        assert plan.option == "frontier_point"
    by_name = {name: find(name, topology=cpu(4)) for name in ("turning_point", "mini_time", "mini_memory")}
    assert find(frontier.turning_point()).operators == by_name["turning_point"].operators
    assert find(frontier.best()).operators == by_name["mini_time"].operators
    assert find(frontier.point(0)).operators == by_name["mini_memory"].operators


def test_a_saved_frontier_gives_the_same_plans() -> None:
    import tensoropt
    from tensoropt.problem import Frontier

    build()
    frontier = tensoropt.find_frontier(cpu(4), feed="global")
    saved = Frontier.from_json(frontier.to_json())
    assert saved.provenance == frontier.provenance
    tensoropt.reset_default_graph()
    build()
    plan = find(saved.turning_point())
    assert plan.to_json()["operators"] == find(frontier.turning_point()).to_json()["operators"]
    assert plan.notes["feed"] == "global"


def test_a_frontier_with_a_malformed_provenance_is_refused() -> None:
    import tensoropt
    from tensoropt.problem import Frontier

    build()
    data = json.loads(tensoropt.find_frontier(cpu(2)).to_json())
    for broken in ("2 devices", {"graph": "x"}, data["provenance"] | {"topology": {}}):
        with pytest.raises(tensoropt.errors.ProblemError, match=r"'provenance' is malformed"):
            Frontier.from_json(json.dumps(data | {"provenance": broken}))


def test_a_point_is_refused_where_it_does_not_belong() -> None:
    import tensoropt

    PlanError = tensoropt.errors.PlanError
    build()
    point = tensoropt.find_frontier(cpu(4)).best()
    with pytest.raises(PlanError, match=r"the point is for 4 processes .* topology= is 2 processes"):
        find(point, topology=cpu(2))
    with pytest.raises(PlanError, match=r"got one of a bare Problem\. Take it from tensoropt\.find_frontier"):
        find(dataclasses.replace(point, provenance=None), topology=cpu(4))
    for changed in (
        dataclasses.replace(point, time_s=point.time_s * 1.001),
        dataclasses.replace(point, assignment=point.assignment[:-1]),
        dataclasses.replace(point, alternatives=point.alternatives[:-1]),
    ):
        with pytest.raises(PlanError, match=r"must cost the same in this model's tables, but does not"):
            find(changed)
    with pytest.raises(tensoropt.errors.InfeasibleError, match=r"the point takes [\d,]+ bytes.*limit is 1 bytes"):
        find(point, memory_bytes=1)
    tensoropt.get_variable("another", [2])
    with pytest.raises(PlanError, match=r"the point is for the graph .* call find_frontier again"):
        find(point)


def test_the_frontier_draws_itself(tmp_path: Path) -> None:
    import tensoropt

    pytest.importorskip("matplotlib")
    build()
    frontier = tensoropt.find_frontier(cpu(4))
    frontier.plot(tmp_path / "frontier.svg", memory_limit_bytes=1e5, others={"itself": frontier})
    text = (tmp_path / "frontier.svg").read_text(encoding="utf-8")
    for part in ("memory per device, KiB", "turning point", "itself", "limit", "4 processes of one host"):
        assert f"<!-- {part}" in text


# ------------------------------------------------------------------------------------------------------- profiling


def test_profiling_has_a_row_for_every_count_that_was_asked_for() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    build()
    limit = least(4)
    profile = tensoropt.profile_strategies(
        [32, 8, 4, 2, 3, 12, 4], topology=preset("v100"), price_per_device_hour=2.0, memory_bytes=limit
    )
    rows = {row.devices: row for row in profile.rows}
    assert list(rows) == [2, 3, 4, 8, 12, 32]
    assert {count for count, row in rows.items() if row.reason is None} == {4, 8}
    assert re.search(r"does not fit: the least .* is [\d,]+ bytes per device", rows[2].reason or "")
    assert re.search(r"batch of 16 cannot be shared by 3 devices: 16 % 3 != 0", rows[3].reason or "")
    assert re.search(r"batch of 16 cannot be shared by 32", rows[32].reason or "")
    for count in (4, 8):
        plan = find("mini_time", topology=preset("v100", devices=count), memory_bytes=limit)
        row = rows[count]
        assert (row.time_s, row.memory_bytes) == (plan.time_s, plan.memory_bytes)
        assert row.peak_bytes == plan.peak_bytes
        assert row.network_time_s is not None and 0 < row.network_time_s < plan.time_s
        assert row.samples_per_s == BATCH / plan.time_s
        assert row.cost_per_hour == 2.0 * count
    assert rows[2].time_s is None and rows[2].cost_per_hour is None


def test_profiling_says_which_counts_are_no_part_of_the_cluster() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    build(batch=24)
    profile = tensoropt.profile_strategies([8, 12], topology=preset("v100"))
    assert profile.row(8).reason is None
    assert "12 devices do not fill levels of sizes (2, 8) evenly" in (profile.row(12).reason or "")


def test_profiling_by_default_goes_through_the_cluster() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    build()
    counts = [row.devices for row in tensoropt.profile_strategies(topology=preset("v100")).rows]
    assert counts == [1, 2, 4, 8, 16]


def test_inputs_without_a_common_batch_have_no_throughput() -> None:
    import tensoropt

    build()
    build_more = tensoropt.placeholder(tensoropt.float32, [8, 3], name="more")
    w = tensoropt.get_variable("w", [3, 3])
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_sum(tensoropt.matmul(build_more, w)))
    profile = tensoropt.profile_strategies([2], topology=cpu(2))
    assert profile.batch is None
    assert profile.row(2).time_s is not None and profile.row(2).samples_per_s is None


def test_the_option_profiling_prints_the_table_and_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    import tensoropt

    build()
    profile = find("profiling", topology=cpu(4))
    assert profile == tensoropt.profile_strategies(topology=cpu(4))
    printed = capsys.readouterr().out
    assert "samples/s" in printed and "No plan was made." in printed
    with pytest.raises(
        tensoropt.errors.PlanError, match=r"plan must be a Plan, got a ParallelismProfile\. .*mini_time"
    ):
        tensoropt.build_execution_graph(plan=profile)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": []}, r"devices must have at least one count, got none"),
        ({"devices": [2, 0]}, r"whole numbers of at least 1, got 0 in \[2, 0\]"),
        ({"devices": [2.5]}, r"whole numbers of at least 1, got 2\.5"),
        ({"price_per_device_hour": -1.0}, r"price_per_device_hour must be a number of at least 0, got -1\.0"),
        ({"memory_bytes": 0}, r"profile_strategies: memory_bytes must be above 0, got 0"),
        ({"feed": "by hand"}, r"feed 'by hand' is unknown"),
    ],
)
def test_profiling_refuses(arguments: dict[str, Any], message: str) -> None:
    import tensoropt

    build()
    with pytest.raises(tensoropt.errors.PlanError, match=message):
        tensoropt.profile_strategies(**{"topology": cpu(2), **arguments})


@pytest.mark.parametrize("name", ["find_frontier", "profile_strategies", "find_strategy"])
def test_searches_need_to_know_the_devices(name: str) -> None:
    import tensoropt

    build()
    with pytest.raises(
        tensoropt.errors.SessionError, match=rf"^{name}: the devices are unknown\. Call tensoropt\.init"
    ):
        getattr(tensoropt, name)()


# ------------------------------------------------------------------------------------------ limits and remedies


def test_the_default_limit_leaves_the_papers_reserve() -> None:
    from tensoropt.cluster import preset
    from tensoropt.search.options import MemoryLimit

    build()
    plan = find(topology=preset("v100"))
    assert plan.notes["memory_limit_bytes"] == 16 * 2**30 / 1.1
    assert plan.notes["memory_limit"] == str(MemoryLimit.of(16 * 2**30))
    assert "less a reserve of 10% of the plan" in plan.notes["memory_limit"]


def failure(option: str, **named: Any) -> str:
    import tensoropt

    with pytest.raises(tensoropt.errors.InfeasibleError) as caught:
        find(option, **named)
    return str(caught.value)


def test_an_error_without_a_limit_of_ones_own_names_the_reserve() -> None:
    topology = dataclasses.replace(cpu(2), device=dataclasses.replace(cpu(2).device, memory_bytes=1100))
    build()
    text = failure("mini_time", topology=topology)
    assert "must fit in 1,000 bytes per device (the device's 1,100 less a reserve of 10% of the plan" in text


def test_more_devices_that_would_fit_do() -> None:
    build()
    limit = least(4) - 1
    text = failure("mini_time", topology=cpu(4), memory_bytes=limit)
    counted = re.search(r"use (\d+) devices of this kind \(the least there is ([\d,]+) bytes\)", text)
    assert counted is not None
    assert int(counted[1]) == 8
    plan = find("mini_memory", topology=cpu(8), memory_bytes=limit)
    assert f"{plan.memory_bytes:,.0f}" == counted[2]


@pytest.mark.parametrize("open_batch", [False, True])
def test_a_smaller_batch_that_would_fit_does(open_batch: bool) -> None:
    import tensoropt

    build(batch=None if open_batch else BATCH)
    named = {"batch_size": BATCH} if open_batch else {}
    limit = find("mini_memory", topology=cpu(2), **named).memory_bytes - 1
    text = failure("mini_time", topology=cpu(2), memory_bytes=limit, **named)
    smaller = re.search(r"with (\d+) samples instead of 16 the least is ([\d,]+) bytes", text)
    assert smaller is not None and int(smaller[1]) == 8
    tensoropt.reset_default_graph()
    build(batch=8)
    plan = find("mini_memory", topology=cpu(2), memory_bytes=limit)
    assert f"{plan.memory_bytes:,.0f}" == smaller[2]


def test_a_batch_that_is_written_into_the_model_is_said_to_be() -> None:
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    w = tensoropt.get_variable("w", [4, 4])
    y = tensoropt.matmul(tensoropt.reshape(x, [8, 4]), w) + tensoropt.ones([8, 4])
    tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_sum(tensoropt.square(y)))
    limit = find("mini_memory", topology=cpu(2)).memory_bytes - 1
    text = failure("mini_time", topology=cpu(2), memory_bytes=limit)
    assert "Smaller batches were not searched: the model cannot be imported with 4 samples" in text


def test_what_no_number_of_devices_and_no_batch_helps_is_said_with_figures() -> None:
    build()
    text = failure("mini_time", topology=cpu(4), memory_bytes=100)
    slots = 2 * 2 * 8 * 512 * 4  # two variables, each with its momentum
    needed = least(4)
    assert f"up to 32: there, no strategy takes less than {needed / 8:,.0f} bytes per device, since" in text
    assert f"No smaller batch helps: variables alone take {slots / 4:,.0f} bytes" in text


def test_more_devices_than_samples_need_a_larger_batch() -> None:
    build(batch=4)
    text = failure("mini_time", topology=cpu(4), memory_bytes=least(4) - 8)
    assert "More devices need a larger batch, or feed='global'" in text and "4 % 8 != 0" in text


@pytest.mark.parametrize(
    ("peaks", "chosen"), [([1, 2, 3, 4], 3), ([3, 4, 6, 9], 1), ([1, 6, 7, 9], 0), ([6, 7, 8, 9], 3)]
)
def test_plans_whose_temporaries_do_not_fit_give_way_to_smaller_ones(
    peaks: list[int], chosen: int, caplog: pytest.LogCaptureFixture
) -> None:
    from tensoropt.api.find.choosing import find_plan
    from tensoropt.ft import track_frontier
    from tensoropt.layout import Mesh
    from tensoropt.plan.plan import Plan
    from tensoropt.problem.problem import Problem

    memory = [1.0, 2.0, 3.0, 4.0]
    frontier = track_frontier(Problem(["a"], [memory[::-1]], [memory]))

    class Planned:
        """A planner whose plans have the peaks given."""

        def with_steps(self, _: int) -> Planned:
            return self

        def has_frontier(self, _: Any) -> bool:
            return True

        def frontier(self, _: Any) -> Any:
            return frontier

        def plan(self, _: Any, point: Any, option: str, limit: Any) -> Plan:
            noted = {"peak_memory": {"memory_bytes": peaks[point.index]}, "index": point.index}
            return Plan(Mesh((4,)), "", option, {}, {}, point.time_s, point.memory_bytes, noted)

    topology = cpu(4)
    small = dataclasses.replace(topology, device=dataclasses.replace(topology.device, memory_bytes=5.0))
    with caplog.at_level("WARNING", "tensoropt"):
        plan = find_plan(Planned(), small, "mini_time", 4.0)  # type: ignore[arg-type]
    assert plan.notes["index"] == chosen
    assert ("the plan's peak is predicted to be 9 bytes, the device holds 5" in caplog.text) == (min(peaks) > 5)


def test_data_parallelism_that_does_not_fit_points_to_strategies_that_do() -> None:
    build()
    text = failure("data_parallel", topology=cpu(4), memory_bytes=least(4))
    assert re.search(r"needs [\d,]+ bytes per device, the limit is [\d,]+ bytes per device \(memory_bytes\)\.", text)
    assert f"Use option='mini_time': strategies that take {least(4):,.0f} bytes or more fit." in text


def test_the_least_memory_is_found_without_times() -> None:
    from tensoropt.api.find.planner import Planner
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    build()
    imported = import_model(current_model())
    for devices in (1, 4, 6):
        quick = Planner(imported, "global", current_model()).least_bytes(cpu(devices))
        assert np.isclose(quick, Planner(imported, "global", current_model()).frontier(cpu(devices)).memory_bytes[0])
        assert quick >= Planner(imported, "global", current_model()).least_possible(devices)[0]


def test_what_fewer_devices_take_bounds_what_more_take() -> None:
    from tensoropt.api.find.planner import Planner
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    build()
    planner = Planner(import_model(current_model()), "data_parallel", current_model())
    alone = planner.least_possible(8)
    assert alone[1].startswith("variables alone take")
    for devices in (1, 2, 4, 8):
        bound, _ = planner.least_possible(devices)
        assert bound <= planner.least_bytes(cpu(devices))
    bound, why = planner.least_possible(16)
    assert bound > alone[0] / 2
    assert re.search(
        r"no strategy takes less than [\d,]+ bytes per device, since [\d,]+ are needed on \d+ devices?$", why
    )
    assert planner.least_possible(16, any_batch=True)[0] == alone[0] / 2


def test_a_batch_that_cannot_be_halved_is_said_to_be() -> None:
    build(batch=4)
    text = failure("mini_time", topology=cpu(4), memory_bytes=least(4) - 8)
    assert "A batch of 4 cannot be halved for 4 devices." in text


@pytest.mark.tf
def test_a_size_that_nothing_leaves_open_is_refused() -> None:
    import tensoropt
    from tensoropt.errors import PlanError

    tensoropt.reset_default_graph()
    images = tensoropt.placeholder(tensoropt.float32, [64, 8])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.layers.dense(images, 4)))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    for ask in (tensoropt.find_strategy, tensoropt.find_frontier, tensoropt.profile_strategies):
        with pytest.raises(PlanError, match=r"batch_size=128: no placeholder .* the model's batch is 64\. Leave"):
            ask(topology=cpu(2), batch_size=128)
    assert tensoropt.find_strategy(topology=cpu(2), batch_size=64).mesh.size == 2


# -------------------------------------------------------------------------------------------------------- certificates


def test_plans_and_points_say_how_far_from_the_best_they_are_at_most() -> None:
    import tensoropt

    build()
    frontier = tensoropt.find_frontier(topology=cpu(4))
    assert frontier.exact and all(frontier.point(i).gap == 0.0 for i in range(len(frontier)))
    again = type(frontier).from_json(frontier.to_json())
    assert (again.point(0).bound_s, again.point(0).gap) == (frontier.point(0).bound_s, 0.0)
    assert find(frontier.turning_point()).notes["gap"] == 0.0


def test_a_large_model_that_does_not_fit_is_searched_for_the_limit_alone() -> None:
    """Over all operators, with no frontier; the plan fits, and is within a hundredth of the bound."""
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [BATCH, 64], name="x")
    h = x
    for layer in range(40):
        w = tensoropt.get_variable(f"w{layer}", [64, 64])
        h = h + tensoropt.tanh(tensoropt.matmul(tensoropt.nn.relu(h), w) + tensoropt.get_variable(f"b{layer}", [64]))
    tensoropt.train.AdamOptimizer().minimize(tensoropt.reduce_mean(tensoropt.square(h)))
    fast = find(topology=cpu(4), memory_bytes=1e12)
    limit = 0.8 * fast.memory_bytes
    plan = find(topology=cpu(4), memory_bytes=limit)
    assert plan.memory_bytes <= limit < fast.memory_bytes
    assert re.fullmatch(r"all [\d,]+ operators, of which none is \S+ faster", plan.notes["searched"])
    assert 0.0 <= plan.notes["gap"] <= 0.01 and plan.time_s == pytest.approx(
        plan.notes["bound_s"] * (1 + plan.notes["gap"])
    )
    best = tensoropt.find_frontier(topology=cpu(4)).best(limit)
    assert plan.notes["bound_s"] <= best.time_s * (1 + 1e-9)


def test_a_plan_says_which_share_of_the_devices_arithmetic_a_step_is() -> None:
    from tensoropt.plan.summary import PlanSummary
    from tensoropt.search.strategy_table import plan_title

    build(width=1024)
    plan = find("data_parallel", topology=cpu(4))
    flops = 2 * BATCH * 1024 * (8 + 8 + 8 + 8 + 8)  # of five products: x needs no gradient
    assert plan.notes["step_flops"] == pytest.approx(flops, rel=0.05)  # and what is not a product
    peak = 4 * cpu(4).device.flops("float32")
    assert plan.utilization == pytest.approx(plan.notes["step_flops"] / (peak * plan.time_s))
    assert "of peak FLOPS" in plan_title(PlanSummary(plan))
    assert dataclasses.replace(plan, notes={}).utilization is None
