"""The frontier of a space: exact where it is called so, and never far from it."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.ft import space as spaces
from tensoropt.ft import track_frontier
from tensoropt.ft.space import SpaceTracker
from tensoropt.graph.graph import Graph
from tensoropt.search.cells import with_repeated_cells
from tensoropt.search.space import SearchSpace
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
def test_a_large_space_is_searched_over_what_decides_and_not_called_exact(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "_SMALL", 0)
    space = _space(graph)
    tracker = SpaceTracker(space, threads=1)
    found, whole = tracker.frontier(), track_frontier(with_repeated_cells(space), threads=1)
    assert not found.exact
    assert "operators that decide, costs in steps of" in (found.searched or "")
    # The ends are searched with costs as they are, the smallest over all operators.
    assert found.memory_bytes[0] == whole.memory_bytes[0]
    assert found.time_s[-1] >= whole.time_s[-1]
    assert np.isfinite(found.time_s).all()


def test_a_small_space_that_takes_too_long_is_searched_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "_SHORT", 1.0)
    space = _space(convolutions())
    tracker = SpaceTracker(space, threads=1)
    found = tracker.frontier()
    assert not found.exact
    assert "operators that decide" in (found.searched or "")
    assert found.memory_bytes[0] == tracker.smallest.memory_bytes[0]
