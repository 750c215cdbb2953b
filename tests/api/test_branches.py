"""What becomes of the writes of a branch, which are made whether or not it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensoropt as to
from tensoropt.api.frontend.pipeline import run_passes
from tensoropt.api.frontend.rewriting.rewriter import order
from tensoropt.api.frontend.source import Request
from tensoropt.api.mirror.model import Model

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    "write",
    [
        lambda table: to.scatter_sub(table, [0], [[1.0, 1.0]]),
        lambda table: to.assign(table, [[1.0, 1.0]] * 3),
        lambda table: to.train.MomentumOptimizer(0.1, 0.9).apply_gradients([(to.ones([3, 2]), table)]),
    ],
    ids=["rows", "assign", "step"],
)
def test_a_write_of_a_branch_keeps_what_the_writes_before_it_have_left(
    model: Model, write: Callable[[Any], Any]
) -> None:
    """TensorFlow lets an op whose operands wait for a write not wait itself; the old value is read after that, too."""
    table = to.get_variable("table", [3, 2])
    taken = to.placeholder(to.bool, [])

    def writes() -> Any:
        with to.control_dependencies([to.train.GradientDescentOptimizer(0.1).apply_gradients([(2 * table, table)])]):
            return to.group(write(table))

    to.cond(taken, writes, to.no_op)
    graph = run_passes(model, Request())[0].graph
    ops = graph.get_operations()
    (first,) = (op.name for op in ops if op.type == "ResourceApplyGradientDescent")
    (put_back,) = (op.name for op in ops if op.type == "AssignVariableOp" and f"{first}/choice" in op.name)
    reads = [
        op
        for op in ops
        if op.type == "ReadVariableOp"
        and op.inputs[0].op.name == "table"
        and ("/before/" in op.name or "/assign/" in op.name)
        and not op.name.startswith(first)
    ]
    assert len(reads) == 1
    assert put_back in {op.name for op in order(reads)}
