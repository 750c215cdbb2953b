"""The table of a plan: what it says of tensors of which one copy is kept."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

pytestmark = pytest.mark.tf


def test_kept_copies_are_shown_only_where_a_plan_chooses_among_them() -> None:
    import tensoropt
    from tensoropt.cluster.presets import cpu

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
        tensoropt.show_strategy(each, Console(file=out, width=160))
        texts.append(out.getvalue())
    assert "kept copies" not in texts[0]
    assert "kept copies" in texts[1]
    assert f"before of input {edge.position}" in texts[1]
    rows = {row["operator"]: row["keep"] for row in tensoropt.strategy_rows(kept)}
    assert rows == {row["operator"]: {} for row in tensoropt.strategy_rows(plan)} | {"y": {edge.position: "before"}}
