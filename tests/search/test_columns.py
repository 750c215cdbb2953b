"""One strategy within a memory limit, against whole frontiers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.graph.graph import Graph
from tensoropt.search.alternatives import runner_up
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.search.search_within_memory import fast_within
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import convolutions, deep, mlp, trained

pytestmark = pytest.mark.pure

_MODELS: list[Callable[[], Graph]] = [
    lambda: mlp(batch=64, width=256, classes=64),
    lambda: trained(mlp(batch=16, width=32), "w1", slots=2),
    lambda: deep(3, batch=16, width=32),
    lambda: convolutions(batch=8, channels=16),
]


@pytest.mark.parametrize("make", _MODELS)
def test_it_keeps_to_the_limit_and_comes_close_to_the_frontier(make: Callable[[], Graph]) -> None:
    space = SearchSpace(make(), AnalyticCost(cpu(4)), reuse=True)
    problem, frontier = space.problem, get_finder("ft").find(space).frontier
    assert frontier.exact
    lost = []
    for index, limit in enumerate(frontier.memory_bytes.tolist()):
        best = frontier.point(index)
        found = fast_within(problem, limit)
        assert found is not None and float(found.memory_bytes[0]) <= limit
        lost.append(float(found.time_s[0]) / best.time_s - 1)
        assert lost[-1] >= -1e-12
        near = fast_within(problem, limit, best.assignment)  # which has what is best among what is mixed
        assert near is not None and float(near.time_s[0]) == best.time_s
    assert lost[-1] <= 1e-9 and sorted(lost)[len(lost) // 2] < 0.05  # without a limit it is the fastest
    assert fast_within(problem, float(frontier.memory_bytes[0]) * 0.99) is None


def test_runner_ups_of_larger_models_keep_to_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SearchSpace(mlp(batch=64, width=256, classes=64), AnalyticCost(cpu(4)), reuse=True)
    frontier = get_finder("ft").find(space).frontier
    place = next(number for number, op in enumerate(space.operators) if op.name == "h")
    point = frontier.point(len(frontier.time_s) // 2)
    now, limit = space.choices("h")[point.assignment[place]], MemoryLimit(point.memory_bytes, "test")
    exact = runner_up(space, "h", now, limit)
    assert exact is not None
    for names in (("_SMALL",), ("_SMALL", "_WHOLE")):  # over all operators, and over those that decide
        for name in names:
            monkeypatch.setattr(f"tensoropt.search.alternatives.{name}", 0)
        found = runner_up(space, "h", now, limit, point.assignment)
        assert found is not None and found.memory_bytes <= limit.limit_bytes
        assert exact.time_s <= found.time_s <= 1.1 * exact.time_s
        assert space.choices("h")[found.assignment[place]] != now
