"""The table of a plan: what it says of tensors of which one copy is kept, and of what was searched."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from tensoropt.cluster.presets import cpu, preset
from tensoropt.plan.plan import EdgePlan, Plan
from tensoropt.storage.document import printable

pytestmark = pytest.mark.tf


def test_kept_copies_are_shown_only_where_a_plan_chooses_among_them() -> None:
    import tensoropt

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
    w = tensoropt.get_variable("w", [64, 4096])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w, name="y")), name="loss")
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    plan = tensoropt.find_strategy("mini_memory", topology=cpu(2), feed="global")
    plan = dataclasses.replace(plan, edges={e: dataclasses.replace(p, keep="both") for e, p in plan.edges.items()})
    moved = [edge for edge, entry in sorted(plan.edges.items()) if entry.forward and edge.consumer == "y"]
    edge, entry = moved[0], plan.edge(moved[0])
    kept = dataclasses.replace(plan, edges=dict(plan.edges) | {edge: dataclasses.replace(entry, keep="before")})
    texts = []
    for each in (plan, kept):
        out = io.StringIO()
        tensoropt.show_strategy(each, Console(file=out, width=160), full=True)
        texts.append(out.getvalue())
    assert "kept copies" not in texts[0]
    assert "kept copies" in texts[1]
    assert f"before of input {edge.position}" in texts[1]
    rows = {row["operator"]: row["keep"] for row in tensoropt.strategy_rows(kept)}
    assert rows == {row["operator"]: {} for row in tensoropt.strategy_rows(plan)} | {"y": {edge.position: "before"}}


def test_a_plan_that_places_an_operator_is_shown_and_runs() -> None:
    import tensoropt
    from tensoropt.api.frontend.imported_model import load_plan
    from tensoropt.api.session.job import current_job
    from tensoropt.cost import AnalyticCost
    from tensoropt.plan.configuration import Configuration, at
    from tensoropt.space.space import SearchSpace

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
    w = tensoropt.get_variable("w", [64, 16])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, w, name="y"), name="loss")
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    space = SearchSpace(current_job().imported_model().graph, AnalyticCost(cpu(4)), placements=True)
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    plan = space.plan(space.assignment(chosen | {"y": Configuration((at(1), "m"))}), "by hand")
    row = next(row for row in tensoropt.strategy_rows(plan) if row["operator"] == "y")
    assert row["splits"] == ["at 1", "split m"]
    assert row["communication"]["forward"].count("drop{0} to 1") == 2  # of its input and its weight
    assert load_plan(plan, current_job().imported_model().graph, 4) == plan


def test_a_plan_says_what_was_left_out_of_the_search() -> None:
    import tensoropt

    def shown(plan: Plan) -> str:
        out = io.StringIO()
        tensoropt.show_strategy(plan, Console(file=out, width=160))
        return out.getvalue()

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
    hidden = tensoropt.matmul(x, tensoropt.get_variable("w1", [64, 16]))
    loss = tensoropt.reduce_mean(tensoropt.matmul(hidden, tensoropt.get_variable("w2", [16, 16])))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    left_out = "every operator on all devices"
    for search in ("ft", "pase", "mcmc", "zero3"):
        plan = tensoropt.find_strategy(topology=cpu(2), search=search)
        assert plan.notes["space"] == left_out
        assert f"Space: {left_out}" in shown(plan)
    placed = tensoropt.find_strategy(topology=cpu(2), search="model_parallel")
    assert "space" not in placed.notes
    assert "Space:" not in shown(placed)


def test_a_plan_says_that_its_kernels_are_those_of_the_described_device() -> None:
    import tensoropt

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [64, 4096], name="x")
    hidden = tensoropt.square(tensoropt.matmul(x, tensoropt.get_variable("w", [4096, 64])) * 0.5 + 1.0)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(hidden), name="train")
    cluster = preset("h100", devices=2)
    fused = dataclasses.replace(cluster, device=dataclasses.replace(cluster.device, fusion="pointwise"))
    out = io.StringIO()
    plans = {each.device.fusion: tensoropt.find_strategy(topology=each) for each in (cluster, fused)}
    tensoropt.show_strategy(plans["pointwise"], Console(file=out, width=160))
    assert "Kernels: pointwise, as priced" in out.getvalue()
    assert "kernels" not in plans["none"].notes
    assert plans["pointwise"].time_s < plans["none"].time_s


@pytest.mark.parametrize(("causal", "dropout"), [(False, 0.0), (True, 0.0), (True, 0.1)])
def test_attention_of_keras_is_one_kernel_where_devices_have_such(causal: bool, dropout: float) -> None:
    import keras

    import tensoropt

    inputs = keras.Input((64, 32))
    attention = keras.layers.MultiHeadAttention(2, 16, dropout=dropout)
    model = keras.Model(inputs, attention(inputs, inputs, use_causal_mask=causal))
    model.compile("sgd", "mse")
    cluster = preset("h100", devices=2)
    seconds = [
        tensoropt.keras.plan(
            model,
            batch_size=32,
            topology=dataclasses.replace(cluster, device=dataclasses.replace(cluster.device, fusion=fusion)),
        ).time_s
        for fusion in ("none", "pointwise", "attention")
    ]
    assert seconds == sorted(seconds, reverse=True) and len(set(seconds)) == 3


_TEXTS = ("[red]red[/red]", "[/]", "[link=file:///etc/passwd]x[/link]", ":bomb:", "a\x1b[2Jb\x07\u202ec")


@pytest.mark.parametrize("text", _TEXTS)
def test_texts_of_a_plan_are_no_markup_and_do_not_steer_a_terminal(text: str) -> None:
    import tensoropt

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [64, 16]), name="y"))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    plan = tensoropt.find_strategy("mini_time", topology=cpu(2), feed="global")
    notes = {**plan.notes, "space": text, "searched": text}
    named = dataclasses.replace(plan, option=text, notes=notes)
    for full in (False, True):
        out = io.StringIO()
        console = Console(file=out, width=300, force_terminal=True, color_system=None)
        tensoropt.show_strategy(named, console, full=full)
        assert printable(text) in out.getvalue()
        assert not any(steering in out.getvalue() for steering in ("\x1b[2J", "\x07", "\u202e", "\x1b]8"))


def test_an_error_about_a_plan_is_short_whatever_names_it_has() -> None:
    import tensoropt
    from tensoropt.api.session.job import current_job
    from tensoropt.errors import PlanError
    from tensoropt.plan.configuration import Configuration

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 64], name="x")
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [64, 16]), name="y"))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    plan = tensoropt.find_strategy("mini_time", topology=cpu(2), feed="global")
    graph = current_job().imported_model().graph
    long = "\x1b[2J" + "x" * 10_000
    edge = next(iter(graph.edges()))
    y = plan.operators["y"]
    entry = dataclasses.replace(y, configuration=Configuration((long,)))
    forged = (
        dataclasses.replace(plan, fingerprint=long),
        dataclasses.replace(plan, operators={**plan.operators, long: y}),
        dataclasses.replace(plan, operators={**plan.operators, "y": entry}),
        dataclasses.replace(plan, edges={**plan.edges, edge._replace(consumer=long): EdgePlan()}),
    )
    for each in forged:
        for use in (each.check, lambda graph, each=each: tensoropt.show_strategy(each, full=True)):
            with pytest.raises(PlanError) as refused:
                use(graph)
            assert len(str(refused.value)) <= 1000 and "\x1b" not in str(refused.value)
    with pytest.raises(PlanError) as refused:
        plan.configuration(long)
    assert len(str(refused.value)) <= 300
