"""Small problems through branches that only large ones reach by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import tensoropt.ft.bounds as bounds
import tensoropt.ft.dominance as dominance
import tensoropt.ft.messages as messages
import tensoropt.ft.track as track
from tensoropt.ft import factors, track_frontier
from tensoropt.problem import Frontier, Problem, brute_force
from tensoropt.problem.frontier_tables import FrontierTable

pytestmark = pytest.mark.pure


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Bounds, comparisons and prunings wherever there may be any."""
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    monkeypatch.setattr(track, "COMPARE_FROM", 0)
    monkeypatch.setattr(track, "LEAVE_FROM", 12)
    monkeypatch.setattr(track, "ROUNDS", ((3, 1), (5, 2)))
    monkeypatch.setattr(factors, "PRUNE_FROM", 0)
    yield monkeypatch


def _chain(seed: int, nodes: int = 5, configurations: int = 4) -> Problem:
    """A chain in which each configuration is slower than the next and smaller: frontiers are long."""
    rng = np.random.default_rng(seed)
    k = configurations
    return Problem(
        [f"n{i}" for i in range(nodes)],
        [np.sort(rng.random(k)) for _ in range(nodes)],
        [np.sort(rng.random(k))[::-1] for _ in range(nodes)],
        [(i, i + 1) for i in range(nodes - 1)],
        [0.3 * rng.random((k, k)) for _ in range(nodes - 1)],
    )


def _same_points(found: Frontier, expected: Frontier) -> None:
    np.testing.assert_allclose(found.time_s, expected.time_s, rtol=1e-13)
    np.testing.assert_allclose(found.memory_bytes, expected.memory_bytes, rtol=1e-13)


# ------------------------------------------------------------------------------------------------------- dominance


def _beside_twelve(loss_at: int) -> list[tuple[tuple[int, ...], FrontierTable]]:
    """Two configurations beside a neighbour's twelve: the second is 1 s faster beside all but one of them.

    The neighbour's are each 10 s slower than the one before, and 1 byte smaller.
    """
    seconds = np.stack([np.full(12, 5.0), np.full(12, 4.0)])
    seconds[1, loss_at] = 6.0
    one_each = np.arange(25)
    beside = FrontierTable((2, 12), one_each, seconds.reshape(-1), np.zeros(24))
    steps = np.arange(12.0)
    return [((0, 1), beside), ((1,), FrontierTable((12,), one_each[:13], 10 * steps, 12 - steps))]


@pytest.mark.parametrize("loss_at", range(12))
def test_every_column_counts_where_a_few_are_compared_at_first(loss_at: int) -> None:
    assert 12 // dominance._SAMPLE == 2  # every other one is
    alive = {0: np.arange(2), 1: np.arange(12)}
    dominance.drop_dominated(alive, _beside_twelve(loss_at))
    assert alive[0].tolist() == [0, 1]


def test_columns_of_configurations_that_are_gone_do_not_count() -> None:
    alive = {0: np.arange(2), 1: np.delete(np.arange(12), 7)}
    dominance.drop_dominated(alive, _beside_twelve(7))
    assert alive[0].tolist() == [1]


def _costs(
    time_s: Sequence[float], memory_bytes: Sequence[float] | None = None, shape: tuple[int, ...] = ()
) -> FrontierTable:
    """A table of one point per cell."""
    memory = np.zeros(len(time_s)) if memory_bytes is None else np.array(memory_bytes, float)
    return FrontierTable(shape or (len(time_s),), np.arange(len(time_s) + 1), np.array(time_s, float), memory)


def test_configurations_are_compared_again_where_some_of_them_and_of_their_neighbours_are_gone() -> None:
    beside = _costs([1, 1, 1, 2, 2, 2, 5, 5, 5, 6, 6, 4], shape=(4, 3))  # four rows of three
    tables = [
        ((0,), _costs([0, 0, 0, 0], [10, 10, 0, 0])),
        ((0, 1), beside),
        ((1,), _costs([0, 7, 100], [5, 1, 5])),
    ]
    alive = {0: np.arange(4), 1: np.arange(3)}
    dominance.drop_dominated(alive, tables)
    # The second goes for the first at once, the neighbour's third for its own first, and then the fourth for the third.
    assert (alive[0].tolist(), alive[1].tolist()) == ([0, 2], [0, 1])


@pytest.mark.parametrize(("copies", "left"), [(1, [0, 1]), (2, [1])])
def test_a_table_counts_as_often_as_it_is_there(copies: int, left: list[int]) -> None:
    # The second is 1.5 s slower by itself and 1 s faster beside a neighbour, whose choice changes nothing.
    beside = _costs([3.0, 2.0], shape=(2, 1))
    alive = {0: np.arange(2), 1: np.arange(1)}
    dominance.drop_dominated(alive, [((0,), _costs([0.0, 1.5], [1.0, 0.0])), *([((0, 1), beside)] * copies)])
    assert alive[0].tolist() == left


@pytest.mark.parametrize(("sample", "seen_rows"), [(1, 128), (1, 1), (5, 1)])
def test_no_point_is_lost_by_comparing_few_columns_or_keeping_no_comparisons(
    sample: int, seen_rows: int, forced: pytest.MonkeyPatch
) -> None:
    forced.setattr(dominance, "_SAMPLE", sample)
    forced.setattr(dominance, "_SEEN_ROWS", seen_rows)
    for seed in range(10):
        problem = _chain(seed)
        found = track_frontier(problem, threads=1)
        assert found.exact
        _same_points(found, brute_force(problem))


# ---------------------------------------------------------------------------------------------------------- bounds


def _between_ends(epsilon: float = 0.0, steps: tuple[float, float] = (0.0, 0.0)) -> bounds.Bounds:
    """Bounds of two ends, (1 s, 10 bytes) and (10 s, 1 byte), and of a point far above the line between them.

    Message passing finds the ends. The point, (9.2 s, 9.2 bytes), is beside both of them. The second node is there
    because bounds are of graphs; its second configuration is no use.
    """
    problem = Problem(
        "ab",
        [[1.0, 9.2, 10.0], [0.0, 50.0]],
        [[10.0, 9.2, 1.0], [0.0, 50.0]],
        [(0, 1)],
        [[[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]],
    )
    found = bounds.Bounds.of(track.cost_graph_of(problem), epsilon, steps=steps)
    assert found is not None and found.time_s.tolist() == [10.0, 1.0]
    return found


@pytest.mark.parametrize(
    ("epsilon", "steps", "stays"),
    [
        # It goes where the slow end is at most 1 + epsilon times as slow, and smaller: 10 / 9.2 is 1.087.
        (0.0, (0.0, 0.0), True),
        (0.086, (0.0, 0.0), True),
        (0.088, (0.0, 0.0), False),
        # Or where it must be a step of 0.8 s or more faster than the slow end, or 0.8 bytes smaller than the large one.
        (0.0, (0.79, 0.0), True),
        (0.0, (0.81, 0.0), False),
        (0.0, (0.0, 0.79), True),
        (0.0, (0.0, 0.81), False),
        # The larger of the two counts, not both after one another.
        (0.05, (0.7, 0.0), True),
    ],
)
def test_a_point_goes_that_a_known_one_is_close_to(epsilon: float, steps: tuple[float, float], stays: bool) -> None:
    assert (1 in _between_ends(epsilon, steps).alive()[0]) == stays


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.5])
def test_epsilon_is_shared_among_the_bounds_and_all_eliminations(epsilon: float, forced: pytest.MonkeyPatch) -> None:
    of_bounds, of_eliminations = [], []
    make: Callable[..., bounds.Bounds | None] = bounds.Bounds.of
    within = factors.EliminationState.within

    def noting(graph: object, epsilon: float, *more: object) -> bounds.Bounds | None:
        of_bounds.append(epsilon)
        return make(graph, epsilon, *more)

    def noting_ratio(self: factors.EliminationState, ratio: float, longest: float) -> object:
        of_eliminations.append(ratio)
        return within(self, ratio, longest)

    forced.setattr(bounds.Bounds, "of", noting)
    forced.setattr(factors.EliminationState, "within", noting_ratio)
    track_frontier(_chain(0, nodes=5), epsilon=epsilon, threads=1)
    # The graph is one part, of five variables at most when eliminations begin.
    assert of_bounds and len(of_eliminations) == 1
    worst = (1 + max(of_bounds)) * (1 + of_eliminations[0]) ** 5
    assert 1 + 0.9 * epsilon < worst < 1 + epsilon + 1e-12


@pytest.mark.parametrize("epsilon", [0.02, 0.1, 0.5])
def test_every_point_of_the_frontier_has_one_near_it_in_a_bounded_search(
    epsilon: float, forced: pytest.MonkeyPatch
) -> None:
    fewer = 0
    for seed in range(10):
        problem = _chain(seed)
        whole, found = brute_force(problem), track_frontier(problem, epsilon=epsilon, threads=1)
        for time_s, memory_bytes in zip(whole.time_s, whole.memory_bytes, strict=True):
            smaller = found.memory_bytes <= memory_bytes * (1 + 1e-12)
            assert found.time_s[smaller].min(initial=math.inf) <= time_s * (1 + epsilon)
        fewer += len(whole) - len(found)
    assert fewer > 0


@pytest.mark.parametrize(("passes", "share_from", "threads"), [(1, 1 << 20, 1), (6, 0, 2), (1, 0, 2)])
def test_few_passes_of_messages_and_shared_ones_lose_no_point(
    passes: int, share_from: int, threads: int, forced: pytest.MonkeyPatch
) -> None:
    forced.setattr(messages, "_PASSES", passes)
    forced.setattr(bounds, "_SHARE_FROM", share_from)
    for seed in range(10):
        problem = _chain(seed, nodes=6)
        found = track_frontier(problem, threads=threads)
        assert found.exact
        _same_points(found, brute_force(problem))
