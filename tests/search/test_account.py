"""What plans say of operators: parts add up; layers, roles and words are what a reader expects."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu, v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import TensorOptError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.plan.account import About
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import (
    convolutions,
    deep,
    embedding,
    mlp,
    operator,
    remembering,
    tied,
    trained,
    trained_mlp,
    two_lookups,
)

pytestmark = pytest.mark.pure

_BASELINES = ("data_parallel", "zero2", "zero3", "megatron", "optcnn", "tofu", "model_parallel")
_MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp(batch=16, width=32),
    "bfloat16": lambda: mlp(batch=16, width=32, dtype="bfloat16"),
    "trained_mlp": trained_mlp,
    "slots": lambda: trained(mlp(batch=16), "w1", slots=2),
    "deep": lambda: deep(4, batch=16),
    "convolutions": lambda: convolutions(batch=16),
    "tied": lambda: tied(batch=16, more=2),
    "remembering": lambda: remembering(batch=16),
    "embedding": lambda: embedding(batch=16),
    "two_lookups": lambda: two_lookups(batch=16),
}


def _plans(graph: Graph, devices: int = 4) -> list[Plan]:
    plans = []
    for name in _BASELINES:
        space = SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True)
        try:
            found = apply_baseline(name, space)
        except TensorOptError:
            continue  # it does not apply
        point = found.point(0)
        plans.append(space.plan(point.assignment, name, alternatives=point.alternatives))
    return plans


@pytest.mark.parametrize("model", _MODELS)
def test_parts_add_up_to_the_time_and_the_memory_of_a_plan(model: str) -> None:
    plans = _plans(_MODELS[model]())
    assert len(plans) >= 4
    for plan in plans:
        assert plan.graph is not None and plan.setting is not None
        for edge, entry in plan.edges.items():
            moved = math.fsum(move.seconds for move in entry.moves)
            assert math.isclose(moved, entry.time_s, rel_tol=1e-12, abs_tol=1e-18), edge
        inside = {name: entry for name, entry in plan.operators.items() if entry.about is not None}
        assert {*inside} == plan.graph.training
        edges = [entry for edge, entry in plan.edges.items() if edge.consumer in inside]
        figures = [(part.time_s, part.memory_bytes) for part in inside.values()]
        figures += [(part.time_s, part.memory_bytes) for part in edges]
        seconds, size_bytes = (math.fsum(column) for column in zip(*figures, strict=True))
        assert math.isclose(seconds + plan.setting.constant_s, plan.time_s, rel_tol=1e-12)
        assert math.isclose(size_bytes, plan.memory_bytes, rel_tol=1e-12)


def _about(graph: Graph) -> dict[str, About]:
    space = SearchSpace(graph, AnalyticCost(v100(1)), reuse=True)
    plan = space.plan([0] * len(space.operators), "first")
    return {name: entry.about for name, entry in plan.operators.items() if entry.about is not None}


def test_a_bias_an_update_and_slots_are_of_the_layer_of_their_weights() -> None:
    about = _about(trained(trained(mlp(batch=16), "w1", slots=2), "b1"))
    layers = {name: one.layer for name, one in about.items()}
    roles = {name: one.role for name, one in about.items()}
    slots = [name for name, role in roles.items() if role == "slot"]
    assert len(slots) == 2 and {layers[name] for name in slots} == {"w1"}
    assert layers["b1"] == layers["h"] == "w1" and layers["w2"] == "w2"
    assert {layers[name] for name, role in roles.items() if role in ("gradient", "update")} == {"w1"}
    assert {about[name].held for name in slots} == {"slots"} and about["w1"].held == "weights"
    assert about["w1"].gradient_bytes > 0 and about[slots[0]].gradient_bytes == 0


def _attention() -> Graph:
    """Queries and keys in one scope, as Keras names them, with two heads."""
    batch, length, heads, depth = 16, 4, 8, 2
    width, plain = heads * depth, {"adj_x": False, "adj_y": False}
    operators: list[Operator] = [operator("x", "Placeholder", (), (batch, length, width))]
    for part in ("query", "key"):
        scope = f"block_0/attention/{part}"
        operators += [
            operator(f"{scope}/kernel", "Variable", (), (width, width)),
            operator(f"{scope}/MatMul", "BatchMatMulV2", ("x", f"{scope}/kernel"), (batch, length, width), plain),
            operator(
                f"{scope}/Reshape", "Reshape", (f"{scope}/MatMul",), (batch, length, heads, depth),
                static={1: [batch, length, heads, depth]},
            ),
        ]  # fmt: skip
    operators += [
        operator(
            "scores", "Einsum", ("block_0/attention/query/Reshape", "block_0/attention/key/Reshape"),
            (batch, heads, length, length), {"equation": "bqhd,bkhd->bhqk"},
        ),
        operator("softmax", "Softmax", ("scores",), (batch, heads, length, length)),
    ]  # fmt: skip
    edges = [Edge(tensor, op.name, i) for op in operators for i, tensor in enumerate(op.inputs) if tensor.op != "x"]
    return Graph(tuple(operators), frozenset(op.name for op in operators), frozenset(edges))


def test_attention_is_a_layer_of_its_own_whose_heads_are_called_so() -> None:
    graph = _attention()
    space = SearchSpace(graph, AnalyticCost(v100(1)), reuse=True)
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    for name, axis in (("block_0/attention/query/MatMul", "n"), ("scores", "h"), ("softmax", "d1")):
        chosen[name] = next(one for one in space.choices(name) if set(one.actions) == {axis})
    chosen["x"] = next(one for one in space.choices("x") if set(one.actions) == {"d0"})
    plan = space.plan(space.assignment(chosen), "by hand")
    about = {name: entry.about for name, entry in plan.operators.items()}
    words = {name: dict(one.words) for name, one in about.items() if one is not None and one.words}
    assert words == {
        "x": {"d0": "batch"},
        "block_0/attention/query/MatMul": {"n": "heads"},
        "scores": {"h": "heads"},
        "softmax": {"d1": "heads"},
    }
    layers = {name: one.layer for name, one in about.items() if one is not None}
    assert layers["scores"] == layers["softmax"] == "block_0/attention"
    assert layers["block_0/attention/query/Reshape"] == layers["x"] == "block_0/attention/query"


@pytest.mark.parametrize(
    ("make", "name", "axis", "word"),
    [
        (mlp, "h", "m", "batch"),
        (mlp, "h", "k", "rows"),
        (mlp, "h", "n", "columns"),
        (mlp, "w1", "d0", "rows"),
        (convolutions, "h", "c", "input channels"),
        (convolutions, "h", "f", "channels"),
        (convolutions, "h", "n", "batch"),
        (embedding, "rows", "v", "rows"),
    ],
)
def test_splits_have_the_words_of_people(make: Callable[[], Graph], name: str, axis: str, word: str) -> None:
    graph = make()
    space = SearchSpace(graph, AnalyticCost(cpu(2)), reuse=True)
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    chosen[name] = next(one for one in space.choices(name) if one.actions == (axis,))
    about = space.plan(space.assignment(chosen), "by hand").operators[name].about
    assert about is not None and about.words == {axis: word}
    assert about.inputs == tuple(map(str, graph[name].inputs))


def test_what_is_in_the_scope_of_a_layer_is_of_the_layer_whatever_it_reads() -> None:
    shape, plain = (16, 8), {"transpose_a": False, "transpose_b": False}
    operators = [
        operator("x", "Placeholder", (), shape),
        operator("net/dense/kernel", "Variable", (), (8, 8)),
        operator("net/norm_1/gamma", "Variable", (), (8,)),
        operator("train/net_1/dense_1/MatMul", "MatMul", ("x", "net/dense/kernel"), shape, plain),
        operator("train/net_1/dense_1/Relu", "Relu", ("train/net_1/dense_1/MatMul",), shape),
        operator("train/net_1/norm_1_1/moments/Square", "Square", ("train/net_1/dense_1/Relu",), shape),
        operator("train/net_1/add", "AddV2", ("train/net_1/norm_1_1/moments/Square",) * 2, shape),
        operator("train/net_1/norm_1_1/batchnorm/mul", "Mul", ("train/net_1/add", "net/norm_1/gamma"), shape),
    ]
    edges = [Edge(tensor, op.name, i) for op in operators for i, tensor in enumerate(op.inputs) if tensor.op != "x"]
    about = _about(Graph(tuple(operators), frozenset(op.name for op in operators), frozenset(edges)))
    layers = {name.rpartition("/")[2]: one.layer for name, one in about.items()}
    assert {name for name, layer in layers.items() if layer == "net/norm_1"} == {"gamma", "Square", "add", "mul"}
    assert {name for name, layer in layers.items() if layer == "net/dense"} == {"x", "kernel", "MatMul", "Relu"}
