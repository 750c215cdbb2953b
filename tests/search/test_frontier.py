"""The algebra of frontiers against the definitions of the paper, tuple by tuple."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensoropt.problem.frontier_tables as tables
from tensoropt.problem.frontier_tables import FrontierTable, fold, join, table_from_costs
from tensoropt.problem.pareto import offsets_of, reduce_segments, spread

pytestmark = pytest.mark.pure


def algorithm_1(points: list[tuple[float, float, int]]) -> list[int]:
    """Algorithm 1 as printed, on (memory, time, place): the places that stay, in ascending memory."""
    kept, best = [], np.inf
    for _, time, place in sorted(points):
        if time < best:
            kept.append(place)
            best = time
    return kept


@pytest.mark.parametrize("length", [0, 1, 3, 40, 700])
@pytest.mark.parametrize("values", [2, 9, 10**6])
def test_reduce_of_many_segments_equals_algorithm_1_on_each(length: int, values: int) -> None:
    rng = np.random.default_rng([length, values])
    counts = rng.integers(0, length + 1, 30)
    offsets = offsets_of(counts)
    time, memory = rng.integers(0, values, (2, offsets[-1])).astype(float)
    time[rng.random(len(time)) < 0.1] = np.inf
    kept, new_offsets = reduce_segments(offsets, time, memory)
    for s in range(len(counts)):
        places = range(offsets[s], offsets[s + 1])
        expected = algorithm_1([(memory[i], time[i], i) for i in places])
        assert kept[new_offsets[s] : new_offsets[s + 1]].tolist() == expected


def test_reduce_of_curved_frontiers_equals_algorithm_1() -> None:
    rng = np.random.default_rng(3)
    memory = rng.random(5000)
    time = 1.0 / (0.05 + memory) + 0.02 * rng.random(5000)  # most points are near the frontier
    kept, _ = reduce_segments(np.array([0, 2000, 5000]), time, memory)
    expected = [algorithm_1([(memory[i], time[i], i) for i in part]) for part in (range(2000), range(2000, 5000))]
    assert kept.tolist() == expected[0] + expected[1]


def test_reduce_keeps_the_first_of_equal_tuples() -> None:
    for copies in (2, 50):
        kept, _ = reduce_segments(np.array([0, copies]), np.ones(copies), np.ones(copies))
        assert kept.tolist() == [0]


def test_reduce_drops_infinite_tuples() -> None:
    kept, offsets = reduce_segments(np.array([0, 1, 3]), np.array([np.inf, 1.0, np.inf]), np.array([1.0, np.inf, 2.0]))
    assert kept.tolist() == [] and offsets.tolist() == [0, 0, 0]


def random_table(rng: np.random.Generator, shape: tuple[int, ...], longest: int) -> FrontierTable:
    costs = rng.integers(0, 20, (2, *shape, longest)).astype(float)
    costs[0][rng.random(costs[0].shape) < 0.3] = np.inf
    return table_from_costs(costs[0], costs[1])[0]


def cell_points(table: FrontierTable, cell: tuple[int, ...]) -> list[tuple[float, float]]:
    at = int(np.ravel_multi_index(cell, table.shape)) if table.shape else 0
    part = slice(table.offsets[at], table.offsets[at + 1])
    return list(zip(table.memory_bytes[part].tolist(), table.time_s[part].tolist(), strict=True))


@pytest.mark.parametrize("longest", [1, 4])
@pytest.mark.parametrize("chunk", [5, 10**6])
def test_join_is_product_then_union_then_reduce(longest: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_CHUNK", chunk)
    rng = np.random.default_rng(longest)
    sizes = (2, 3, 4)  # the first two stay, the last goes: node elimination, Eq. 4
    left, right = random_table(rng, (2, 4), longest), random_table(rng, (3, 4), longest)
    joined = join(left, (0, 2), right, (1, 2), sizes, 2)
    for h, j in itertools.product(range(2), range(3)):
        candidates = [
            (a[0] + b[0], a[1] + b[1])
            for i in range(4)
            for a in cell_points(left, (h, i))
            for b in cell_points(right, (j, i))
        ]
        places = algorithm_1([(m, t, p) for p, (m, t) in enumerate(candidates)])
        assert cell_points(joined.table, (h, j)) == [candidates[p] for p in places]
    assert np.array_equal(left.time_s[joined.left] + right.time_s[joined.right], joined.table.time_s)
    assert np.array_equal(left.memory_bytes[joined.left] + right.memory_bytes[joined.right], joined.table.memory_bytes)
    same_middle = left.cell_of(joined.left) % 4 == right.cell_of(joined.right) % 4
    assert same_middle.all()


def test_join_without_union_adds_parallel_edges() -> None:
    rng = np.random.default_rng(9)
    one, two = random_table(rng, (3, 2), 3), random_table(rng, (3, 2), 3)
    joined = join(one, (0, 1), two, (0, 1), (3, 2), 2)
    for cell in itertools.product(range(3), range(2)):
        pairs = itertools.product(cell_points(one, cell), cell_points(two, cell))
        candidates = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
        places = algorithm_1([(m, t, p) for p, (m, t) in enumerate(candidates)])
        assert cell_points(joined.table, cell) == [candidates[p] for p in places]


@pytest.mark.parametrize("longest", [1, 2])
def test_folding_is_joining_again_and_again(longest: int) -> None:
    table = random_table(np.random.default_rng(longest), (3, 4), longest)
    whole = table
    for count in range(2, 8):
        whole = join(whole, (0, 1), table, (0, 1), (3, 4), 2).table
        folded = fold(table, count)
        assert np.array_equal(folded.table.offsets, whole.offsets)
        assert np.array_equal(folded.table.time_s, whole.time_s)
        assert np.array_equal(folded.table.memory_bytes, whole.memory_bytes)
        taken = [folded.points + (folded.second > place) for place in range(count)]
        assert np.array_equal(sum(table.time_s[points] for points in taken), whole.time_s)
        assert np.array_equal(sum(table.memory_bytes[points] for points in taken), whole.memory_bytes)


def test_folded_points_that_round_to_the_one_before_are_none() -> None:
    table = FrontierTable((1,), np.array([0, 2]), np.array([1e16 + 2, 1e16]), np.array([0.0, 1.0]))
    folded = fold(table, 7).table
    assert 1 < folded.points < 8 and (np.diff(folded.time_s) < 0.0).all() and (np.diff(folded.memory_bytes) > 0.0).all()


@pytest.mark.parametrize("longest", [1, 9])
def test_thinned_points_have_a_neighbour_within_the_ratio_and_no_larger(longest: int) -> None:
    rng = np.random.default_rng(longest)
    costs = np.sort(rng.random((2, 3, 40, longest)), axis=-1)
    left = table_from_costs(costs[0], costs[1, ..., ::-1])[0]
    right = table_from_costs(costs[1], costs[0, ..., ::-1])[0]
    whole = join(left, (0, 2), right, (1, 2), (3, 3, 40), 2).table
    thin = join(left, (0, 2), right, (1, 2), (3, 3, 40), 2, ratio=0.1).table
    assert thin.points < whole.points
    for cell in itertools.product(range(3), range(3)):
        stays = cell_points(thin, cell)
        for memory, time in cell_points(whole, cell):
            assert any(m <= memory and t <= time * 1.1 for m, t in stays)


@pytest.mark.parametrize("longest", [1, 4])
def test_points_that_end_beyond_every_corner_go(longest: int) -> None:
    rng = np.random.default_rng(longest)
    left, right = random_table(rng, (2, 4), longest), random_table(rng, (3, 4), longest)
    whole = join(left, (0, 2), right, (1, 2), (2, 3, 4), 2).table
    outside = rng.integers(0, 9, (2, 6)).astype(float)
    corner_time, corner_memory = np.array([30.0, 20.0, 12.0]), np.array([12.0, 20.0, 30.0])
    box = (outside[0], outside[1], corner_time, corner_memory)
    found = join(left, (0, 2), right, (1, 2), (2, 3, 4), 2, box=box).table
    gone = 0
    for number, cell in enumerate(itertools.product(range(2), range(3))):
        points = cell_points(whole, cell)
        ends = [(m + outside[1, number], t + outside[0, number]) for m, t in points]
        stay = [any(m <= c and t <= s for s, c in zip(*box[2:], strict=True)) for m, t in ends]
        assert cell_points(found, cell) == [point for point, stays in zip(points, stay, strict=True) if stays]
        gone += len(points) - sum(stay)
    assert gone > 0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 10.0])
def test_spread_points_stand_for_all_others(share: float) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 60))
        # Steep in some places and flat in others.
        time_s = np.cumsum(rng.exponential(size=count) ** 4 + 1e-6)[::-1]
        memory_bytes = np.cumsum(rng.exponential(size=count) ** 4 + 1e-6)
        kept = spread(time_s, memory_bytes, share)
        assert (kept[0], kept[-1]) == (0, count - 1) and (np.diff(kept) > 0).all()
        for k in range(count):
            before, after = kept[kept <= k][-1], kept[kept >= k][0]
            assert time_s[before] <= time_s[k] * (1 + share) * (1 + 1e-12)
            assert memory_bytes[after] <= memory_bytes[k] * (1 + share) * (1 + 1e-12)
        if share == 10.0 and count > 20:
            assert len(kept) < count
        if share == 0.0:
            assert len(kept) == count
