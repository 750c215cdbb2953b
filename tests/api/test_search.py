"""The searches of ``find_strategy``: each finds its own strategy, in the same space by the same costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]


def build() -> None:
    """A wide classifier, whose variables are most of its memory."""
    import tensoropt

    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [16], name="y")
    w1 = tensoropt.get_variable("w1", [8, 512])
    w2 = tensoropt.get_variable("w2", [512, 8])
    logits = tensoropt.matmul(tensoropt.nn.relu(tensoropt.matmul(x, w1)), w2, name="logits")
    tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(tensoropt.softmax_cross_entropy(y, logits))


def find(option: Any = "mini_time", devices: int = 4, **named: Any) -> Any:
    import tensoropt
    from tensoropt.cluster import preset

    return tensoropt.find_strategy(option, topology=preset("cpu", devices=devices), **named)


def test_pase_finds_a_strategy_as_fast_as_the_frontiers_fastest() -> None:
    build()
    plan, fastest = find(search="pase"), find(memory_bytes=1e12)
    assert plan.time_s == pytest.approx(fastest.time_s, rel=1e-12)
    assert plan.option == "pase"
    assert plan.notes["search_seconds"] > 0
    assert find(search="ft", memory_bytes=1e12).to_json() == fastest.to_json()


def test_pase_solves_towers_that_nothing_joins_one_after_another() -> None:
    import tensoropt

    for tower in ("left", "right"):
        with tensoropt.variable_scope(tower):
            x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
            loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [8, 64])))
            tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan, fastest = find(search="pase"), find(memory_bytes=1e12)
    assert plan.time_s == pytest.approx(fastest.time_s, rel=1e-12)


def test_every_baseline_that_applies_gives_its_plan() -> None:
    import tensoropt
    from tensoropt.search import finders

    build()
    fastest = find(memory_bytes=1e12)
    found = {}
    for name in (finder.name for finder in finders() if finder.kind == "baseline"):
        try:
            found[name] = find(search=name)
        except tensoropt.errors.PlanError as error:
            assert f"baseline {name!r}: does not apply because" in str(error)
    assert {"data_parallel", "optcnn", "tofu", "zero3"} <= set(found)
    assert {plan.option for plan in found.values()} == set(found)
    assert all(plan.time_s >= fastest.time_s * (1 - 1e-12) for plan in found.values())
    assert found["data_parallel"].to_json() == find("data_parallel").to_json()
    assert find("data_parallel", search="data_parallel").to_json() == find("data_parallel").to_json()
    assert found["zero3"].memory_bytes < found["data_parallel"].memory_bytes


def test_options_choose_among_what_a_baseline_offers() -> None:
    build()
    small, fast = (find(option, search="mesh_tensorflow") for option in ("mini_memory", "mini_time"))
    assert small.memory_bytes <= fast.memory_bytes
    assert fast.time_s <= small.time_s
    assert small.memory_bytes < find(search="data_parallel").memory_bytes


def test_what_a_baseline_leaves_out_is_noted_in_its_plan_and_in_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import tensoropt
    from tensoropt.cluster import preset

    build()
    assert "searched" not in find(search="mesh_tensorflow").notes
    monkeypatch.setattr(sys.modules["tensoropt.baselines.mesh_tensorflow"], "MAX_LAYOUTS", 4)
    note = find(search="mesh_tensorflow").notes["searched"]
    assert "names have more than 4 layouts on 2 x 2 devices" in note
    table = tensoropt.compare(topology=preset("cpu", devices=4), methods=["mesh_tensorflow"])
    assert table.row("mesh_tensorflow").remark() == note == table.row("mesh_tensorflow").searched


def test_notes_are_of_the_frontier_that_a_plan_is_of_though_others_were_tracked_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tensoropt
    from tensoropt.cluster import preset
    from tensoropt.ft import space_frontier as spaces
    from tensoropt.problem.frontier import Frontier

    build()
    monkeypatch.setattr(spaces, "_SMALL", 0)
    frontiers = []
    for devices, columns in ((2, 3), (4, 5)):
        monkeypatch.setattr(spaces, "_COLUMNS", columns)
        frontiers.append(tensoropt.find_frontier(preset("cpu", devices=devices)))
    said = [frontier.searched for frontier in frontiers]
    prices = [re.findall(r"all \d+ operators, at (\d) prices of memory", text or "") for text in said]
    assert prices == [["3"], ["5"]]
    for frontier in (*frontiers, Frontier.from_json(frontiers[0].to_json())):
        plan = tensoropt.find_strategy(frontier.best())
        assert (plan.notes["searched"], plan.notes["exact"]) == (frontier.searched, False)
        assert plan.notes["gap"] == frontier.best().gap
    monkeypatch.undo()
    tensoropt.reset_default_graph()
    build()  # what is a planner's own is gone
    assert "prices of memory" not in str(tensoropt.find_frontier(preset("cpu", devices=2)).searched)
    assert tensoropt.find_strategy(frontiers[1].best()).notes["searched"] == said[1]
    assert find(search="pase").notes["searched"].startswith("all ")


def test_search_that_ignores_memory_says_what_is_missing() -> None:
    import tensoropt

    build()
    least = find("mini_memory").memory_bytes
    assert find(memory_bytes=least).memory_bytes == least
    needed = find(search="pase").memory_bytes
    assert needed > least
    with pytest.raises(
        tensoropt.errors.InfeasibleError,
        match=r"search='pase'\) on 4 devices of .*: what it found takes [\d,]+ bytes .* are missing\. Use search='ft'",
    ):
        find(search="pase", memory_bytes=least)


@pytest.mark.parametrize(
    ("cost", "overlap", "words"),
    [
        ("simulated", False, "by simulated time (collectives block), "),
        ("simulated", True, "by simulated time (communication beside computation), "),
        ("additive", False, "by the sum of all times, "),
    ],
)
def test_mcmc_keeps_to_the_memory_and_says_by_which_time_it_went(cost: str, overlap: bool, words: str) -> None:
    import tensoropt

    build()
    search = tensoropt.Mcmc(cost=cost, overlap=overlap, iterations=3000)
    plan = find(search=search)
    assert (plan.option, plan.notes["cost"], plan.notes["overlap"]) == ("mcmc", cost, overlap)
    assert words in plan.notes["searched"]
    assert re.search(r", [\d,]+ proposals of 2 chains$", plan.notes["searched"])
    assert find(memory_bytes=1e12).time_s * (1 - 1e-12) <= plan.time_s
    if cost == "additive":
        assert plan.time_s <= find(search="data_parallel").time_s
        assert "simulated_time_s" not in plan.notes
    elif overlap:
        assert 0 < plan.notes["simulated_time_s"] < plan.time_s
    else:  # all devices do the same, one task after another
        assert plan.notes["simulated_time_s"] == pytest.approx(plan.time_s, rel=1e-6)
        # It is the one cost by which others choose, too.
        assert plan.time_s == pytest.approx(find(memory_bytes=1e12).time_s, rel=1e-6)
    limit = 1.5 * find("mini_memory").memory_bytes
    assert find(search=search, memory_bytes=limit).memory_bytes <= limit


def test_the_name_of_a_search_by_chains_is_its_options_defaults() -> None:
    import tensoropt

    build()
    named, given = (find(search=search) for search in ("mcmc", tensoropt.Mcmc()))
    for plan in (named, given):
        plan.notes.pop("search_seconds")
    assert named.to_json() == given.to_json()


def test_chains_begin_where_they_are_told() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    build()
    fastest, zero3 = find(), find(search="zero3")
    frontier = tensoropt.find_frontier(preset("cpu", devices=4))
    named = {op: plan.configuration for op, plan in fastest.operators.items()}
    # One proposal changes next to nothing.
    for first in ("ft", "pase", fastest, frontier.best(), frontier.best().assignment, named):
        plan = find(search=tensoropt.Mcmc(initial=(first,), iterations=1, cost="additive"))
        assert plan.time_s <= fastest.time_s * (1 + 1e-12)
    for first in ("zero3", zero3):
        search = tensoropt.Mcmc(initial=(first,), iterations=1)
        assert find(search=search).notes["simulated_time_s"] <= simulated_s(zero3) * (1 + 1e-9)
    with pytest.raises(tensoropt.errors.PlanError, match="baseline 'one_weird_trick': does not apply because"):
        find(search=tensoropt.Mcmc(initial=("one_weird_trick",)))
    with pytest.raises(tensoropt.errors.PlanError, match=r"must be of this model's frontier on .*, got point \d+ of "):
        find(search=tensoropt.Mcmc(initial=(frontier.best(),)), devices=2)
    with pytest.raises(tensoropt.errors.PlanError, match=r"must name all \d+ operators of training, 1 are missing"):
        find(search=tensoropt.Mcmc(initial=({name: of for name, of in named.items() if name != "w1"},)))


def simulated_s(plan: Any) -> float:
    """Seconds of a plan's step by the simulator, at which chains that begin there begin."""
    import tensoropt

    search = tensoropt.Mcmc(initial=(plan,), iterations=1, patience=1.0, beta=1e12)
    return float(find(search=search).notes["simulated_time_s"])


def test_chains_end_by_their_options() -> None:
    import tensoropt

    build()
    chains = find(search=tensoropt.Mcmc(iterations=700, patience=1.0, chains=3, seed=5))
    assert (chains.notes["chains"], chains.notes["proposals"], chains.notes["seed"]) == (3, 2100, 5)
    timed = find(search=tensoropt.Mcmc(seconds=0.05, patience=1.0))
    assert timed.notes["proposals"] > 0
    assert tensoropt.Mcmc(seconds=12.0, processes=2).stop(3).seconds == 6.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, "seconds must be a number above 0 and finite, got 0"),
        ({"seconds": "5"}, "seconds must be a number above 0 and finite, got '5'"),
        ({"seconds": float("nan")}, "seconds must be a number above 0 and finite, got nan"),
        ({"beta": -1.0}, r"beta must be a number above 0 and finite, got -1\.0"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1, got 0"),
        ({"iterations": 1e3}, "iterations must be a whole number of at least 1, got 1000"),
        ({"chains": True}, "chains must be a whole number of at least 1, got True"),
        ({"processes": 0}, "processes must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"patience": 0}, "patience must be a share of a chain, above 0 and up to 1, got 0"),
        ({"cost": "sum"}, "cost must be one of 'simulated', 'additive', got 'sum'"),
        ({"overlap": "no"}, "overlap must be True or False, got 'no'"),
        ({"overlap": True, "cost": "additive"}, "overlap is of simulated time, got overlap=True with cost='additive'"),
        ({"initial": "random"}, r"initial must be a tuple of strategies, at least one, got 'random'\. Give for ex"),
        ({"initial": ()}, "initial must be a tuple of strategies, at least one"),
        (
            {"initial": ("expert",)},
            "an initial strategy is a Plan, .* one of 'random', 'columns', .*, got 'expert'",
        ),
        ({"initial": (1, 2)}, "an initial strategy must be a name, a Plan, a point, or configurations, got 1"),
        ({"initial": ("gnmt",)}, "'gnmt' places layers .*, which chains do not"),
    ],
)
def test_wrong_options_of_chains_are_refused_at_once(wrong: dict[str, Any], message: str) -> None:
    import tensoropt

    with pytest.raises(tensoropt.errors.PlanError, match=f"Mcmc: {message}"):
        tensoropt.Mcmc(**wrong)


@pytest.mark.parametrize(
    ("option", "search", "message"),
    [
        (
            "mini_time",
            "simplex",
            r"search 'simplex' is unknown\. Use one of 'columns', 'ft', 'pase', 'pipeline', .*, 'mcmc', or ",
        ),
        ("mini_time", 7, r"search 7 is unknown\. Use one of 'columns', 'ft', .*, or tensoropt\.Mcmc"),
        ("mini_memory", "mcmc", r"search='mcmc' takes the option 'mini_time', got 'mini_memory'"),
        ("mini_memory", "pase", r"search='pase' takes the option 'mini_time', got 'mini_memory'\. Leave search out"),
        ("mini_parallelism", "pase", r"takes the option 'mini_time', got 'mini_parallelism'"),
        ("data_parallel", "pase", r"takes the option 'mini_time', got 'data_parallel'"),
        ("profiling", "tofu", r"'mini_time' .*, got 'profiling'"),
        ("plan.json", "pase", r"a plan, or a point of a frontier, is found already, got it with search='pase'"),
    ],
)
def test_search_that_does_not_go_with_the_option_is_refused(option: str, search: Any, message: str) -> None:
    import tensoropt

    build()
    with pytest.raises(tensoropt.errors.PlanError, match=message):
        find(option, search=search)


def test_points_are_found_already() -> None:
    import tensoropt
    from tensoropt.cluster import preset

    build()
    point = tensoropt.find_frontier(preset("cpu", devices=2)).best()
    with pytest.raises(tensoropt.errors.PlanError, match="is found already, got it with search='pase'"):
        tensoropt.find_strategy(point, search="pase")


def test_baselines_that_place_layers_are_plans_to_run(tmp_path: Path) -> None:
    import tensoropt

    build()
    plan = find(search="model_parallel", devices=2)
    assert plan.option == "model_parallel" and plan.mesh.size == 2
    plan.save(tmp_path / "plan.json")
    assert find(tmp_path / "plan.json", devices=2).to_json() == find(plan, devices=2).to_json() == plan.to_json()
    # The limit is for the device that holds most, which is above the mean over devices.
    with pytest.raises(tensoropt.errors.InfeasibleError, match=r"search='model_parallel'\) on 2 devices of .* missing"):
        find(search="model_parallel", devices=2, memory_bytes=1000)


def test_chains_search_models_with_repeated_cells() -> None:
    from examples.models import MODELS

    MODELS["rnntc"](batch_size=16, layers=1, hidden=16, embedding=8, steps=3, vocabulary=16)
    assert find(search="mcmc", devices=2).option == "mcmc"


def test_a_pipeline_has_all_lookups_in_one_table_on_one_stage() -> None:
    """Also where the words of the second lookup are made by later layers, as decoders make them."""
    import tensoropt as to

    hidden, table = to.placeholder(to.float32, [8, 6]), to.get_variable("table", [9, 6])
    for layer in range(6):
        hidden = to.tanh(to.matmul(hidden, to.get_variable(f"w{layer}", [6, 6])), name=f"layer{layer}")
        if layer in (1, 3):
            hidden += to.nn.embedding_lookup(table, to.argmax(hidden, 1), name=f"found{layer}")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_mean(to.square(hidden)))
    plan = find(search="pipeline", micro_batches=2, devices=2)
    assert plan.notes["pipeline"]["stages"] == 2
    places = {name: plan.configuration(name).actions for name in ("found1", "layer3", "found3", "layer0", "layer5")}
    assert places["found1"] == places["layer3"] == places["found3"] == plan.configuration("table").actions
    assert places["layer0"] != places["layer5"]
