"""Edges into micro-batches: four alternatives by first principles, and searches that choose among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.spec import TensorId, TensorSpec, sum_dtype
from tensoropt.layout import Layout, Step
from tensoropt.plan.configuration import TensorLayouts
from tensoropt.plan.plan import ALTERNATIVES
from tensoropt.problem import brute_force
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp, operator

pytestmark = pytest.mark.pure

_WEIGHT = Edge(TensorId("w1"), "h", 1)


def _product(dtype: str = "float32") -> Graph:
    """The mean of a product's squares."""
    whole = mlp(batch=16, dtype=dtype)
    names = ("x", "w1", "h")
    square = operator("s", "Square", ("h",), (16, 12), dtype=dtype)
    flat = operator("flat", "Reshape", ("s",), (192,), static={1: (192,)}, dtype=dtype)
    mean = operator("loss", "Mean", ("flat",), (), {"keep_dims": False}, static={1: 0}, dtype=dtype)
    operators = (*(whole[name] for name in names), square, flat, mean)
    edges = frozenset(
        Edge(tensor, op.name, place) for op in operators for place, tensor in enumerate(op.inputs) if tensor.op != "x"
    )
    return Graph(operators, frozenset(op.name for op in operators), edges)


def _space(graph: Graph, devices: int, times: int) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True, micro_batches=times)


def _bytes(spec: TensorSpec, layout: Layout, space: SearchSpace) -> float:
    itemsize = spec.sum_itemsize if layout.partial else spec.itemsize
    return float(math.prod(layout.local_shape(spec.shape, space.mesh)) * itemsize)


def _seconds(spec: TensorSpec, layout: Layout, steps: Sequence[Step], space: SearchSpace) -> float:
    total = 0.0
    for step in steps:
        size = np.array([_bytes(spec, layout, space)])
        total += float(space.cost.step_seconds(step.kind, step.axes or space.mesh.axes, size)[0])
        layout = step.apply(layout)
    return total


def _by_hand(
    space: SearchSpace, edge: Edge, given: TensorLayouts, wanted: TensorLayouts, keep: str, back_each: bool
) -> tuple[float, float]:
    """Seconds and bytes of an edge from a variable into micro-batches; +inf seconds where there is no such thing."""
    assert space.steps is not None
    times, rule, spec = space.steps.times, space.rules[edge.consumer], space.steps.spec(edge)
    wide = TensorSpec(spec.shape, sum_dtype(spec.dtype))
    table, sums = space.reshard_table(edge), space.reshard_table(edge, widened=True)
    is_moved, goes_back = given.value != wanted.value, given.gradient != wanted.gradient
    if (keep == "before" and not is_moved) or keep == "after" or (back_each and not goes_back):
        return np.inf, np.inf
    move = _seconds(spec, given.value, table.path(given.value, wanted.value), space) if is_moved else 0.0
    reads = int(edge.position in rule.saved_inputs)
    seconds = move if keep == "both" else times * (1 + reads) * move
    held = _bytes(spec, wanted.value, space) if keep == "both" and is_moved else 0.0
    summed = given.gradient if back_each else wanted.gradient
    if goes_back and back_each:
        seconds += times * _seconds(wide, wanted.gradient, sums.path(wanted.gradient, given.gradient), space)
    elif goes_back:
        seconds += _seconds(spec, wanted.gradient, table.path(wanted.gradient, given.gradient), space)
    seconds += times * space.cost.traffic_seconds(3 * _bytes(wide, summed, space))
    held += _bytes(wide, summed, space)
    if summed == given.gradient:  # the gradient, which is counted with the variable
        held -= _bytes(spec, summed, space)
    return seconds, held


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("devices", "times"), [(2, 2), (2, 4), (4, 2)])
def test_all_alternatives_between_all_configurations_cost_what_they_do(devices: int, times: int, dtype: str) -> None:
    space = _space(mlp(dtype=dtype), devices, times)
    chosen = set()
    for name, consumer in (("w1", "h"), ("b1", "hb"), ("w2", "y")):
        edge = Edge(TensorId(name), consumer, 1)
        time_s, memory_bytes = space.problem.edge_tables(space.edges.index(edge))
        assert time_s.shape[-1] == len(ALTERNATIVES)
        for i, j in itertools.product(range(time_s.shape[0]), range(time_s.shape[1])):
            given = space.choices(name)[i].output_layouts(space.rules[name], 0)
            wanted = space.choices(consumer)[j].input_layouts(space.rules[consumer], 1)
            expected = [_by_hand(space, edge, given, wanted, *each) for each in ALTERNATIVES]
            there = [
                (time_s[i, j, pick], memory_bytes[i, j, pick]) for pick in np.flatnonzero(np.isfinite(time_s[i, j]))
            ]
            for pick, (seconds, held) in enumerate(expected):
                if np.isfinite(time_s[i, j, pick]):
                    chosen.add(pick)
                    assert (time_s[i, j, pick], memory_bytes[i, j, pick]) == pytest.approx((seconds, held), rel=1e-9)
                elif np.isfinite(seconds):  # another is as good in both
                    assert any(t <= seconds * (1 + 1e-9) and m <= held for t, m in there), (given, wanted, pick)
    assert chosen == {0, 1, 3, 4}


@pytest.mark.parametrize(("devices", "times"), [(2, 2), (2, 4), (4, 2), (4, 4)])
def test_the_frontier_is_that_of_all_strategies_and_alternatives(devices: int, times: int) -> None:
    graph, cost = _product(), AnalyticCost(cpu(devices))
    every = SearchSpace(graph, cost, micro_batches=times)
    shared = [one for one in every.choices("h") if {*one.actions} == {"m"}]
    space = SearchSpace(graph, cost, allowed={"h": shared}, reuse=True, micro_batches=times)
    expected, found = brute_force(space.problem), track_frontier(space.problem)
    np.testing.assert_allclose(found.time_s, expected.time_s, rtol=1e-12)
    np.testing.assert_allclose(found.memory_bytes, expected.memory_bytes, rtol=1e-12)
    assert {*found.alternatives[:, space.problem.nodes + space.edges.index(_WEIGHT)].tolist()} >= {0, 3, 4}


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("times", [1, 4])
def test_stages_of_zero_are_above_the_frontier_and_have_their_alternatives(name: str, times: int) -> None:
    space = _space(mlp(batch=32), 4, times)
    point = get_finder(name).find(space).frontier.point(0)
    plan = space.plan(point.assignment, name, alternatives=point.alternatives)
    plan.check(space.whole)
    best = get_finder("ft").find(space).frontier.best(point.memory_bytes)
    assert best.time_s <= point.time_s * (1 + 1e-9)
    assert plan.time_s == pytest.approx(point.time_s)
    each = {(entry.keep, entry.back_each) for edge, entry in plan.edges.items() if edge.tensor.op in ("w1", "w2")}
    assert each == {("before" if name == "zero3" else "both", times > 1 and name != "zero1")}
    assert all((entry.keep, entry.back_each) == ALTERNATIVES[entry.alternative] for entry in plan.edges.values())


def test_stages_of_zero_hold_less_one_by_one() -> None:
    space, sizes = _space(mlp(batch=32), 4, 4), {"w1": 6 * 12 * 4, "b1": 12 * 4, "w2": 12 * 4 * 4}
    one, two, three = (get_finder(name).find(space).frontier.memory_bytes[0] for name in ("zero1", "zero2", "zero3"))
    assert one - two == sum(sizes.values())  # whole gradients are summed, or pieces
    assert two - three == sum(sizes.values())  # whole variables are held, or moved for each micro-batch
