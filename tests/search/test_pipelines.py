"""Pipelines within memory limits: every stage holds what it may, and no strategy of a whole frontier is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.finders import pipeline
from tensoropt.finders.pipeline import (
    Pipeline,
    fastest_that_fits,
    least_seconds,
    less_on_the_fullest,
    pipelines,
    small_pipelines,
)
from tensoropt.graph.graph import Graph
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.search.finding import NO_LIMIT
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.space.side_by_side import SideBySide
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import deep, towers

pytestmark = pytest.mark.pure


_SHARES = (0.0, 0.1, 0.3, 0.6, 0.9, 1.0)


def space_of(layers: int, *, recompute: bool) -> SearchSpace:
    """The space of some layers on four processors in four micro-batches."""
    cost = AnalyticCost(cpu(4))
    return SearchSpace(deep(layers, batch=64, width=32), cost, reuse=True, recompute=recompute, micro_batches=4)


def parts_of(space: SearchSpace, point: FrontierPoint) -> SideBySide:
    """The parts of a pipeline."""
    assert space.steps is not None
    plan = space.plan(point.assignment, "", alternatives=point.alternatives, peak=False)
    parts = SideBySide.of(plan, space.steps)
    assert parts is not None
    return parts


def plans_of_a_frontier(space: SearchSpace) -> list[Plan]:
    """The plans of strategies by the sums of what all stages hold."""
    frontier = get_finder("ft").find(space).frontier
    points = map(frontier.point, range(len(frontier)))
    return [space.plan(one.assignment, "", alternatives=one.alternatives, peak=False) for one in points]


@pytest.mark.parametrize("recompute", [False, True])
def test_each_stage_has_what_suits_its_memory(recompute: bool) -> None:
    ratios = []
    for _, inner in pipelines(space_of(6, recompute=recompute)):
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


@pytest.mark.parametrize("recompute", [False, True])
def test_other_stages_keep_what_they_hold(recompute: bool) -> None:
    """Their copies and what they make again, too: those that a limit has chosen are not let go for a faster step."""
    searched = 0
    for _, inner in pipelines(space_of(8, recompute=recompute)):
        frontier = get_finder("ft").find(inner).frontier
        for point in map(frontier.point, range(len(frontier))):
            parts = parts_of(inner, point)
            held = parts.held_bytes()
            limit_bytes = 0.9 * float(held.max())
            less = less_on_the_fullest(inner, point, parts.plan, limit_bytes)
            if less is None:
                continue
            places = {at: inner.mesh.devices_at(at) for at in parts.places.at.values() if at}
            stage = next(devices for devices in places.values() if int(held.argmax()) in devices)
            after = parts_of(inner, less.point(0)).held_bytes()
            assert after[list(stage)].max() <= limit_bytes
            others = [device for device in range(inner.mesh.size) if device not in stage]
            np.testing.assert_array_equal(after[others], held[others])
            searched += 1
    assert searched >= 20


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("graph", [deep(6, batch=64, width=32), deep(5, batch=512, width=8), towers()])
@pytest.mark.parametrize("times", [2, 8])
def test_no_pipeline_takes_less_than_its_bound(graph: Graph, recompute: bool, times: int) -> None:
    space = SearchSpace(graph, AnalyticCost(cpu(4)), reuse=True, recompute=recompute, micro_batches=times)
    ratios = []
    for _, inner in (*pipelines(space), *small_pipelines(space)):
        bound_s = least_seconds(inner)
        found = [plan.time_s for plan in plans_of_a_frontier(inner)]
        assert 0.0 < bound_s <= min(found) * (1.0 + 1e-9)
        ratios.append(bound_s / min(found))
    assert len(ratios) >= 2 and max(ratios) > 0.5  # splits inside of a stage are what the bound leaves out


def test_pipelines_that_cannot_be_fast_enough_are_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(6, recompute=False)
    every = [fastest_that_fits(inner, NO_LIMIT)[1].time_s for _, inner in pipelines(space)]
    searched: list[float] = []

    def noted(inner: SearchSpace, limit: MemoryLimit) -> tuple[FrontierPoint, Plan]:
        found = fastest_that_fits(inner, limit)
        searched.append(found[1].time_s)
        return found

    monkeypatch.setattr(pipeline, "fastest_that_fits", noted)
    get_finder("pipeline").find(space)
    assert min(searched) == min(every)
    searched.clear()
    least = min(least_seconds(inner) for _, inner in pipelines(space))
    with pytest.raises(InfeasibleError, match=r"every pipeline takes \S+ s a step or more, or does not fit"):
        get_finder(Pipeline(faster_than_s=0.9 * least)).find(space)
    assert not searched


def test_stages_are_cut_by_what_they_hold_where_no_pipeline_fits_otherwise() -> None:
    """The first stage has begun the most micro-batches, so it holds the most if all have as many layers."""
    space = SearchSpace(deep(8, batch=4096, width=32), AnalyticCost(cpu(2)), reuse=True, micro_batches=4)
    by_time = [fastest_that_fits(inner, MemoryLimit(1.0, ""))[1].memory_bytes for _, inner in pipelines(space)]
    ((_, inner),) = small_pipelines(space)
    point, plan = fastest_that_fits(inner, NO_LIMIT)
    held = parts_of(inner, point).held_bytes()
    assert held.max() == plan.memory_bytes < 0.9 * min(by_time)
    limit = MemoryLimit(plan.memory_bytes, "the test's")
    found = get_finder("pipeline").find(space, limit)
    assert found.space.plan(found.frontier.point(0).assignment, "").memory_bytes <= limit.limit_bytes
    with pytest.raises(InfeasibleError, match="every pipeline that was found takes"):
        get_finder("pipeline").find(space, MemoryLimit(plan.memory_bytes / 4, "the test's"))


def test_where_tables_would_be_too_large_the_frontier_is_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = [inner for _, inner in pipelines(space_of(4, recompute=False))]
    exact = [fastest_that_fits(inner, NO_LIMIT)[1] for inner in spaces]
    known = get_finder

    class TooLarge:
        def find(self, space: SearchSpace) -> Any:
            raise ProblemError("a table would be too large")

    monkeypatch.setattr(pipeline, "get_finder", lambda name: TooLarge() if name == "pase" else known(name))
    found = [fastest_that_fits(inner, NO_LIMIT)[1] for inner in spaces]
    assert [plan.notes["pipeline"] for plan in found] == [plan.notes["pipeline"] for plan in exact]


def test_one_device_alone_is_no_pipeline() -> None:
    with pytest.raises(InfeasibleError, match=r"no stages of this model can run: .* Leave search out"):
        get_finder("pipeline").find(space_of(1, recompute=False))
    found = get_finder("pipeline").find(space_of(2, recompute=False))
    plan = found.space.plan(found.frontier.point(0).assignment, "")
    assert plan.notes["pipeline"]["stages"] == 2
    alone_s = min(fastest_that_fits(inner, NO_LIMIT)[1].time_s for _, inner in pipelines(space_of(2, recompute=False)))
    assert alone_s < plan.time_s
