"""The frontier of a space: exact where it is called so, and never far from it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gap import beside
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.ft import space_frontier as spaces
from tensoropt.ft import track_frontier
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.graph.graph import Graph
from tensoropt.problem import Problem
from tensoropt.problem.contraction import Contraction
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
def test_a_large_space_is_searched_over_what_decides_and_not_called_exact(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "_SMALL", 0)
    space = _space(graph)
    tracker = SpaceTracker(space, threads=1)
    found, whole = tracker.frontier(), track_frontier(with_repeated_cells(space), threads=1)
    assert not found.exact
    assert "operators that decide, all their strategies within 0.0095 of time and of memory" in (found.searched or "")
    # The ends are searched with costs as they are, the smallest over all operators.
    assert found.memory_bytes[0] == whole.memory_bytes[0]
    assert found.time_s[-1] >= whole.time_s[-1]
    assert np.isfinite(found.time_s).all()


@_GRAPHS
@pytest.mark.parametrize("longest", [1.0, 1e9], ids=["in_steps", "close"])
def test_a_large_spaces_frontier_is_never_a_hundredth_above_what_decides(
    graph: Graph, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "_SMALL", 0)
    monkeypatch.setattr(spaces, "_CLOSE_LONGEST", longest)
    space = _space(graph)
    tracker = SpaceTracker(space, threads=1)
    found = tracker.frontier()
    assert ("costs in steps of" in (found.searched or "")) == (longest == 1.0)
    every = track_frontier(tracker.contraction.problem, threads=1)
    assert every.exact and len(every) >= 3
    gap = beside(found, every)
    assert max(gap) <= 0.01
    # Few points stand for all; what is between them is none of theirs.
    assert len(found) <= len(every) + 1


def test_a_steep_frontier_is_found_to_a_hundredth_where_steps_of_costs_lose_it() -> None:
    rng = np.random.default_rng(0)
    count = 14
    more = rng.uniform(1.0, 3.0, count)  # bytes of a thousand, for which an operator takes half its time
    problem = Problem(
        [f"n{node}" for node in range(count)],
        [[2.0 + node / 7, 1.0] for node in range(count)],
        [[1000.0, 1000.0 + extra] for extra in more],
        [(node, node + 1) for node in range(count - 1)],
        [[[0.0, 0.1], [0.2, 0.0]]] * (count - 1),
    )
    tracker = SpaceTracker(_space(mlp()), threads=1)
    tracker.__dict__["contraction"] = Contraction(problem, np.arange(count))  # in the place of a model's
    every = track_frontier(problem, threads=1)
    assert every.exact and len(every) > 50
    close, steps = tracker.close(), tracker.between()
    shown = tracker.contraction.expand(steps)
    assert beside(shown, every).time > 0.05
    assert max(beside(close, every)) <= 0.01
    assert len(close) <= len(every)


def test_a_small_space_that_takes_too_long_is_searched_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "_SHORT", 1.0)
    space = _space(convolutions())
    tracker = SpaceTracker(space, threads=1)
    found = tracker.frontier()
    assert not found.exact
    assert "operators that decide" in (found.searched or "")
    assert found.memory_bytes[0] == tracker.smallest.memory_bytes[0]
