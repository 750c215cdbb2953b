"""Which copy of a moved tensor may be kept, and the way back from one to the other."""

from __future__ import annotations

import dataclasses
import itertools
from types import MappingProxyType

import pytest

from tensoropt.errors import OpError, PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, registered_types, rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh, Step, StepKind, canonical_path
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan, rules_of
from tensoropt.plan.tensor_reuse import keep_choices, reads_again, reverse_steps, why_not_kept
from tests.plan.small_graphs import mlp, operator, tied

pytestmark = pytest.mark.pure

_GATHER = Step(StepKind.ALL_GATHER, (0,), 0)


def _choices(graph: Graph) -> dict[str, tuple[str, ...]]:
    rules = rules_of(graph)
    return {str(edge): keep_choices(graph, rules, edge) for edge in graph.edges()}


def test_what_an_operator_reads_in_the_backward_pass_can_be_made_again_for_it() -> None:
    assert _choices(mlp()) == {
        "x:0 -> h[0]": ("both", "before"),
        "w1:0 -> h[1]": ("both", "before"),
        "h:0 -> hb[0]": ("both",),
        "b1:0 -> hb[1]": ("both",),
        "hb:0 -> a[0]": ("both",),
        "a:0 -> y[0]": ("both", "before", "after"),  # Relu's gradient follows from what it gives
        "w2:0 -> y[1]": ("both", "before"),
        "y:0 -> s[0]": ("both", "before"),
        "s:0 -> flat[0]": ("both",),
        "flat:0 -> loss[0]": ("both",),
        "loss:0 -> loss:0/sink[0]": ("both",),
    }


def test_a_fan_out_is_made_again_for_its_readers() -> None:
    graph = tied()
    rules = rules_of(graph)
    into, first, second = (Edge(TensorId("w"), "w/fanout0", 0), *graph.consumers(TensorId("w/fanout0")))
    assert {keep_choices(graph, rules, edge) for edge in (into, first, second)} == {("both", "before")}
    assert [reads_again(graph, rules, edge, {into: "before"}) for edge in (into, first, second)] == [True] * 3
    # A reader that has a copy of its own keeps it.
    keep = {into: "before", first: "both"}
    assert [reads_again(graph, rules, edge, keep) for edge in (into, first, second)] == [True, False, True]
    assert not any(reads_again(graph, rules, edge, {into: "after"}) for edge in (into, first, second))


def test_a_gradient_that_does_not_flow_needs_no_copy() -> None:
    graph = mlp()
    forward = dataclasses.replace(graph, differentiable=frozenset())
    assert set(_choices(forward).values()) == {("both",)}


def _branches() -> Graph:
    """A product of random numbers, and an activation that two products read without a fan-out."""
    plain = {"transpose_a": False, "transpose_b": False}
    ops = (
        operator("w", "Variable", (), (4, 4)),
        operator("odd", "NoSuchType", ("w",), (4, 4)),
        operator("a", "Tanh", ("odd",), (4, 4)),
        operator("one", "MatMul", ("a", "w"), (4, 4), plain),
        operator("other", "MatMul", ("a", "w"), (4, 4), plain),
    )
    edges = frozenset(Edge(tensor, op.name, i) for op in ops for i, tensor in enumerate(op.inputs))
    return Graph(ops, frozenset(op.name for op in ops), edges)


@pytest.mark.parametrize(
    ("edge", "keep", "reason"),
    [
        (("w", "odd", 0), "before", r"NoSuchType 'odd' has no rule or has a state, so it cannot be built twice"),
        (("a", "one", 0), "after", r"'other' reads it too"),
        (("w", "one", 1), "after", r"the gradient of Variable 'w' does not follow from its output"),
    ],
)
def test_a_copy_that_cannot_be_made_again_is_refused(edge: tuple[str, str, int], keep: str, reason: str) -> None:
    graph = _branches()
    rules = rules_of(graph)
    assert why_not_kept(graph, rules, Edge(TensorId(edge[0]), *edge[1:]), keep) == reason


def test_a_plan_that_keeps_what_cannot_run_is_refused() -> None:
    graph = mlp()
    rules = rules_of(graph)
    # All is whole on two devices, but for the variable b1 and the output of h, which are gathered.
    split = {"b1": Configuration(("d0",)), "a": Configuration(("d0",))}
    operators = {op.name: OperatorPlan(split.get(op.name, Configuration((None,))), 0.0, 0.0) for op in graph.operators}
    cut = Step(StepKind.SLICE, (0,), 0)

    def plan(keep_bias: str, keep_activation: str) -> Plan:
        edges = {
            Edge(TensorId("b1"), "hb", 1): EdgePlan((_GATHER,), (cut,), keep=keep_bias),
            Edge(TensorId("hb"), "a", 0): EdgePlan((cut,), (_GATHER,)),
            Edge(TensorId("a"), "y", 0): EdgePlan((_GATHER,), (cut,), keep=keep_activation),
        }
        return Plan(Mesh((2,)), graph.fingerprint(), "hand", operators, edges, 0.0, 0.0, {})

    for keep in keep_choices(graph, rules, Edge(TensorId("a"), "y", 0)):
        plan("both", keep).check(graph)
    with pytest.raises(PlanError, match=r"b1:0 -> hb\[1\] keeps the copy 'before' .*'hb' does not read it in the back"):
        plan("before", "both").check(graph)


def test_steps_back_lead_back_from_every_layout_of_whole_values() -> None:
    mesh = Mesh((2, 2))
    groups: list[tuple[int, ...]] = [(), (0,), (1,), (0, 1), (1, 0)]
    layouts = [Layout(dims) for dims in itertools.product(groups, repeat=2) if not set(dims[0]) & set(dims[1])]
    paths = 0
    for source, target in itertools.product(layouts, repeat=2):
        steps = canonical_path(source, target)
        layout = target
        for step in reverse_steps(source, steps):
            layout = step.apply(layout)
            layout.check((8, 8), mesh, "test")
        assert layout == source
        paths += bool(steps)
    assert paths > 100
    moves = (Step(StepKind.ALL_TO_ALL, (0,), 0, 1), Step(StepKind.PERMUTE, target=Layout(((1,), ()))))
    source = Layout(((0,), ()))
    assert reverse_steps(source, moves[:1]) == (Step(StepKind.ALL_TO_ALL, (0,), 1, 0),)
    assert reverse_steps(source, moves[1:]) == (Step(StepKind.PERMUTE, target=source),)


def test_steps_back_from_steps_that_take_sums_gather_instead() -> None:
    # A slice in disguise: all but the first device of a group drop their own, and each gets a part of the sum.
    sums = (Step(StepKind.TO_PARTIAL, (0,)), Step(StepKind.REDUCE_SCATTER, (0,), 1))
    assert reverse_steps(Layout(((), ())), sums) == (Step(StepKind.ALL_GATHER, (0,), 1),)


def test_an_op_whose_gradient_follows_from_its_output_reads_nothing_else() -> None:
    for op_type in sorted(_from_output()):
        rule = _elementwise_rule(op_type)
        assert (rule.saved_inputs, rule.saved_outputs) == ((), (0,)), op_type
        assert not rule.reduced, op_type  # its output is never a partial sum, which could not be made again


def test_ops_that_read_their_output_alone_are_known() -> None:
    found = set()
    for op_type in registered_types():
        if any(len(sample.operands) == 1 and not sample.attrs for sample in declaration(op_type).samples):
            try:
                rule = _elementwise_rule(op_type)
            except (OpError, KeyError, IndexError, ValueError):  # it is not one matrix to another of its shape
                continue
            if any(rule.outputs[0]) and rule.saved_outputs == (0,) and not rule.saved_inputs:  # not of whole matrices
                found.add(op_type)
    assert found <= _from_output()


def _from_output() -> set[str]:
    return {each for each in registered_types() if declaration(each).traits.gradient_from_output is not None}


def _elementwise_rule(op_type: str) -> OpRule:
    spec = TensorSpec((4, 6), "float32")
    op = Operator("op", op_type, (TensorId("x"),), (spec,), MappingProxyType({}))
    return rule_of(op, (spec,))
