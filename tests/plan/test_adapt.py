"""A plan for other sizes or more operators keeps what it can, and stores variables as before."""

from __future__ import annotations

import pytest

from tensoropt.errors import PlanError
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import contraction, elementwise
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh
from tensoropt.plan.adapt import adapted, nearest, stored_in_pieces
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import OperatorPlan, Plan, rules_of

pytestmark = pytest.mark.pure

_MESH = Mesh((2, 2))


def _graph(rows: int, columns: int = 8, *more: Operator) -> Graph:
    x, w, y = (TensorSpec(shape, "float32") for shape in ((rows, 4), (4, columns), (rows, columns)))
    operators = (
        Operator("x", "Placeholder", (), (x,)),
        Operator("w", "Variable", (), (w,)),
        Operator("y", "MatMul", (TensorId("x"), TensorId("w")), (y,), {"transpose_a": False, "transpose_b": False}),
        *more,
    )
    return Graph(operators, frozenset(op.name for op in operators))


def _plan(graph: Graph, **actions: tuple[str | None, ...]) -> Plan:
    operators = {name: OperatorPlan(Configuration(chosen), 1.0, 2.0) for name, chosen in actions.items()}
    empty = Plan(_MESH, graph.fingerprint(), "test", operators, {}, 3.0, 4.0, {"searched": "so"})
    return adapted(empty, graph)


def test_another_batch_keeps_splits_that_divide_it_and_the_variables() -> None:
    plan = _plan(_graph(8), x=("d0", "d0"), w=("d1", None), y=("m", "m"))
    plan.check(_graph(8))
    wanted = {8: ("m", "m"), 6: ("m", None), 5: (None, None), 1: (None, None)}
    for rows, actions in wanted.items():
        other = adapted(plan, _graph(rows))
        other.check(_graph(rows))
        assert other.configuration("y") == Configuration(actions)
        assert other.configuration("w") == plan.configuration("w")
        assert (other.option, other.time_s, other.notes) == ("test", 3.0, {"searched": "so"})


def test_steps_stay_where_both_ends_do() -> None:
    plan = _plan(_graph(8), x=("d0", "d0"), w=("d1", None), y=("m", "m"))
    other = adapted(plan, _graph(12))
    assert other.edges == plan.edges
    assert adapted(plan, _graph(8)) == plan


def test_a_new_operator_is_split_as_what_it_reads_if_its_rule_allows_that() -> None:
    y = TensorSpec((8, 8), "float32")
    late = Operator("late", "Tanh", (TensorId("y"),), (y,))
    text = Operator("odd", "NoSuchOpOfTensorFlow", (TensorId("late"),), (y,))
    plan = _plan(_graph(8), x=("d0", None), w=(None, "d1"), y=("m", "n"))
    other = adapted(plan, _graph(8, 8, late, text))
    other.check(_graph(8, 8, late, text))
    assert other.configuration("late") == Configuration(("d0", "d1"))
    assert other.configuration("odd") == Configuration((None, None))
    assert [str(edge) for edge in other.edges if edge not in plan.edges] == ["late:0 -> odd[0]"]


def test_a_variable_keeps_its_shape() -> None:
    plan = _plan(_graph(8), x=(None, None), w=("d1", "d1"), y=(None, None))
    with pytest.raises(PlanError, match=r"^Variable 'w': is stored as d1,d1 on Mesh\(2x2\), which float32\[4, 6\]"):
        adapted(plan, _graph(8, 6))


def test_an_op_that_takes_a_variable_itself_gets_it_as_it_is_stored() -> None:
    w = TensorSpec((4, 8), "float32")
    inputs = (TensorId("w"), TensorId("value"))
    value = Operator("value", "Placeholder", (), (w,))
    plan = _plan(_graph(8), x=(None, None), w=("d1", "d0"), y=(None, None))
    graph = _graph(8, 8, value, Operator("set", "AssignVariableOp", inputs, (), handles=(0,)))
    other = adapted(plan, graph)
    other.check(graph)
    assert other.configuration("set") == Configuration(("d1", "d0"))
    graph = _graph(8, 8, value, Operator("odd", "NoSuchOpOfTensorFlow", inputs, (), handles=(0,)))
    with pytest.raises(PlanError, match=r"'odd': takes variable 'w' itself, .* stores as \{1\}\{0\}.* before"):
        adapted(plan, graph)


def test_nearest_drops_what_is_no_axis_or_does_not_divide() -> None:
    x, w, y = (TensorSpec(shape, "float32") for shape in ((6, 4), (4, 9), (6, 9)))
    product = contraction("m k, k n -> m n", [x, w], [y])
    assert nearest(Configuration(("m", "m")), product, _MESH) == Configuration(("m", None))
    assert nearest(Configuration(("n", "k")), product, _MESH) == Configuration((None, "k"))
    assert nearest(Configuration(("@1", "~")), elementwise([x], [x]), _MESH) == Configuration(("@1", None))


def test_what_is_stored_before_there_is_a_strategy_is_in_as_many_pieces_as_it_can_be() -> None:
    shapes = {"rows": (8, 3), "columns": (6, 12), "neither": (3, 5), "number": ()}
    graph = Graph(tuple(Operator(n, "Variable", (), (TensorSpec(s, "float32"),)) for n, s in shapes.items()))
    plan = stored_in_pieces(graph, _MESH)
    plan.check(graph)
    rules = rules_of(graph)
    stored = {name: plan.configuration(name).output_layouts(rules[name], 0).value for name in shapes}
    assert stored["rows"] == Layout(((0, 1), ()))
    assert stored["columns"] == Layout(((), (0, 1)))
    assert stored["neither"] == Layout(((), ()))
    assert stored["number"] == Layout(())
