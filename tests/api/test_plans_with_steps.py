"""Plans whose steps have micro-batches, recomputation or stages, at every door that tells of a plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tensoropt as to
from tensoropt.api.session.job import current_job
from tensoropt.cluster import preset
from tensoropt.cluster.presets import cpu
from tensoropt.errors import InfeasibleError, MicroBatchError, PlanError
from tensoropt.finders import pipeline
from tensoropt.plan.plan import Plan
from tensoropt.search.options import MemoryLimit
from tensoropt.space.space import SearchSpace
from tests.effort import EVERY_CASE
from tests.mpi_support import result_of, run_mpi

pytestmark = pytest.mark.tf

_V100 = preset("v100").with_device_count(4)
_PROGRAM = Path(__file__).parent.parent / "scripts" / "measured_steps.py"
_STEPS: dict[str, dict[str, Any]] = {
    "micro-batches": {"micro_batches": 4},
    "made again": {"option": "mini_memory", "recompute": True},
    "both": {"option": "mini_memory", "micro_batches": 2, "recompute": True},
    "held and reduced early": {"search": "zero2", "micro_batches": 2},
    "pipeline": {"search": "pipeline", "micro_batches": 4},
}


def _model(rows: int = 64, width: int = 32, layers: int = 6) -> None:
    to.reset_default_graph()
    x = to.placeholder(to.float32, [rows, width], name="x")
    hidden = x
    for layer in range(layers):
        hidden = to.tanh(to.matmul(hidden, to.get_variable(f"w{layer}", [width, width])))
    to.train.AdamOptimizer(0.01).minimize(to.reduce_mean(to.square(hidden - x)))


@pytest.fixture(params=sorted(_STEPS))
def plan(request: pytest.FixtureRequest) -> Plan:
    _model()
    return to.find_strategy(topology=_V100, **_STEPS[request.param])


def test_parts_of_a_plan_add_up_and_rivals_have_its_steps(plan: Plan, tmp_path: Path) -> None:
    explanation = to.explain(plan)
    assert math.fsum(explanation.seconds.values()) == pytest.approx(plan.time_s)
    assert math.fsum(explanation.bytes.values()) == pytest.approx(plan.memory_bytes)
    is_pipeline = "pipeline" in plan.notes
    assert (explanation.runner_ups is None) is is_pipeline
    assert ("on some devices only" in str(explanation.lacking)) is is_pipeline
    assert explanation.rivals is not None
    rivals = {rival.name: rival.time_s for rival in explanation.rivals}
    split = to.find_strategy(search="zero2", topology=_V100, micro_batches=plan.micro_batches)
    assert rivals["zero2"] == pytest.approx(split.time_s)
    plan.save(tmp_path / "plan.json")
    assert to.explain(tmp_path / "plan.json").rivals == explanation.rivals
    to.report(plan, tmp_path / "report.html")
    to.show_strategy(plan)


def test_a_plan_is_compared_with_others_of_its_steps(plan: Plan) -> None:
    table = to.compare(plan, _V100, methods=["ft", "data_parallel", "mcmc"])
    common = to.find_strategy(
        "data_parallel", topology=_V100, micro_batches=plan.micro_batches, recompute=bool(plan.again)
    )
    assert table.row("data_parallel").time_s == pytest.approx(common.time_s)
    assert table.plan("data_parallel").micro_batches == plan.micro_batches
    assert table.row("ft").simulated_time_s is None
    assert "goes by simulated steps of whole batches" in str(table.row("mcmc").reason)
    whole = to.compare(plan, _V100, methods=["ft"], micro_batches=1, recompute=False)
    assert whole.row("ft").simulated_time_s is not None


def test_a_pipeline_s_row_has_its_time_and_memory() -> None:
    _model()
    plan = to.find_strategy(search="pipeline", topology=_V100, micro_batches=4)
    row = to.compare(None, _V100, methods=["pipeline"], micro_batches=4).row("pipeline")
    assert (row.time_s, row.memory_bytes) == (plan.time_s, plan.memory_bytes)


def test_points_know_the_steps_of_their_frontier() -> None:
    _model()
    frontier = to.find_frontier(_V100, micro_batches=2, recompute=True)
    point = type(frontier).from_json(frontier.to_json()).point(0)
    plan = to.find_strategy(point)
    assert plan.micro_batches == 2 and plan.memory_bytes == pytest.approx(point.memory_bytes)
    assert plan.memory_bytes < to.find_frontier(_V100).point(0).memory_bytes
    with pytest.raises(
        PlanError, match=r"find_frontier: micro_batches must be a whole number of at least 1, got 'auto'"
    ):
        to.find_frontier(_V100, micro_batches="auto")  # type: ignore[arg-type]


def test_numbers_of_devices_are_profiled_for_steps() -> None:
    _model(rows=8192)
    whole = to.profile_strategies([2, 4], topology=_V100, feed="global")
    limit = 0.9 * to.find_strategy("mini_memory", topology=_V100.with_device_count(2), feed="global").memory_bytes
    asked: dict[str, Any] = {"topology": _V100, "feed": "global", "memory_bytes": limit}
    none = to.profile_strategies([2, 4], **asked)
    split = to.profile_strategies([2, 4], micro_batches="auto", **asked)
    assert none.row(2).reason is not None and split.row(2).micro_batches > 1 and split.row(2).time_s is not None
    assert split.row(4) == none.row(4)  # fits as it is
    assert "micro-batches" in split._headers() and "micro-batches" not in whole._headers()
    assert type(split).from_json(split.to_json()) == split
    two = to.profile_strategies([2], micro_batches=2, **asked)
    plan = to.find_strategy(topology=_V100.with_device_count(2), micro_batches=2, feed="global", memory_bytes=limit)
    assert two.row(2).time_s == pytest.approx(plan.time_s)
    with pytest.raises(MicroBatchError):
        to.profile_strategies([2], micro_batches=3, **asked)


def test_what_does_not_fit_names_each_way_that_would() -> None:
    to.reset_default_graph()
    hidden = to.placeholder(to.float32, [8192, 32], name="x")
    for layer in range(3):
        hidden = to.matmul(hidden, to.get_variable(f"w{layer}", [32, 32]))
        hidden = to.tanh(to.square(to.tanh(to.square(hidden))))
    to.train.AdamOptimizer(0.01).minimize(to.reduce_mean(to.square(hidden)))
    least = to.find_frontier(cpu(2), feed="global").memory_bytes[0]
    with pytest.raises(InfeasibleError) as failure:
        to.find_strategy(topology=cpu(2), feed="global", memory_bytes=0.75 * least)
    assert "split each step into 2 micro-batches (micro_batches=2, the least is " in str(failure.value)
    assert "allow operators to be made again in the backward pass (recompute=True, the least is " in str(failure.value)
    for steps in ({"micro_batches": 2}, {"recompute": True}):
        plan = to.find_strategy("mini_memory", topology=cpu(2), feed="global", memory_bytes=0.75 * least, **steps)
        assert f"{plan.memory_bytes:,.0f} bytes" in str(failure.value)


@pytest.mark.parametrize("recompute", [False, True] if EVERY_CASE else [True])
def test_pipelines_within_a_limit_are_plans_that_run(recompute: bool) -> None:
    to.reset_default_graph()
    x = hidden = to.placeholder(to.float32, [256, 16], name="x")
    for layer in range(8):  # constants are read in both stages
        hidden = to.nn.gelu(2.0 * to.tanh(to.matmul(hidden, to.get_variable(f"w{layer}", [16, 16]))))
    to.train.AdamOptimizer(0.01).minimize(to.reduce_mean(to.square(hidden - x)))
    asked: dict[str, Any] = {"topology": cpu(2), "search": "pipeline", "micro_batches": 4, "recompute": recompute}
    least = to.find_strategy(**asked)
    for share in (0.95, 0.9, 0.85, 0.8, 0.75, 0.7):
        try:
            plan = to.find_strategy(memory_bytes=share * least.memory_bytes, **asked)
        except InfeasibleError:
            assert not recompute or share < 0.8
            continue
        plan.check(current_job().imported_model().graph)
        assert plan.memory_bytes <= share * least.memory_bytes and plan.time_s >= least.time_s
        assert recompute or not plan.again


def test_a_model_without_possible_stages_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(space: SearchSpace, limit: MemoryLimit) -> NoReturn:
        raise InfeasibleError("nothing is possible")

    monkeypatch.setattr(pipeline, "fastest_that_fits", nothing)
    _model()
    with pytest.raises(InfeasibleError, match=r"no stages of this model can run: .* Leave search out"):
        to.find_strategy(topology=_V100, search="pipeline", micro_batches=4)


def test_a_pipeline_places_what_devices_cannot_split() -> None:
    to.reset_default_graph()
    table, rows = to.get_variable("table", [5, 5]), to.placeholder(to.int32, [8, 7], name="rows")
    found = to.gather(to.reshape(table, [-1]) + 1.0, rows)  # rows of a gradient stay where the table is
    for layer in range(3):  # so that there are stages
        found = to.tanh(to.matmul(found, to.get_variable(f"weights_{layer}", [found.shape[1], 64])))
    to.train.AdamOptimizer(0.1).minimize(to.reduce_mean(to.square(found)))
    plan = to.find_strategy(topology=cpu(2), search="pipeline", micro_batches=2, feed="global")
    plan.check(current_job().imported_model().graph)
    assert {str(plan.configuration(name)) for name in ("table", "Reshape", "GatherV2")} == {"@0"}


@pytest.mark.mpi
@pytest.mark.parametrize("steps", [*sorted(_STEPS), "pipeline of any"] if EVERY_CASE else ["both"])
def test_steps_that_ran_are_measured_and_correct_later_searches(steps: str) -> None:
    asked = _STEPS.get(steps, {"search": "pipeline", "micro_batches": "auto"})
    found = result_of(run_mpi(_PROGRAM, 2, repr(asked), env={"TENSOROPT_COSTS": ""}))
    assert found["estimated"] == 0  # a micro-batch's operators are measured in their sizes
    assert found["recalibrated_s"] > 0 and found["operators"] > 6 and found["events"] > 6
