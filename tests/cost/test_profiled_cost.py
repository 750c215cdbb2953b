"""The measured cost model: what was measured, and what stands in for what was not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensoropt.cluster import CollectiveModel, CollectiveProfile, ProfileEntry
from tensoropt.cluster.presets import cpu
from tensoropt.cost import (
    AnalyticCost,
    Curve,
    KnowsScratch,
    OpProfile,
    OpTime,
    ProfiledCost,
    gradient_positions,
    packing_of,
    profile_key,
    whole_key,
)
from tensoropt.cost.cost_model import OpCall
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Coarsening, Resharder, StepKind
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import embedding, mlp, operator

pytestmark = pytest.mark.pure

GRAPH = mlp()
ENTRIES = [
    ProfileEntry(kind.value, (2,), (1024, 4096), (1e-4, 3e-4))
    for kind in (StepKind.ALL_REDUCE, StepKind.ALL_GATHER, StepKind.ALL_TO_ALL)
]
TOPOLOGY = dataclasses.replace(cpu(2), profile=CollectiveProfile.of(ENTRIES))
ANALYTIC = AnalyticCost(TOPOLOGY)
CURVES = {
    "sum": Curve((100, 300), (1e-6, 3e-6)),
    "slice": Curve((1000,), (2e-5,)),
    "mask": Curve((1000,), (4e-5,)),
    "transpose": Curve((1000,), (6e-5,)),
    "feed": Curve((10, 1000), (1e-6, 1e-4)),
    "update ResourceApplyAdam": Curve((1000,), (7e-5,)),
}


def _op(cost: ProfiledCost, name: str, actions: tuple[str | None, ...] = (None,), graph: Graph = GRAPH) -> float:
    op = graph[name]
    inputs = graph.input_specs(op)
    gradients = len(gradient_positions(graph, op)[0])
    return cost.op_seconds(OpCall(op, rule_of(op, inputs), inputs, Configuration(actions), gradients))


def _analytic(name: str, actions: tuple[str | None, ...] = (None,)) -> float:
    op = GRAPH[name]
    inputs = GRAPH.input_specs(op)
    gradients = len(gradient_positions(GRAPH, op)[0])
    return ANALYTIC.op_seconds(OpCall(op, rule_of(op, inputs), inputs, Configuration(actions), gradients))


def _key(name: str, actions: tuple[str | None, ...] = (None,), graph: Graph = GRAPH) -> str:
    op = graph[name]
    inputs = graph.input_specs(op)
    positions = gradient_positions(graph, op)
    return profile_key(op, rule_of(op, inputs), inputs, Configuration(actions), ANALYTIC.mesh, *positions)


def test_gradients_go_to_trained_inputs_and_come_from_read_outputs() -> None:
    assert gradient_positions(GRAPH, GRAPH["h"]) == ((1,), (0,))  # x is not trained
    assert gradient_positions(GRAPH, GRAPH["y"]) == ((0, 1), (0,))
    assert gradient_positions(GRAPH, GRAPH["x"]) == ((), ())


def test_what_was_measured_is_what_an_operator_costs() -> None:
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({_key("y", ("m",)): OpTime("MatMul", 2e-3, 5e-3, 1e-6)}))
    assert _op(cost, "y", ("m",)) == pytest.approx(7e-3)


def test_what_was_not_measured_is_as_much_slower_than_the_model_as_its_type_is() -> None:
    measured = OpTime("MatMul", 2 * _analytic("y"), _analytic("y"), _analytic("y"))
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({_key("y"): measured}))
    assert _op(cost, "y", ("m",)) == pytest.approx(3 * _analytic("y", ("m",)))
    assert _op(cost, "s") == pytest.approx(3 * _analytic("s"))  # no Square at all: the ratio of everything


def test_what_was_measured_of_the_operator_itself_tells_more_than_its_type() -> None:
    inputs = GRAPH.input_specs(GRAPH["y"])
    whole = whole_key(
        GRAPH["y"], rule_of(GRAPH["y"], inputs), inputs, ANALYTIC.mesh, *gradient_positions(GRAPH, GRAPH["y"])
    )
    times = {
        _key("y"): OpTime("MatMul", 2 * _analytic("y"), _analytic("y"), _analytic("y"), whole=whole),
        _key("h"): OpTime("MatMul", 9 * _analytic("h"), 0.0, _analytic("h"), whole="another"),
        _key("h", ("m",)): OpTime("MatMul", 9 * _analytic("h"), 0.0, _analytic("h"), whole="another"),
    }
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile(times))
    assert whole == _key("y")
    assert _op(cost, "y", ("m",)) == pytest.approx(3 * _analytic("y", ("m",)))
    assert _op(cost, "s") == pytest.approx(9 * _analytic("s"))


def test_without_measurements_operators_cost_what_the_analytic_model_says() -> None:
    cost = ProfiledCost(cpu(2), GRAPH, OpProfile())
    assert _op(cost, "y", ("m",)) == pytest.approx(
        AnalyticCost(cpu(2)).op_seconds(
            OpCall(
                GRAPH["y"],
                rule_of(GRAPH["y"], GRAPH.input_specs(GRAPH["y"])),
                GRAPH.input_specs(GRAPH["y"]),
                Configuration(("m",)),
                2,
            )
        )
    )
    size = np.array([4096.0])
    step = (StepKind.ALL_GATHER, (0,), size)
    assert cost.step_seconds(*step) == pytest.approx(AnalyticCost(cpu(2)).step_seconds(*step))
    update = cost.update_seconds("ResourceApplyAdam", 3000.0)
    assert update == cost.traffic_seconds(3000.0) == AnalyticCost(cpu(2)).traffic_seconds(3000.0)


def test_reductions_inside_an_operator_cost_what_the_collectives_do() -> None:
    softmax = operator("p", "Softmax", ("y",), (8, 4))
    edge = Edge(TensorId("y"), "p", 0)
    graph = Graph((*GRAPH.operators, softmax), GRAPH.training | {"p"}, GRAPH.differentiable | {edge})
    split = next(iter(rule_of(softmax, graph.input_specs(softmax)).internal))
    entry = OpTime("Softmax", 1e-3, 2e-3, 1.0, (1024, 4096), (1024,))
    cost = ProfiledCost(TOPOLOGY, graph, OpProfile({_key("p", (split,), graph): entry}))
    talk = float(np.sum(CollectiveModel(TOPOLOGY).seconds("all_reduce", (0,), np.array([1024.0, 4096, 1024]))))
    assert talk == pytest.approx(5e-4)
    assert _op(cost, "p", (split,), graph) == pytest.approx(3e-3 + talk)
    inputs = graph.input_specs(softmax)
    inside = cost.internal_seconds(OpCall(softmax, rule_of(softmax, inputs), inputs, Configuration((split,)), 1))
    assert inside == pytest.approx(talk)


def test_a_bias_and_an_activation_after_a_product_are_part_of_it() -> None:
    times = {_key(name): OpTime(GRAPH[name].type, 1e-3, 1e-5, 1.0) for name in ("h", "hb", "a", "s")}
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile(times))
    assert _op(cost, "h") == _op(cost, "s") == pytest.approx(1e-3 + 1e-5)
    assert _op(cost, "hb") == _op(cost, "a") == pytest.approx(1e-5)


def test_a_product_that_others_read_too_is_computed_by_itself() -> None:
    reader = operator("more", "Square", ("h",), (8, 12))
    graph = Graph((*GRAPH.operators, reader), GRAPH.training | {"more"}, GRAPH.differentiable)
    times = {_key(name, graph=graph): OpTime(graph[name].type, 1e-3, 1e-5, 1.0) for name in ("hb", "a")}
    cost = ProfiledCost(TOPOLOGY, graph, OpProfile(times))
    assert _op(cost, "hb", graph=graph) == _op(cost, "a", graph=graph) == pytest.approx(1e-3 + 1e-5)


def test_steps_cost_what_was_measured_and_packing_what_copies_take() -> None:
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({}, CURVES))
    size = np.array([1000.0])
    assert cost.step_seconds(StepKind.SLICE, (0,), size)[0] == pytest.approx(2e-5)
    assert cost.step_seconds(StepKind.TO_PARTIAL, (0,), size)[0] == pytest.approx(4e-5)
    assert cost.step_seconds(StepKind.ALL_REDUCE, (0,), size)[0] == pytest.approx(1e-4)
    assert cost.step_seconds(StepKind.ALL_TO_ALL, (0,), size)[0] == pytest.approx(1e-4)
    once, twice = np.array([1]), np.array([2])
    assert cost.packing_seconds(StepKind.ALL_TO_ALL, size, 2, twice)[0] == pytest.approx(12e-5)
    assert cost.packing_seconds(StepKind.REDUCE_SCATTER, size, 2, once)[0] == pytest.approx(6e-5)
    # What comes out is twice as large, and is what is moved around.
    assert cost.packing_seconds(StepKind.ALL_GATHER, size, 2, once)[0] == pytest.approx(12e-5)
    for kind in (StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL):
        assert cost.packing_seconds(kind, size, 2, 0 * once)[0] == 0
    assert cost.packing_seconds(StepKind.ALL_REDUCE, size, 2, once)[0] == 0


def test_a_slice_of_the_outermost_dimension_is_a_view() -> None:
    curves = {**CURVES, "slice": Curve((10, 1000), (1e-6, 2e-5))}
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({}, curves))
    size = np.array([1000.0])
    taken = cost.step_seconds(StepKind.SLICE, (0,), size)
    assert taken + cost.packing_seconds(StepKind.SLICE, size, 2, np.array([1])) == pytest.approx(2e-5)
    assert taken + cost.packing_seconds(StepKind.SLICE, size, 2, np.array([0])) == pytest.approx(1e-6)


def test_a_table_prices_packing_by_the_dimension_that_is_cut() -> None:
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({}, CURVES))
    resharder = Resharder(cost.mesh, cost.step_seconds, Coarsening(), packing_of(cost))
    whole, columns = np.array([[-1]], np.int8), np.array([[1]], np.int8)
    for shape, strided in (((8, 32), columns), ((1, 8, 32), columns + 1), ((32, 8), columns)):
        outer = strided - 1
        table = resharder.table(shape, 4, np.concatenate([whole, outer, strided]))
        plain, packed = table.between(outer, whole)[0, 0], table.between(strided, whole)[0, 0]
        gather = cost.step_seconds(StepKind.ALL_GATHER, (0,), np.array([512.0]))[0]
        assert plain == pytest.approx(gather)
        assert packed == pytest.approx(gather + CURVES["transpose"].at(np.array([1024.0]))[0])
        # From one dimension to the other only the pieces of the inner one are strided, on one side.
        moves = cost.step_seconds(StepKind.ALL_TO_ALL, (0,), np.array([512.0]))[0]
        expected = moves + CURVES["transpose"].at(np.array([512.0]))[0]
        cut = float(CURVES["slice"].at(np.array(1024.0)))
        assert table.between(outer, strided)[0, 0] == pytest.approx(min(expected, plain + cut))
        assert table.between(strided, outer)[0, 0] == pytest.approx(min(expected, packed + 2e-5))
    assert packing_of(ANALYTIC) is None


def test_traffic_and_updates_follow_their_curves() -> None:
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({}, CURVES))
    assert cost.traffic_seconds(600.0) == pytest.approx(2e-6)
    assert cost.update_seconds("ResourceApplyAdam", 1000.0) == pytest.approx(7e-5)
    assert cost.update_seconds("ResourceApplyMomentum", 600.0) == pytest.approx(2e-6)  # it was not measured


def test_an_iteration_takes_its_share_of_the_inputs_too() -> None:
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({}, CURVES, 1e-3))
    size = GRAPH["x"].outputs[0].size_bytes / 2
    assert cost.iteration_seconds == pytest.approx(1e-3 + float(CURVES["feed"].at(np.array(size))))


def test_every_strategy_of_a_space_takes_the_iteration_too() -> None:
    graph = embedding()
    spaces = [SearchSpace(graph, ProfiledCost(TOPOLOGY, graph, OpProfile({}, CURVES, more))) for more in (0.0, 1.0)]
    for point in ([0] * len(graph.operators), [len(spaces[0].choices(op.name)) - 1 for op in graph.operators]):
        without, with_more = (space.problem.costs(np.array(point))[0][0] for space in spaces)
        assert with_more == pytest.approx(without + 1.0)


def test_what_kernels_hold_beside_tensors_is_what_was_measured() -> None:
    entry = OpTime("MatMul", 2e-3, 5e-3, 1e-6, scratch_bytes=(7, 0, 9))
    cost = ProfiledCost(TOPOLOGY, GRAPH, OpProfile({_key("y"): entry}))
    assert isinstance(cost, KnowsScratch) and not isinstance(ANALYTIC, KnowsScratch)
    op = GRAPH["y"]
    inputs = GRAPH.input_specs(op)
    rule = rule_of(op, inputs)
    assert cost.scratch_bytes(OpCall(op, rule, inputs, Configuration((None,)), 2)) == (7.0, 0.0, 9.0)
    assert cost.scratch_bytes(OpCall(op, rule, inputs, Configuration(("m",)), 2)) == (0.0, 0.0, 0.0)


def test_operators_alike_of_which_tensorflow_fuses_one_have_tables_of_their_own() -> None:
    operators = (
        operator("x", "Placeholder", (), (8, 8)),
        operator("b", "VariableV2", (), (8,)),
        operator("w", "VariableV2", (), (8, 8)),
        operator("product", "MatMul", ("x", "w"), (8, 8), {"transpose_a": False, "transpose_b": False}),
        operator("biased", "BiasAdd", ("product", "b"), (8, 8), {"data_format": "NHWC"}),
        operator("first", "Relu", ("biased",), (8, 8)),
        operator("second", "Relu", ("first",), (8, 8)),
        operator("loss", "Sum", ("second",), (), {"keep_dims": False}, static={1: np.array([0, 1])}),
    )
    edges = frozenset(Edge(op.inputs[-1], op.name, len(op.inputs) - 1) for op in operators[3:])
    graph = Graph(operators, frozenset(op.name for op in operators), edges)
    measured = OpTime("Relu", 2e-3, 1e-3, 1e-6)
    profile = OpProfile({_key(name, graph=graph): measured for name in ("first", "second")})
    space = SearchSpace(graph, ProfiledCost(TOPOLOGY, graph, profile))
    seconds = {name: {round(time, 6) for time in space.node_tables(name)[0].tolist()} for name in ("first", "second")}
    assert 1e-3 in seconds["first"]
    assert 3e-3 not in seconds["first"]
    assert 3e-3 in seconds["second"]
