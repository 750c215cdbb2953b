"""What touches a variable in no order is given that of the script; what has an order keeps it."""

from __future__ import annotations

import pytest

from tensoropt.exec.schedule.touching import in_order, order_line
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec

pytestmark = pytest.mark.pure

_SPEC = TensorSpec((4,), "float32")


def _variable(name: str) -> Operator:
    return Operator(name, "Variable", (), (_SPEC,))


def _write(name: str, *variables: str, after: tuple[str, ...] = ()) -> Operator:
    inputs = tuple(map(TensorId, variables))
    handles = tuple(range(len(variables)))
    return Operator(name, "ResourceApplyMomentum", inputs, (), control_inputs=after, handles=handles)


def _read(name: str, variable: str, after: tuple[str, ...] = ()) -> Operator:
    return Operator(name, "ReadVariableOp", (TensorId(variable),), (_SPEC,), control_inputs=after, handles=(0,))


def test_each_waits_for_the_one_before_it_that_it_may_not_meet() -> None:
    operators = [
        _variable("v"),
        _write("first", "v"),
        _read("seen", "v", after=("first",)),
        _read("also", "v"),
        _write("second", "v"),
        _write("third", "v", after=("second",)),
    ]
    ordered, waits = in_order(operators, ())
    assert ordered == operators
    # Reads need not wait for one another; what the last one waits for comes before it anyway.
    assert waits == {"also": ("first",), "second": ("also", "seen")}
    line = order_line(operators, waits)
    assert "ResourceApplyMomentum 'first' and ReadVariableOp 'also' touch variable 'v'" in line


def test_what_has_an_order_or_one_writer_waits_for_nothing_more() -> None:
    operators = [
        _variable("v"),
        _variable("slot"),
        _write("update", "v", "slot"),
        Operator("group", "NoOp", (), (), control_inputs=("update",)),
        _read("later", "v", after=("group",)),
        Operator("square", "Square", (TensorId("later"),), (_SPEC,)),
        _write("assign", "slot", after=("square",)),
    ]
    assert in_order(operators, ()) == (operators, {})


def test_what_waits_for_one_that_comes_late_comes_late() -> None:
    operators = [
        _variable("v"),
        _variable("other"),
        _write("update", "v"),
        _write("assign", "v", "other"),
        Operator("square", "Square", (TensorId("other"),), (_SPEC,)),
        _read("seen", "other", after=("assign",)),
        Operator("cube", "Square", (TensorId("seen"),), (_SPEC,)),
    ]
    ordered, waits = in_order(operators, {"update"})
    assert waits == {"assign": ("update",)}
    assert [op.name for op in ordered] == ["v", "other", "square", "update", "assign", "seen", "cube"]
