"""The benchmark of accuracy: what it samples and what it sums up."""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path

import pytest

from benchmarks.accuracy import halves, known_results, pairs_without, summary
from benchmarks.accuracy_halves import agreement_of_halves, best_possible
from benchmarks.accuracy_methods import strategies_of_methods
from benchmarks.accuracy_models import MODELS, batch, sizes
from benchmarks.accuracy_sample import sample_strategies, told_apart
from tensoropt.baselines import apply_baseline
from tensoropt.baselines.data_parallel import data_parallel as find_data_parallel
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.ft import track_frontier
from tensoropt.problem.frontier import Frontier
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp

pytestmark = pytest.mark.pure


def _strategy(
    time: tuple[float, float], network: tuple[float, float], memory: tuple[float, float]
) -> dict[str, object]:
    return {"time_s": time, "network_s": network, "memory_bytes": memory}


def test_samples_are_different_possible_strategies_of_all_kinds_and_the_same_for_a_seed() -> None:
    problem = SearchSpace(mlp(), AnalyticCost(cpu(4))).problem
    sample = sample_strategies(problem, 12, 5)
    assert len({strategy.assignment for strategy in sample}) == 12
    assert {strategy.kind for strategy in sample} == {"frontier", "distorted", "changed"}
    for strategy in sample:
        assert problem.costs(strategy.assignment)[0][0] < float("inf")
    assert sample == sample_strategies(problem, 12, 5)
    assert sample != sample_strategies(problem, 12, 6)


def test_strategies_of_the_same_predicted_time_count_once() -> None:
    problem = SearchSpace(mlp(), AnalyticCost(cpu(4))).problem
    sample = sample_strategies(problem, 30, 5)
    apart = told_apart(problem, sample, 0.1)
    times = [problem.costs(strategy.assignment)[0][0] for strategy in apart]
    assert 1 < len(apart) < len(sample)
    assert apart[0] == sample[0]
    assert all(later > 1.1 * earlier for earlier, later in itertools.pairwise(sorted(times)))
    # What was left out is like one that was kept.
    for strategy in sample:
        time_s = problem.costs(strategy.assignment)[0][0]
        assert any(abs(time_s - other) <= 0.1 * min(time_s, other) for other in times)
    assert told_apart(problem, sample, 0.0)[:2] == sample[:2]


@pytest.mark.parametrize("count", [3, 12])
def test_methods_have_their_choices_executed_and_the_frontier_fills_up(count: int) -> None:
    space = SearchSpace(mlp(), AnalyticCost(cpu(4)), reuse=True)
    problem = space.problem
    frontier = track_frontier(problem)
    sample = strategies_of_methods(frontier, functools.partial(_find, space), count)
    kinds = [strategy.kind for strategy in sample]
    chosen = [kind for kind in kinds if not kind.startswith("frontier")]
    assert kinds[: len(chosen)] == chosen and kinds[0] == "mini_time" and "zero3" in kinds
    # It finds the fastest strategy, as the frontier does; the other one's operators are placed.
    assert not {"pase", "optcnn", "model_parallel"} & set(kinds)
    assert count == 3 or len(kinds) > len(chosen)
    costs = [
        tuple(float(cost[0]) for cost in problem.costs(strategy.assignment, strategy.alternatives))
        for strategy in sample
    ]
    assert len(set(costs)) == len(costs) and costs[0][0] == frontier.time_s.min()
    data_parallel = sample[kinds.index("data_parallel")].assignment
    assert data_parallel == space.assignment(find_data_parallel(space))


def _find(space: SearchSpace, method: str) -> Frontier:
    if method == "mcmc":
        raise PlanError("does not apply here")
    return track_frontier(space.problem) if method == "pase" else apply_baseline(method, space)


def test_halves_of_a_measurement_are_every_other_turn_of_three_steps() -> None:
    steps = [[1, 1, 9, 2, 2, 2, 1, 1, 1], [2, 2, 2, 1, 1, 9, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3, 3, 3]]
    entries = [{"steps_s": one} for one in steps]
    # Medians (1, 2), (2, 1), (3, 3).
    assert agreement_of_halves(entries) == pytest.approx(0.5)
    assert agreement_of_halves(entries[:2]) is None and agreement_of_halves([{}] * 3) is None
    assert agreement_of_halves([{"steps_s": one[:3]} for one in steps]) is None
    assert best_possible(0.5) == pytest.approx((2 / 3) ** 0.5) and best_possible(-0.1) == 0.0
    assert halves({"spearman_of_halves": 0.5}) == "0.500 (0.816)" and halves({}) == "-"


def test_errors_are_relative_to_what_was_measured() -> None:
    found = summary(
        [
            _strategy((1.1, 1.0), (0.3, 0.2), (90, 100)),
            _strategy((1.8, 2.0), (0.0, 0.001), (100, 100)),
            _strategy((3.0, 3.0), (0.5, 1.0), (100, 100)),
        ]
    )
    assert found["errors"]["time_s"] == pytest.approx(0.2 / 3)
    assert found["bias"]["time_s"] == pytest.approx(0.0)
    # The second one hardly uses the network.
    assert found["errors"]["network_s"] == pytest.approx(0.5) and found["bias"]["network_s"] == pytest.approx(0.0)
    assert found["errors"]["memory_bytes"] == pytest.approx(0.1 / 3)
    assert found["spearman"] == pytest.approx(1.0)


def test_steady_times_are_summed_up_where_they_were_measured() -> None:
    entry = _strategy((1.1, 1.0), (0.3, 0.2), (90, 100))
    assert "steady_time_s" not in summary([entry])["errors"]
    assert summary([entry | {"steady_time_s": (1.1, 1.1)}])["errors"]["steady_time_s"] == pytest.approx(0.0)


def test_an_earlier_run_is_resumed_from_its_file(tmp_path: Path) -> None:
    flags = argparse.Namespace(json=tmp_path / "report.json", resume=True, models=["rnn", "vgg16"], ranks=[2, 4])
    assert known_results(flags) == known_results(argparse.Namespace(json=None, resume=True)) == []
    flags.json.write_text('{"results": [{"model": "rnn", "ranks": 2}]}', encoding="utf-8")
    assert known_results(argparse.Namespace(json=flags.json, resume=False)) == []
    assert known_results(flags) == [{"model": "rnn", "ranks": 2}]
    assert pairs_without(known_results(flags), flags) == [("vgg16", 2), ("rnn", 4), ("vgg16", 4)]


def test_rank_correlation_sees_order_only() -> None:
    pairs = [(1.0, 5.0), (2.0, 50.0), (3.0, 6.0)]
    assert summary([_strategy(pair, pair, pair) for pair in pairs])["spearman"] == pytest.approx(0.5)


def test_inputs_have_their_shapes_and_integers_their_bounds() -> None:
    inputs = {"source": ((8, 4), "int32"), "labels": ((8,), "int32"), "x": ((8, 2), "float32")}
    made = batch("transformer", inputs, 1)
    assert {name: (array.shape, str(array.dtype)) for name, array in made.items()} == inputs
    assert 0 <= made["source"].min() and made["source"].max() < MODELS["transformer"][2]["source"]


def test_ranks_that_share_cores_have_more_samples_each() -> None:
    assert sizes("rnn", crowded=False) == MODELS["rnn"][1]
    assert sizes("rnn", crowded=True) == {**MODELS["rnn"][1], "batch_size": 256}


def test_times_are_taken_apart_in_means_and_the_additive_memory_is_compared() -> None:
    more = {"packing_s": (0.1, 0.2), "collectives_s": (0.2, 0.2), "waiting_s": 0.3, "additive_bytes": 150.0}
    entries = [_strategy((1.0, 1.0), (0.3, 0.4), (90, 100)) | more | {"compute_s": (x, 2 * x)} for x in (1.0, 3.0)]
    found = summary(entries)
    assert found["compute_s"] == pytest.approx([2.0, 4.0]) and found["packing_s"] == pytest.approx([0.1, 0.2])
    assert found["waiting_s"] == pytest.approx(0.3) and found["additive_bias"] == pytest.approx(0.5)
