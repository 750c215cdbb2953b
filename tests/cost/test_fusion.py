"""Kernels of several operators: which there are, and what they cost."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import networkx as nx
import pytest

from tensoropt.cluster.presets import h100
from tensoropt.cost import AnalyticCost
from tensoropt.cost.cost_model import OpCall
from tensoropt.cost.fusion import ALONE, KernelPart, kernel_parts
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import Configuration
from tests.plan.small_graphs import operator

pytestmark = pytest.mark.pure

_HEADS = (8, 16, 512, 512)
_VALUES = (8, 16, 512, 64)


def _product(name: str, left: str, right: str, shape: tuple[int, ...], *, turned: bool = False) -> Operator:
    return operator(name, "BatchMatMulV2", (left, right), shape, {"adj_x": False, "adj_y": turned})


def _attention() -> Graph:
    """Queries, keys, values and a mask; scores, masked, their softmax, what comes of it; twice that, and its square."""
    operators = (
        *(operator(name, "Placeholder", (), _VALUES) for name in ("q", "k", "v")),
        operator("mask", "Placeholder", (), _HEADS[-2:]),
        _product("scores", "q", "k", _HEADS, turned=True),
        operator("masked", "AddV2", ("scores", "mask"), _HEADS),
        operator("weights", "Softmax", ("masked",), _HEADS),
        _product("mixed", "weights", "v", _VALUES),
        operator("mixed/fanout0", "Fanout", ("mixed",), _VALUES),
        operator("twice", "AddV2", ("mixed/fanout0", "mixed/fanout0"), _VALUES),
        operator("square", "Square", ("mixed/fanout0",), _VALUES),
        operator("turned", "Transpose", ("square",), (64, 512, 16, 8), static={1: (3, 2, 1, 0)}),
    )
    return Graph(operators, frozenset(op.name for op in operators))


def test_without_kernels_of_several_operators_each_is_alone() -> None:
    assert kernel_parts(_attention(), "none") == {}


def test_what_is_pointwise_or_normalizes_is_one_kernel_up_to_the_products() -> None:
    parts = kernel_parts(_attention(), "pointwise")
    assert parts["masked"] == KernelPart(kept=frozenset({0}), starts=False)
    assert parts["weights"] == KernelPart(given=frozenset({0}))
    assert not {"scores", "mixed"} & parts.keys()
    # Read by three operands of two kernels: once for each.
    assert parts["twice"] == KernelPart(given=frozenset({1}))
    assert parts["mixed/fanout0"].readers == 2
    assert parts["square"] == KernelPart(kept=frozenset({0}), starts=False)
    assert parts["turned"] == KernelPart(given=frozenset({0}))


def test_parts_and_joins_of_tensors_are_kernels_of_their_own() -> None:
    joined = operator("joined", "ConcatV2", ("q", "k"), (8, 16, 512, 128), static={2: 3})
    graph = Graph((*_attention().operators, joined), _attention().training | {"joined"})
    assert "joined" not in kernel_parts(graph, "attention")


def test_scores_of_an_attention_stay_inside_of_its_kernel() -> None:
    parts = kernel_parts(_attention(), "attention")
    assert parts["scores"] == KernelPart(kept=frozenset({0}), starts=False)
    assert parts["masked"] == KernelPart(given=frozenset({0}), kept=frozenset({0}), starts=False)
    assert parts["weights"] == KernelPart(given=frozenset({0}), kept=frozenset({0}), starts=False)
    assert parts["mixed"] == KernelPart(given=frozenset({0}))


def test_a_product_between_two_softmaxes_is_in_one_of_their_kernels() -> None:
    more = (
        operator("turned_values", "Placeholder", (), (8, 16, 64, 512)),
        _product("mixed_again", "weights", "k", _VALUES),
        operator("weights_again", "Softmax", ("mixed_again",), _VALUES),
        _product("last", "weights_again", "turned_values", _HEADS),
    )
    kept = [op for op in _attention().operators if not op.name.startswith(("mixed", "twice", "square", "turned"))]
    graph = Graph((*kept, *more), frozenset(op.name for op in (*kept, *more)))
    parts = kernel_parts(graph, "attention")
    starting = [op.name for op in graph.operators if op.inputs and parts.get(op.name, ALONE).starts]
    assert starting == ["mixed_again", "weights_again", "last"]
    assert 0 not in parts.get("mixed_again", ALONE).kept


def test_who_reads_sizes_alone_reads_nothing_from_memory() -> None:
    sizes = operator("sizes", "Shape", ("scores",), (4,), dtype="int32")
    graph = Graph((*_attention().operators, sizes), _attention().training | {"sizes"})
    assert kernel_parts(graph, "attention") == kernel_parts(_attention(), "attention")


@pytest.mark.parametrize("change", ["read by another", "no softmax", "a weight"])
def test_other_products_are_no_attention(change: str) -> None:
    graph = _attention()
    operators = {op.name: op for op in graph.operators}
    if change == "read by another":
        operators["more"] = operator("more", "Softmax", ("weights",), _HEADS)
    elif change == "no softmax":
        operators["weights"] = operator("weights", "Relu", ("masked",), _HEADS)
    else:
        operators["k"] = operator("k", "Placeholder", (), (512, 64))  # the keys of all samples and heads
    changed = Graph(tuple(operators.values()), frozenset(operators))
    assert "scores" not in kernel_parts(changed, "attention")


def test_a_kernel_costs_what_it_reads_and_writes_and_one_start() -> None:
    graph = _attention()
    topology = h100(1)
    device = dataclasses.replace(topology.device, fusion="pointwise")
    cost = AnalyticCost(dataclasses.replace(topology, device=device), graph)
    seconds = sum(_seconds(cost, graph, name) for name in ("masked", "weights"))
    scores, mask = 4.0 * 8 * 16 * 512 * 512, 4.0 * 512 * 512
    expected = (2 * scores + mask) / device.memory_bandwidth_bytes_per_s + device.op_overhead_s
    assert seconds == pytest.approx(expected)
    alone = AnalyticCost(topology, graph)
    assert sum(_seconds(alone, graph, name) for name in ("masked", "weights")) > 1.9 * seconds


def test_gradients_of_a_fanout_are_added_up_in_its_readers_kernels() -> None:
    graph, topology = _attention(), h100(1)
    device = dataclasses.replace(topology.device, fusion="pointwise")
    fused = AnalyticCost(dataclasses.replace(topology, device=device), graph)
    op = graph["mixed/fanout0"]
    assert fused.fanout_seconds(op, 1e9, 3) == pytest.approx(1e9 / device.memory_bandwidth_bytes_per_s)
    assert AnalyticCost(topology).fanout_seconds(op, 1e9, 3) == pytest.approx(6e9 / device.memory_bandwidth_bytes_per_s)


def test_products_reach_a_share_of_their_arithmetic() -> None:
    graph, topology = _attention(), h100(1)
    device = dataclasses.replace(topology.device, memory_bandwidth_bytes_per_s=1e18)
    slow, fast = (
        AnalyticCost(dataclasses.replace(topology, device=dataclasses.replace(device, product_efficiency=share)))
        for share in (0.5, 1.0)
    )
    start = device.op_overhead_s
    assert _seconds(slow, graph, "scores") - start == pytest.approx(2 * (_seconds(fast, graph, "scores") - start))
    assert _seconds(slow, graph, "masked") == _seconds(fast, graph, "masked")


@pytest.mark.parametrize("fusion", ["pointwise", "attention"])
def test_kernels_can_run_one_after_the_other(fusion: str) -> None:
    for seed in range(60):
        graph = _random_graph(random.Random(seed))
        parts = kernel_parts(graph, fusion)
        between = nx.DiGraph()
        kernel_of = _kernels(graph, parts)
        between.add_edges_from(
            (kernel_of[edge.tensor.op], kernel_of[edge.consumer])
            for edge in graph.edges()
            if kernel_of[edge.tensor.op] != kernel_of[edge.consumer]
        )
        assert nx.is_directed_acyclic_graph(between), seed
        for name, part in parts.items():
            for place in part.kept:
                readers = {edge.consumer for edge in graph.consumers(TensorId(name, place))}
                assert {kernel_of[reader] for reader in readers} == {kernel_of[name]}


def _kernels(graph: Graph, parts: Mapping[str, KernelPart]) -> dict[str, str]:
    """The operators, in groups that keep tensors between them."""
    joined = nx.Graph()
    joined.add_nodes_from(op.name for op in graph.operators)
    for name, part in parts.items():
        joined.add_edges_from(
            (name, edge.consumer) for place in part.kept for edge in graph.consumers(TensorId(name, place))
        )
    return {name: min(group) for group in nx.connected_components(joined) for name in group}


def _random_graph(rng: random.Random) -> Graph:
    shape = (4, 4, 8, 8)
    operators = [operator("x0", "Placeholder", (), shape)]
    for number in range(1, 30):
        first, second = (f"x{rng.randrange(max(0, number - 6), number)}" for _ in range(2))
        kind = rng.choice(["AddV2", "Mul", "Relu", "Softmax", "product", "Square"])
        if kind == "product":
            operators.append(_product(f"x{number}", first, second, shape))
        else:
            inputs = (first, second) if kind in ("AddV2", "Mul") else (first,)
            operators.append(operator(f"x{number}", kind, inputs, shape))
    return Graph(tuple(operators), frozenset(op.name for op in operators))


def _seconds(cost: AnalyticCost, graph: Graph, name: str) -> float:
    op = graph[name]
    inputs = graph.input_specs(op)
    rule = rule_of(op, inputs)
    whole = Configuration((None,) * len(cost.mesh.axes))
    return cost.op_seconds(OpCall(op, rule, inputs, whole))


def test_an_operator_that_shares_nothing_is_alone() -> None:
    cost = AnalyticCost(h100(1), _attention())
    assert cost.kind(_attention()["scores"]) == ALONE
