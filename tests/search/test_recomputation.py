"""Operators that may be made again, in the space and in searches: costs by hand, and all strategies one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

import tensoropt as to
from benchmarks.models import transformer
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.tensor_reuse import backward_readers
from tensoropt.problem import Problem
from tensoropt.search.registry import get_finder
from tensoropt.space.choices import State
from tensoropt.space.space import SearchSpace
from tests.effort import left_to_ci
from tests.plan.small_graphs import _graph, convolutions, deep, mlp, operator, tied

pytestmark = pytest.mark.tf

_PLAIN = {"transpose_a": False, "transpose_b": False}


def residual(layers: int = 1, batch: int = 8, width: int = 4) -> Graph:
    """Layers that add to what they read: a product, its square, another product, a bias and a softmax."""
    shape = (batch, width)
    operators = [operator("x", "Placeholder", (), shape), operator("w", "Variable", (), (width, width))]
    operators.append(operator("h", "MatMul", ("x", "w"), shape, _PLAIN))
    last = "h"
    for i in range(layers):
        operators += [
            operator(f"{last}/fanout0", "Fanout", (last,), shape),
            operator(f"w{i}", "Variable", (), (width, width)),
            operator(f"bias{i}", "Variable", (), (width,)),
            operator(f"a{i}", "MatMul", (f"{last}/fanout0", f"w{i}"), shape, _PLAIN),
            operator(f"b{i}", "BiasAdd", (f"a{i}", f"bias{i}"), shape, {"data_format": "NHWC"}),
            operator(f"s{i}", "Softmax", (f"b{i}",), shape),
            operator(f"t{i}", "Square", (f"s{i}",), shape),
            operator(f"y{i}", "AddV2", (f"{last}/fanout0", f"t{i}"), shape),
        ]
        last = f"y{i}"
    operators += [
        operator("loss", "Mean", (last,), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    ]
    return _graph(operators, ("x",))


_GRAPHS = {"mlp": mlp(), "deep": deep(2), "tied": tied(), "convolutions": convolutions(), "residual": residual()}


def _space(graph: Graph, ranks: int, *, recompute: bool) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(ranks)), reuse=True, recompute=recompute)


@pytest.mark.parametrize("graph", _GRAPHS.values(), ids=_GRAPHS)
def test_costs_on_one_device_are_those_of_what_is_held_and_computed_twice(graph: Graph) -> None:
    plain, space = (_space(graph, 1, recompute=recompute) for recompute in (False, True))
    free = [op.name for op in space.operators if len(set(space.choices(op.name))) > 1]
    for count in range(len(free) + 1):
        for again in itertools.combinations(free, count):
            chosen = {op.name: Configuration((), op.name in again) for op in space.operators}
            time, memory = space.problem.costs(np.array(space.assignment(chosen)))
            held = sum(_held_bytes(space, again))
            plain_time, _ = plain.problem.costs(np.zeros(len(plain.operators), np.int64))
            twice = sum(space.cost.op_seconds(space.calls(graph[name], np.array([0]), 0)[0]) for name in again)
            repeated = sum(_repeated_s(space, again))
            np.testing.assert_allclose(memory[0], held, rtol=1e-12)
            np.testing.assert_allclose(time[0], plain_time[0] + twice + repeated, rtol=1e-9)


def _held_bytes(space: SearchSpace, again: Iterable[str]) -> Iterable[float]:
    """What is there when the backward pass begins: each tensor that it reads and that is not made again, once."""
    graph, rules, names = space.graph, space.rules, {*again}
    for op in space.operators:
        own = traits(op)
        if own.is_source:
            yield op.outputs[0].size_bytes * (2 if own.is_variable else 1)
        if own.is_source or own.is_fanout or own.is_sink or op.name in names:
            continue
        for index, spec in enumerate(op.outputs):
            readers = graph.consumers(TensorId(op.name, index))
            makes = index in rules[op.name].saved_outputs and graph.has_gradient(op.name)
            if makes or any(backward_readers(graph, rules, edge, names) for edge in readers):
                yield spec.size_bytes


def _repeated_s(space: SearchSpace, again: Iterable[str]) -> Iterable[float]:
    """The seconds of those that are kept, but whose gradient reads their output and an input that is made again."""
    graph, rules = space.graph, space.rules
    for op in space.operators:
        if op.name in again or traits(op).role is not None or not rules[op.name].saved_outputs:
            continue
        for position, tensor in enumerate(op.inputs):
            if tensor.op in again and position in rules[op.name].saved_inputs and graph.has_gradient(op.name):
                yield space.cost.op_seconds(space.calls(op, np.array([0]), 0)[0])


@pytest.mark.parametrize("name", ["deep", "residual"])
def test_the_search_finds_what_all_strategies_have(name: str) -> None:
    problem = _space(_GRAPHS[name], 2, recompute=True).problem
    found = track_frontier(problem, epsilon=0.0)
    assert found.exact
    random = np.random.default_rng(0)
    sizes = [len(table) for table in problem.node_time_s]
    rows = np.stack([random.integers(0, size, 20_000) for size in sizes], axis=1)
    # Neighbours of what was found, which differ in one or two operators, are the likeliest to be better.
    near = np.repeat(found.assignments, 200, axis=0)
    for _ in range(2):
        places = random.integers(0, len(sizes), len(near))
        near[np.arange(len(near)), places] = random.integers(0, np.array(sizes)[places])
    for row in np.concatenate([rows[:2000], near]):
        time, memory = _least(problem, row)
        for seconds, size_bytes in zip(time, memory, strict=True):
            place = np.searchsorted(found.memory_bytes, size_bytes * (1 + 1e-12), side="right") - 1
            assert place >= 0 and found.time_s[place] <= seconds * (1 + 1e-9)


def _least(problem: Problem, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The costs of one assignment by the first alternatives, if it is possible."""
    time, memory = problem.costs(row)
    possible = np.isfinite(time) & np.isfinite(memory)
    return time[possible], memory[possible]


def test_one_device_has_the_frontier_of_all_strategies() -> None:
    problem = _space(_GRAPHS["residual"], 1, recompute=True).problem
    rows = np.array(list(itertools.product(*(range(len(table)) for table in problem.node_time_s))))
    costs = [problem.costs(row) for row in rows]
    points = {(float(time[0]), float(memory[0])) for time, memory in costs if np.isfinite(time[0] + memory[0])}
    best = {
        one for one in points if not any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points)
    }
    found = track_frontier(problem, epsilon=0.0)
    assert sorted(best) == sorted(zip(found.time_s.tolist(), found.memory_bytes.tolist(), strict=True))
    assert len(best) > 1


@pytest.mark.parametrize("graph", _GRAPHS.values(), ids=_GRAPHS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_more_strategies_are_never_worse(graph: Graph, ranks: int) -> None:
    plain, more = (
        get_finder("ft").find(_space(graph, ranks, recompute=recompute)).frontier for recompute in (False, True)
    )
    for time_s, memory_bytes in zip(plain.time_s.tolist(), plain.memory_bytes.tolist(), strict=True):
        assert more.best(memory_bytes).time_s <= time_s * (1 + 1e-12)
    assert more.memory_bytes[0] <= plain.memory_bytes[0]


def test_what_carries_a_model_from_layer_to_layer_is_kept() -> None:
    space = _space(residual(2), 1, recompute=True)
    again = {op.name for op in space.operators if State.AGAIN in space.choices_of(op.name).states}
    assert {"a0", "b0", "s0", "t0", "a1", "b1", "s1", "t1"} <= again
    assert not {"h", "y0", "y1", "x", "w", "w0"} & again


@pytest.mark.parametrize("graph", _GRAPHS.values(), ids=_GRAPHS)
def test_a_plan_of_each_point_is_checked_and_adds_up(graph: Graph) -> None:
    space = _space(graph, 2, recompute=True)
    frontier = get_finder("ft").find(space).frontier
    for point in (frontier.point(i) for i in range(len(frontier))):
        plan = space.plan(point.assignment, "mini_time", alternatives=point.alternatives)
        plan.check(graph)
        for edge, entry in plan.edges.items():
            if Edge(edge.tensor, edge.consumer, edge.position) in space.edges:
                np.testing.assert_allclose(
                    sum(move.seconds for move in entry.moves), entry.time_s, rtol=1e-9, atol=1e-15
                )
        assignment, alternatives = space.strategy_of(plan)
        assert (assignment == np.array(point.assignment)).all() and (alternatives == point.alternatives).all()


@left_to_ci("half a minute, of what plans with steps try small")
def test_a_strategy_that_does_not_fit_fits_when_operators_are_made_again() -> None:
    model = transformer(layers=2, width=64, heads=4, length=64, vocabulary=128, batch_size=16)
    loss = model.build(to, model.batch_size).loss
    model.train(to, "sgd", loss)
    least = to.find_frontier("v100").memory_bytes[0]
    with pytest.raises(InfeasibleError):
        to.find_strategy(topology="v100", memory_bytes=0.7 * least)
    plan = to.find_strategy(topology="v100", memory_bytes=0.7 * least, recompute=True)
    assert plan.memory_bytes <= 0.7 * least
    assert plan.again
    assert not to.find_strategy(topology="v100").again
