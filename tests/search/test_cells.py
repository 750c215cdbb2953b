"""Cells of a recurrent layer take one configuration."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.search.columns import SpaceColumns
from tensoropt.space.repeated_cells import repeated_cells, with_repeated_cells
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp, operator, two_lookups

pytestmark = pytest.mark.pure


def _recurrent(steps: int, *, shared: bool = True) -> Graph:
    """``h = tanh(h @ w)``, again and again, with one ``w`` or with one for each step."""
    plain = {"transpose_a": False, "transpose_b": False}
    operators = [operator("x", "Placeholder", (), (4, 8))]
    if shared:
        operators += [
            operator("w", "Variable", (), (8, 8)),
            operator("w/fanout0", "Fanout", ("w",), (8, 8)),
        ]
    before = "x"
    for step in range(steps):
        weights = "w/fanout0" if shared else f"w{step}"
        if not shared:
            operators.append(operator(weights, "Variable", (), (8, 8)))
        operators.append(operator(f"product{step}", "MatMul", (before, weights), (4, 8), plain))
        operators.append(operator(f"h{step}", "Tanh", (f"product{step}",), (4, 8)))
        before = f"h{step}"
    operators.append(operator("loss", "Mean", (before,), (), {"keep_dims": False}, static={1: np.array([0, 1])}))
    operators.append(operator("loss:0/sink", "Sink", ("loss",), ()))
    return _differentiable(operators)


def _differentiable(operators: list[Operator]) -> Graph:
    edges = [
        Edge(tensor, op.name, i) for op in operators for i, tensor in enumerate(op.inputs) if tensor.op not in ("x",)
    ]
    return Graph(tuple(operators), frozenset(op.name for op in operators), frozenset(edges))


def _space(graph: Graph) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(2)))


def _groups(space: SearchSpace) -> list[set[str]]:
    groups = repeated_cells(space)
    names = [op.name for op in space.operators]
    members = [{names[i] for i in np.flatnonzero(groups == group)} for group in np.unique(groups)]
    return [group for group in members if len(group) > 1]


def test_later_steps_with_shared_weights_are_groups() -> None:
    assert _groups(_space(_recurrent(9))) == [
        {f"product{step}" for step in range(1, 9)},
        {f"h{step}" for step in range(1, 9)},
    ]


def test_layers_with_weights_of_their_own_are_not_grouped() -> None:
    space = _space(_recurrent(9, shared=False))
    assert _groups(space) == []
    assert with_repeated_cells(space) is space.problem


def test_what_follows_weights_of_its_own_is_not_grouped() -> None:
    plain = {"transpose_a": False, "transpose_b": False}
    operators = [
        operator("x", "Placeholder", (), (4, 8)),
        operator("w", "Variable", (), (8, 8)),
        operator("w/fanout0", "Fanout", ("w",), (8, 8)),
    ]
    before = "x"
    for step in range(4):
        operators += [
            operator(f"shared{step}", "MatMul", (before, "w/fanout0"), (4, 8), plain),
            operator(f"v{step}", "Variable", (), (8, 8)),
            operator(f"own{step}", "MatMul", (f"shared{step}", f"v{step}"), (4, 8), plain),
            operator(f"a{step}", "Tanh", (f"own{step}",), (4, 8)),
            operator(f"b{step}", "Sigmoid", (f"a{step}",), (4, 8)),
            operator(f"c{step}", "Tanh", (f"b{step}",), (4, 8)),
        ]
        before = f"c{step}"
    operators.append(operator("loss", "Mean", (before,), (), {"keep_dims": False}, static={1: np.array([0, 1])}))
    operators.append(operator("loss:0/sink", "Sink", ("loss",), ()))
    assert _groups(_space(_differentiable(operators))) == [{"shared1", "shared2", "shared3"}]


@pytest.mark.parametrize("graph", [mlp(), two_lookups()], ids=["mlp", "two lookups"])
def test_what_does_not_come_after_one_another_is_not_grouped(graph: Graph) -> None:
    assert _groups(_space(graph)) == []


def test_a_frontier_with_groups_takes_one_configuration_per_cell() -> None:
    space = _space(_recurrent(9))
    problem = with_repeated_cells(space)
    grouped, free = track_frontier(problem, threads=1), track_frontier(space.problem, threads=1)
    names = list(problem.names)
    for group in _groups(space):
        columns = grouped.assignments[:, [names.index(name) for name in sorted(group)]]
        assert (columns == columns[:, :1]).all()
    time_s, memory_bytes = space.problem.costs(grouped.assignments, grouped.alternatives)
    assert time_s.tolist() == grouped.time_s.tolist()
    for time, memory in zip(time_s, memory_bytes, strict=True):
        assert free.best(float(memory)).time_s <= time


@pytest.mark.parametrize("shared", [True, False])
def test_the_smallest_strategy_is_called_exact_only_where_no_cells_are_held_alike(shared: bool) -> None:
    space = _space(_recurrent(9, shared=shared))
    smallest = space.kept(SpaceColumns).smallest
    said = f"all {space.problem.nodes} operators{', cells that repeat alike' if shared else ''}"
    assert (smallest.exact, smallest.searched) == (not shared, said)
