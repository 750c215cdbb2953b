"""The frontier of a space: exact where it is called so, and never far from it."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.ft import space_frontier as spaces
from tensoropt.ft import track_frontier
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.graph.graph import Graph
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import convolutions, mlp, tied

pytestmark = pytest.mark.pure

_GRAPHS = pytest.mark.parametrize("graph", [mlp(), tied(), convolutions()], ids=["mlp", "tied", "convolutions"])


def _space(graph: Graph) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(4)))


@_GRAPHS
def test_a_small_space_is_searched_over_all_its_operators(graph: Graph) -> None:
    space = _space(graph)
    tracker = SpaceTracker(space, threads=1)
    found, whole = tracker.frontier(), track_frontier(with_repeated_cells(space), threads=1)
    assert found.exact and whole.exact
    assert found.searched == f"all {space.problem.nodes} operators"
    assert found.time_s.tolist() == whole.time_s.tolist()
    assert found.memory_bytes.tolist() == whole.memory_bytes.tolist()


@_GRAPHS
def test_a_large_spaces_frontier_has_columns_with_bounds_that_hold(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "_SMALL", 0)
    space = _space(graph)
    found, whole = SpaceTracker(space, threads=1).frontier(), track_frontier(with_repeated_cells(space), threads=1)
    assert not found.exact and whole.exact
    assert found.searched == f"all {space.problem.nodes} operators, at 8 prices of memory"
    # The ends are searched exactly, over all operators.
    assert SpaceTracker(space, threads=1).smallest.exact
    assert found.memory_bytes[0] == whole.memory_bytes[0]
    assert found.time_s[-1] == pytest.approx(whole.time_s[-1], rel=1e-8)
    points = [found.point(i) for i in range(len(found))]
    best = [whole.best(point.memory_bytes).time_s for point in points]
    for point, least_s in zip(points, best, strict=True):
        assert point.bound_s is not None and point.gap is not None
        assert point.bound_s <= least_s * (1 + 1e-9) <= point.time_s * (1 + 2e-9)
    assert np.median([point.time_s / least_s - 1 for point, least_s in zip(points, best, strict=True)]) <= 0.01


def test_a_small_space_that_takes_too_long_is_searched_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "_SHORT", 1.0)
    space = _space(convolutions())
    tracker = SpaceTracker(space, threads=1)
    found = tracker.frontier()
    assert not found.exact
    assert "at 8 prices of memory" in (found.searched or "") and found.bound_s is not None
    assert found.memory_bytes[0] == tracker.smallest.memory_bytes[0]
