"""Pipelines within memory limits: every stage holds what it may, and no strategy of a whole frontier is faster."""

from __future__ import annotations

import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.finders.pipeline import fastest_that_fits, pipelines
from tensoropt.plan.plan import Plan
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import deep

pytestmark = pytest.mark.pure

_SHARES = (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)


def plans_of_a_frontier(space: SearchSpace) -> list[Plan]:
    """The plans of strategies by the sums of what all stages hold."""
    frontier = get_finder("ft").find(space).frontier
    points = map(frontier.point, range(len(frontier)))
    return [space.plan(one.assignment, "", alternatives=one.alternatives, peak=False) for one in points]


@pytest.mark.parametrize("recompute", [False, True])
def test_each_stage_has_what_suits_its_memory(recompute: bool) -> None:
    graph, cost = deep(6, batch=64, width=32), AnalyticCost(cpu(4))
    space = SearchSpace(graph, cost, reuse=True, recompute=recompute, micro_batches=4)
    ratios = []
    for _, inner in pipelines(space):
        plans = plans_of_a_frontier(inner)
        least, most = min(plan.memory_bytes for plan in plans), max(plan.memory_bytes for plan in plans)
        for share in _SHARES:
            limit = MemoryLimit(least + share * (most - least), "the test's")
            best_s = min(plan.time_s for plan in plans if plan.memory_bytes <= limit.limit_bytes)
            _, found = fastest_that_fits(inner, limit)
            assert found.memory_bytes <= limit.limit_bytes
            ratios.append(found.time_s / best_s)
    assert len(ratios) == 3 * len(_SHARES)  # one and two rounds of two stages, and four stages
    assert max(ratios) < 1.1 and min(ratios) < 0.99 and sorted(ratios)[len(ratios) // 2] <= 1.0
