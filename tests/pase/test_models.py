"""The time-only search on real models: as fast as the fastest point of the exact frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensoropt.cluster.presets import gtx1080ti, v100
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost, PaseCost
from tensoropt.ft import track_frontier
from tensoropt.pase import breadth_first, find_best_strategy, generate_seq
from tensoropt.pase.tables import TimeTables
from tensoropt.problem import Problem
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

pytestmark = pytest.mark.tf

SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 64},
    "inception3": {"batch_size": 64, "modules": [("a", 32), ("e", 0)]},
    "rnnlm": {"batch_size": 64, "hidden": 256, "layers": 1, "steps": 3},
    "transformer": {"batch_size": 64, "layers": 1, "width": 256},
}


def imported(model: str) -> Any:
    from benchmarks.paper.setting import Options, planner

    return planner(model, Options(sizes={model: SMALL[model]})).imported


def problem_of(model: Any, cost: Any, reuse: bool) -> Problem:
    return with_repeated_cells(SearchSpace(model.graph, cost, reuse=reuse))


def without_memory(problem: Problem) -> Problem:
    return problem.with_tables(lambda time_s, memory, _: (time_s, np.where(np.isinf(memory), np.inf, 0.0)))


@pytest.mark.parametrize("model", sorted(SMALL))
def test_best_strategy_is_the_fastest_point_of_the_frontier(model: str) -> None:
    read = imported(model)
    for cost, reuse in ((AnalyticCost(scaled(v100(1), 4)), True), (PaseCost(scaled(gtx1080ti(1), 2)), False)):
        problem = problem_of(read, cost, reuse)
        best = find_best_strategy(problem)
        assert problem.costs(best.assignment, best.alternatives)[0][0] == best.cost
        # Where memory is free, the exact frontier is its fastest point alone, and found in a moment.
        frontier = track_frontier(without_memory(problem), threads=1)
        assert frontier.exact
        assert best.cost == pytest.approx(frontier.time_s[-1], rel=1e-12)


def test_inception_modules_need_generate_seq() -> None:
    # The paper's figure 5: breadth first, all branches of a module are open at once.
    problem = problem_of(imported("inception3"), PaseCost(scaled(gtx1080ti(1), 4)), False)
    tables, _ = TimeTables.of(problem)
    near, sizes = tables.neighbours(), tables.sizes
    generated, breadth = generate_seq(near, sizes), breadth_first(near)

    def largest(sets: Sequence[tuple[int, ...]]) -> int:
        """Of those with a choice: that all updates read one learning rate ties nothing."""
        return max(sum(sizes[vertex] > 1 for vertex in vertices) for vertices in sets)

    assert largest(generated.dependent_sets) == 2
    assert largest(breadth.dependent_sets) > 5
    assert max(generated.table_entries(sizes)) * 1000 < max(breadth.table_entries(sizes))
