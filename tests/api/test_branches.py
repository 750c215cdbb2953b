"""What becomes of the writes and reads of branches and loops, of which all turns and branches are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

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


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda x: to.check_numerics(to.log(x), "x"), "CheckNumerics"),
        (lambda x: to.Print(x, [x]), "Print"),
        (lambda x: to.py_func(lambda y: y, [x], to.float32), "PyFunc"),
    ],
    ids=["check", "print", "python"],
)
@pytest.mark.parametrize("around", ["branch", "function", "loop"])
def test_what_acts_beyond_the_model_stays_in_its_branch(
    model: Model, act: Callable[[Any], Any], said: str, around: str
) -> None:
    """Whether it stands in the branch, in a function that the branch calls, or in a loop of it."""
    x, taken = to.placeholder(to.float32, [3], name="x"), to.placeholder(to.bool, [])

    def looped() -> Any:
        _, y = to.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, to.reshape(act(y), [3])), [to.constant(0), x])
        return y

    function = tf.function(lambda y: to.reshape(act(y), [3]), input_signature=[tf.TensorSpec([3])], autograph=False)
    branch = {"branch": lambda: to.reshape(act(x), [3]), "function": lambda: function(x), "loop": looped}[around]
    to.cond(taken, branch, lambda: x)
    graph = run_passes(model, Request())[0].graph
    assert not [op.name for op in graph.get_operations() if said in op.type]
    assert [op.type for op in graph.get_operations() if "If" in op.type] in (["If"], ["StatelessIf"])


def test_turns_of_a_loop_read_late_only_variables_that_are_written(model: Model) -> None:
    """A seed that moves on before the loop, say, is no reason for its weights to wait for the turns before."""
    weight, seed = (to.get_variable(name, [2]) for name in ("weight", "seed"))
    other_name = tf.identity(seed.handle)
    with to.control_dependencies([tf.raw_ops.AssignAddVariableOp(resource=other_name, value=[1.0, 1.0])]):
        x = seed.read_value() * 2.0
    to.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * weight + seed), [to.constant(0), x])
    graph = run_passes(model, Request())[0].graph
    reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp" and "/turn_" in op.name]
    assert {op.inputs[0].op.name: bool(op.control_inputs) for op in reads} == {"weight": False, "seed": True}
    assert len(reads) == 4
