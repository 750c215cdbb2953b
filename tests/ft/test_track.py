"""Frontier tracking against brute force, against itself, and its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensoropt.ft.track as track
import tensoropt.problem.frontier_tables as tables
from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.ft import factors, track_frontier
from tensoropt.problem import Frontier, Problem, brute_force, evaluate, load_problem
from tensoropt.problem.frontier import by_both_costs, frontier_of
from tensoropt.problem.pareto import reduce_segments
from tensoropt.problem.problem import FloatArray
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.registry import get_solver
from tests.effort import EVERY_CASE
from tests.ft.random_problems import SHAPES, layered_problem, random_problem

pytestmark = pytest.mark.pure

SEEDS = 84 if EVERY_CASE else 30
"""Per shape of graph: 504 problems."""


def solve_or_none(search: Callable[..., Frontier], problem: Problem, **options: Any) -> Frontier | None:
    try:
        return search(problem, **options)
    except InfeasibleError:
        return None


def assert_same_points(found: Frontier | None, expected: Frontier | None) -> None:
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        # Equal strategies on paper may be different ones here, whose costs round apart in the last bit.
        np.testing.assert_allclose(found.time_s, expected.time_s, rtol=1e-13)
        np.testing.assert_allclose(found.memory_bytes, expected.memory_bytes, rtol=1e-13)


def assert_costs_are_exact(problem: Problem, frontier: Frontier) -> None:
    """Every point is what its strategy costs, to the last bit."""
    time, memory = problem.costs(frontier.assignments, frontier.alternatives)
    assert np.array_equal(time, frontier.time_s) and np.array_equal(memory, frontier.memory_bytes)
    for index in range(len(frontier)):
        point = frontier.point(index)
        one_time, one_memory = evaluate(problem, point.assignment, point.alternatives)
        assert (one_time.tolist(), one_memory.tolist()) == ([point.time_s], [point.memory_bytes])


def kinds(frontier: Frontier) -> list[str]:
    return [step.kind for step in frontier.eliminations]


def force_bounds(patch: pytest.MonkeyPatch) -> None:
    """Makes small problems go where only large ones would."""
    patch.setattr(track, "BOUND_FROM", 0)
    patch.setattr(track, "COMPARE_FROM", 0)
    patch.setattr(track, "LEAVE_FROM", 12)
    patch.setattr(track, "ROUNDS", ((3, 1), (5, 2)))
    patch.setattr(factors, "PRUNE_FROM", 0)


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(("copies", "more"), [(4, ()), (2, (0.5, 0.25))])
def test_edges_that_repeat_equal_brute_force(
    copies: int, more: tuple[float, ...], forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:
        force_bounds(monkeypatch)

    def several(times: Sequence[FloatArray], factors: tuple[float, ...]) -> list[FloatArray]:
        """The tables with more alternatives, each several times."""
        one = [time[..., None] if time.ndim == 2 else time for time in times]
        whole = [np.concatenate([t, *(factor * t[..., :1] for factor in factors)], axis=-1) for t in one]
        return [table for table in whole for _ in range(copies)]

    differ = 0
    for seed in range(40):
        once = random_problem("chain", seed, nodes=3)
        problem = Problem(
            once.names,
            once.node_time_s,
            once.node_memory_bytes,
            np.repeat(once.edges, copies, axis=0),
            several(once.edge_time_s, more),
            several([memory + 1.0 for memory in once.edge_memory_bytes], tuple(1.0 / factor for factor in more)),
            once.groups,
        )
        found = solve_or_none(track_frontier, problem, threads=1)
        assert_same_points(found, solve_or_none(brute_force, problem))
        if found is not None:
            assert_costs_are_exact(problem, found)
            differ += any(len({*row[problem.nodes :]}) > 1 for row in found.alternatives.tolist())
    assert differ > 2  # some strategies take different alternatives of equal edges


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_frontier_equals_brute_force_on_random_problems(shape: str) -> None:
    feasible = 0
    for seed in range(SEEDS):
        problem = random_problem(shape, seed)
        expected = solve_or_none(brute_force, problem)
        for method in ("ldp", "elimination"):
            found = [solve_or_none(track_frontier, problem, threads=1, method=method)]
            with pytest.MonkeyPatch.context() as patch:
                if seed % 2:
                    force_bounds(patch)
                options = {"heuristics": False} if seed % 3 else {"heuristics": False, "max_joint_configurations": 8}
                found.append(solve_or_none(track_frontier, problem, threads=1, method=method, **options))
            for frontier in found:
                assert_same_points(frontier, expected)
                if frontier is not None:
                    feasible += 1
                    assert frontier.exact
                    assert_costs_are_exact(problem, frontier)
    assert feasible >= 4 * SEEDS // 3


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_search_thins_by_each_cost_is_near_in_both(shape: str) -> None:
    share, lacks = 0.3, 0

    def thinned(problem: Problem) -> Frontier:
        """Of all strategies by memory those that are faster by the share than the last one that was taken."""
        whole, places = brute_force(problem), [0]
        for place, time_s in enumerate(whole.time_s.tolist()):
            if time_s * (1 + share) < whole.time_s[places[-1]]:
                places.append(place)
        rows, picks = whole.rows(np.array(places))
        return frontier_of(problem, rows, picks, exact=False, eliminations=(), seconds=0.0)

    for problem in (random_problem(shape, seed) for seed in range(8)):
        expected = solve_or_none(brute_force, problem)
        if expected is None:
            continue
        found, by_time = by_both_costs(problem, thinned), thinned(problem)
        assert_costs_are_exact(problem, found)
        for time_s, memory_bytes in zip(
            expected.time_s * (1 + 1e-12), expected.memory_bytes * (1 + 1e-12), strict=True
        ):
            longer_s, larger_bytes = time_s * (1 + share), memory_bytes * (1 + share)
            assert ((found.memory_bytes <= memory_bytes) & (found.time_s <= longer_s)).any()
            assert ((found.time_s <= time_s) & (found.memory_bytes <= larger_bytes)).any()
            lacks += not ((by_time.time_s <= time_s) & (by_time.memory_bytes <= larger_bytes)).any()
    assert lacks


@pytest.mark.parametrize("shape", SHAPES)
def test_frontier_of_whole_numbers_equals_brute_force_to_the_last_bit(shape: str) -> None:
    for seed in range(100, 120):
        problem = random_problem(shape, seed, whole=True)
        expected, found = solve_or_none(brute_force, problem), solve_or_none(track_frontier, problem, threads=1)
        if expected is not None:
            assert found is not None
            assert found.time_s.tolist() == expected.time_s.tolist()
            assert found.memory_bytes.tolist() == expected.memory_bytes.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_what_does_not_beat_known_strategies_by_a_step_is_not_looked_for(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_bounds(monkeypatch)
    for seed in range(120, 160):
        # Costs are multiples of 3/8 s and 64 bytes, so that strategies differ by one step at least.
        coarse = random_problem(shape, seed, whole=True)
        problem = coarse.with_tables(lambda time_s, memory, _: (time_s * 0.375, memory * 64.0))
        expected, found = solve_or_none(brute_force, problem), solve_or_none(track_frontier, problem, threads=1)
        if expected is not None:
            assert found is not None
            assert found.exact
            assert found.time_s.tolist() == expected.time_s.tolist()
            assert found.memory_bytes.tolist() == expected.memory_bytes.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_least_of_one_cost_equals_brute_force(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force_bounds(monkeypatch)
    for seed in range(160, 190):
        problem = random_problem(shape, seed)
        expected = solve_or_none(brute_force, problem)
        if expected is not None:
            found = track_frontier(single_cost(problem, "time"), threads=1)
            assert found.exact
            assert len(found) == 1
            best = problem.costs(found.assignments, found.alternatives)[0]
            assert best[0] == pytest.approx(expected.time_s[-1], rel=1e-8)


def test_bounds_drop_points_of_long_chains_and_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(6, 7, seed=1)
    made: list[int] = []
    plain = tables.join

    def counting(*arguments, **options):
        joined = plain(*arguments, **options)
        made.append(joined.table.points)
        return joined

    monkeypatch.setattr(factors, "join", counting)
    monkeypatch.setattr(factors, "PRUNE_FROM", 0)
    monkeypatch.setattr(track, "BOUND_FROM", float("inf"))
    free = track_frontier(problem)
    largest_free = max(made)
    made.clear()
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    bounded = track_frontier(problem)
    assert len(free) > 50
    assert_same_points(bounded, free)
    assert max(made) < 0.7 * largest_free


def test_too_long_an_elimination_gives_strategies_near_the_frontier(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(5, 9, seed=7)
    exact = track_frontier(problem)
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    monkeypatch.setattr(track, "ROUNDS", ((2, 1),))
    monkeypatch.setattr(track, "LONGEST", 3_000)
    found = track_frontier(problem)
    assert kinds(found)[-1] == "narrow" and not found.exact
    assert_costs_are_exact(problem, found)
    assert len(found) > 10
    assert exact.time_s[-1] <= found.time_s[-1] <= 1.05 * exact.time_s[-1]
    assert exact.memory_bytes[0] <= found.memory_bytes[0] <= 1.05 * exact.memory_bytes[0]
    patient = track_frontier(problem, heuristics=False)
    assert patient.exact
    assert_same_points(patient, exact)


def test_hull_is_the_result_where_even_the_narrow_search_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(5, 9, seed=7)
    exact = track_frontier(problem)
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    monkeypatch.setattr(track, "LONGEST", 3_000)
    monkeypatch.setattr(track, "NARROW_LONGEST", 10)
    found = track_frontier(problem)
    assert kinds(found)[-1] == "narrow" and not found.exact
    assert_costs_are_exact(problem, found)
    assert len(found) > 2
    assert found.time_s[-1] == pytest.approx(exact.time_s[-1], rel=1e-3)
    assert found.memory_bytes[0] == pytest.approx(exact.memory_bytes[0], rel=1e-3)


def test_heuristic_elimination_takes_over_where_there_are_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(5, 9, seed=7)
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    monkeypatch.setattr(track, "LONGEST", 3_000)
    monkeypatch.setattr(track.Bounds, "of", lambda *_: None)
    found = track_frontier(problem)
    assert "heuristic" in kinds(found) and not found.exact
    assert_costs_are_exact(problem, found)


def test_methods_agree_on_repeated_layers() -> None:
    problem = layered_problem(4, 5, seed=2)
    assert_same_points(track_frontier(problem, method="elimination"), track_frontier(problem, method="ldp"))


def test_result_is_identical_for_every_thread_count_and_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(5, 6, seed=3)
    expected = track_frontier(problem, threads=1)
    monkeypatch.setattr(tables, "_CHUNK", 37)
    for threads in (1, 2, 5):
        found = track_frontier(problem, threads=threads)
        for field in ("time_s", "memory_bytes", "assignments", "alternatives"):
            assert np.array_equal(getattr(found, field), getattr(expected, field)), (field, threads)
        assert found.eliminations == expected.eliminations


def test_chain_is_solved_by_ldp_alone() -> None:
    problem = Problem("abcd", [[1.0, 2.0]] * 4, [[2.0, 1.0]] * 4, [(0, 1), (1, 2), (2, 3)], [np.eye(2)] * 3)
    found = track_frontier(problem)
    assert kinds(found) == ["ldp"] * 4
    assert [step.nodes for step in found.eliminations] == [("a",), ("b",), ("c",), ("d",)]
    assert found.eliminations[0].into == ("b",)


def test_elimination_takes_a_chain_node_by_node_down_to_its_ends() -> None:
    problem = Problem("abcd", [[1.0, 2.0]] * 4, [[2.0, 1.0]] * 4, [(0, 1), (1, 2), (2, 3)], [np.eye(2)] * 3)
    found = track_frontier(problem, method="elimination")
    assert [(s.kind, s.nodes, s.into) for s in found.eliminations] == [
        ("node", ("b",), ("a", "c")),
        ("node", ("c",), ("a", "d")),
        ("final", ("a",), ("d",)),
        ("final", ("d",), ()),
    ]


def test_residual_layers_are_eliminated_beside_the_marked_linear_graph() -> None:
    found = track_frontier(layered_problem(3, 4, seed=4))
    steps = {kind: {s.nodes[0] for s in found.eliminations if s.kind == kind} for kind in ("node", "ldp")}
    assert {name for name in steps["node"] if not name.startswith("w")} == {"mid0", "mid1", "mid2"}
    assert {"in1", "in2", "add0", "add1", "add2"} <= steps["ldp"]
    assert kinds(found).count("edge") == 3  # each skip connection meets what its branch became


def hub_problem(seed: int, layers: int = 4, k: int = 3) -> Problem:
    """A chain of which every node reads a mask, and all but one a bias: more than node elimination can do.

    Edges matter most, so that no configuration is dominated.
    """
    rng = np.random.default_rng(seed)
    mask, bias = layers, layers + 1
    edges = [(i, i + 1) for i in range(layers - 1)] + [(mask, i) for i in range(layers)]
    edges += [(bias, i) for i in range(layers) if i != 1]
    return Problem(
        [*(f"layer{i}" for i in range(layers)), "mask", "bias"],
        rng.random((layers + 2, k)),
        rng.random((layers + 2, k)),
        edges,
        5 * rng.random((len(edges), k, k)),
    )


def test_shared_node_is_carried_along_exactly_where_tables_stay_small() -> None:
    problem = hub_problem(0)
    found = track_frontier(problem)
    assert found.exact and "heuristic" not in kinds(found)
    assert_same_points(found, brute_force(problem))


def test_dense_graph_takes_branch_elimination() -> None:
    rng = np.random.default_rng(8)
    edges = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    problem = Problem("abcde", rng.random((5, 3)), rng.random((5, 3)), edges, rng.random((10, 3, 3)))
    found = track_frontier(problem)
    assert found.exact and "branch" in kinds(found)
    assert_same_points(found, brute_force(problem))


def test_heuristic_elimination_is_reported_and_never_better_than_exact() -> None:
    worse = 0
    for problem in [random_problem("hub", seed) for seed in range(30)] + [hub_problem(seed) for seed in range(10)]:
        expected = solve_or_none(brute_force, problem)
        found = solve_or_none(track_frontier, problem, max_joint_configurations=4)
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            continue
        assert found.exact == ("heuristic" not in kinds(found))
        assert_costs_are_exact(problem, found)
        for time, memory in zip(found.time_s, found.memory_bytes, strict=True):
            no_worse = (expected.time_s <= time * (1 + 1e-13)) & (expected.memory_bytes <= memory * (1 + 1e-13))
            assert no_worse.any()
        worse += len(found) < len(expected)
    assert worse > 0  # it really was a heuristic


def test_heuristic_elimination_fixes_the_node_with_the_most_neighbours_at_its_configuration() -> None:
    problem = hub_problem(0)
    found = track_frontier(problem, max_joint_configurations=9)
    fixed = next(step for step in found.eliminations if step.kind == "heuristic")
    assert fixed.nodes == ("mask",) and not found.exact
    assert set(found.assignments[:, problem.names.index("mask")].tolist()) == {fixed.configuration}


def test_shared_node_is_conditioned_on_where_heuristics_are_not_allowed() -> None:
    problem = hub_problem(0)
    found = track_frontier(problem, heuristics=False, max_joint_configurations=9)
    condition = next(step for step in found.eliminations if step.kind == "condition")
    assert condition.nodes == ("mask",) and found.exact
    assert_same_points(found, brute_force(problem))


def test_heuristic_that_leads_nowhere_is_taken_back() -> None:
    # a, b and c must differ pairwise, which takes c's third configuration, and that takes the mask's dear
    # second: no pair of neighbours shows it.
    free = np.zeros((2, 2))
    differ = np.array([[np.inf, 0.0], [0.0, np.inf]])
    differ_from_c = np.array([[np.inf, 0.0, 0.0], [0.0, np.inf, 0.0]])
    mask_to_c = np.array([[0.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
    problem = Problem(
        ["a", "b", "c", "mask"],
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0, 5.0], [0.0, 9.0]],
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0, 5.0], [0.0, 9.0]],
        [(3, 0), (3, 1), (3, 2), (0, 1), (1, 2), (0, 2)],
        [free, free, mask_to_c, differ, differ_from_c, differ_from_c],
    )
    found = track_frontier(problem, max_joint_configurations=1)
    assert_same_points(found, brute_force(problem))
    assert found.assignments[0, 3] == 1


@pytest.mark.parametrize("epsilon", [0.02, 0.3, 2.0])
def test_epsilon_bounds_the_error_of_every_point(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = 0
    monkeypatch.setattr(track, "BOUND_FROM", 0)
    for rounds in (((24, 2),), ((3, 1),), ()):  # with few known strategies, thinning has to do its part
        monkeypatch.setattr(track, "ROUNDS", rounds)
        for seed in range(4):
            problem = layered_problem(4, 5, seed)
            if seed % 2:  # costs in steps, which are not those of epsilon
                problem = problem.with_tables(lambda time_s, memory, _: (np.rint(time_s), np.rint(memory)))
            expected, found = track_frontier(problem), track_frontier(problem, epsilon=epsilon)
            assert expected.exact and not found.exact
            assert_costs_are_exact(problem, found)
            for time, memory in zip(expected.time_s, expected.memory_bytes, strict=True):
                near = (found.time_s <= time * (1 + epsilon)) & (found.memory_bytes <= memory * (1 + 1e-12))
                assert near.any()
            fewer += len(found) < len(expected)
    assert fewer > 0


def test_groups_take_one_configuration() -> None:
    problem = Problem(
        ["cell0", "cell1", "cell2"],
        [[1.0, 5.0], [5.0, 1.0], [3.0, 3.0]],
        [[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]],
        [(0, 1), (1, 2)],
        [[[7.0, 0.0], [0.0, 3.0]], np.zeros((2, 2))],
        groups=[4, 4, 2],
    )
    found = track_frontier(problem)
    assert (found.assignments[:, 0] == found.assignments[:, 1]).all()
    assert found.time_s.tolist() == [12.0]  # 5 + 1 + 3 and the edge's 3, against 1 + 5 + 3 and 7
    assert ("cell0", "cell1") in [step.nodes for step in found.eliminations]


def test_components_are_combined_by_product() -> None:
    problem = Problem("ab", [[1.0, 2.0], [10.0, 20.0]], [[2.0, 1.0], [20.0, 10.0]])
    found = track_frontier(problem)
    assert found.time_s.tolist() == [22.0, 21.0, 12.0, 11.0]
    assert found.memory_bytes.tolist() == [11.0, 12.0, 21.0, 22.0]
    assert kinds(found)[-1] == "product"


def test_thousand_layers_unroll() -> None:
    problem = layered_problem(250, 2, seed=5)
    found = track_frontier(problem)
    assert problem.nodes == 1000 and found.exact
    time, memory = problem.costs(found.assignments)
    assert np.array_equal(time, found.time_s) and np.array_equal(memory, found.memory_bytes)


def test_progress_counts_up_to_all_variables() -> None:
    seen: list[tuple[int, int]] = []
    problem = layered_problem(2, 3, seed=6)
    track_frontier(problem, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, problem.nodes + 1))
    assert {total for _, total in seen} == {problem.nodes}


def test_file_of_another_program_is_solved(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "other.npz",
        names=np.array(["a", "b"]),
        node_time_s_0=np.array([1.0, 3.0]),
        node_memory_bytes_0=np.array([4, 1]),
        node_time_s_1=np.array([[2.0, np.inf], [5.0, 1.0]]),  # two alternatives, of which one is not there
        node_memory_bytes_1=np.array([[2.0, 0.0], [0.0, 1.0]]),
        edges=np.array([[0, 1]], np.int32),
        edge_time_s_0=np.array([[0.0, 2.0], [2.0, 0.0]]),
    )
    found = track_frontier(load_problem(tmp_path / "other.npz"))
    assert found.exact
    assert found.time_s.tolist() == [8.0, 4.0, 3.0]
    assert found.memory_bytes.tolist() == [1.0, 2.0, 6.0]
    assert found.assignments.tolist() == [[1, 1], [1, 1], [0, 0]]
    assert found.alternatives[:, 1].tolist() == [0, 1, 0]


def test_search_is_registered_as_ft() -> None:
    problem = random_problem("tree", 1)
    assert_same_points(get_solver("ft")(problem), track_frontier(problem))


def test_impossible_configurations_of_one_node_are_an_error_naming_it() -> None:
    problem = Problem("ab", [[1.0], [np.inf, np.inf]], [[1.0], [1.0, 1.0]], [(0, 1)], [np.zeros((1, 2))])
    with pytest.raises(InfeasibleError, match=r"Problem node 'b'.*\('a'\).*all 2 are impossible"):
        track_frontier(problem)


def test_configurations_impossible_together_are_an_error_naming_the_nodes() -> None:
    different = [[np.inf, 0.0], [0.0, np.inf]]  # no two of three nodes may be equal, with two configurations
    problem = Problem("abc", [[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3, [(0, 1), (1, 2), (0, 2)], [different] * 3)
    for heuristics in (True, False):
        for limit in (1, 100):
            with pytest.raises(InfeasibleError, match=r"Problem nodes 'a'.*impossible together"):
                track_frontier(problem, heuristics=heuristics, max_joint_configurations=limit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, r"method: must be one of 'ldp', 'elimination', got 'magic'"),
        ({"epsilon": -0.1}, r"epsilon: must be >= 0 and finite, got -0.1"),
        ({"epsilon": float("nan")}, r"epsilon: must be >= 0 and finite, got nan"),
        ({"epsilon": "0.1"}, r"epsilon: must be >= 0 and finite, got '0\.1'"),
        ({"threads": 0}, r"threads: must be >= 1, got 0"),
        ({"threads": "2"}, r"threads: must be >= 1, got '2'"),
        ({"max_joint_configurations": 1.5}, r"max_joint_configurations: must be >= 1, got 1\.5"),
        ({"max_joint_configurations": 0}, r"max_joint_configurations: must be >= 1, got 0"),
    ],
)
def test_option_out_of_range_is_an_error(options: dict, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        track_frontier(random_problem("chain", 0), **options)


def beside_hubs(layers: int, configurations: int, hubs: int, single: bool = False) -> Problem:
    """A chain all of whose nodes are beside all hubs; equal tables are one array."""
    rng = np.random.default_rng(0)
    sizes = [1 if single else configurations] * layers + [configurations] * hubs
    edges = [(i, i + 1) for i in range(layers - 1)] + [(layers + h, i) for h in range(hubs) for i in range(layers)]
    made = {(a, b): 5.0 * rng.random((a, b)) for a in sorted({*sizes}) for b in sorted({*sizes})}
    times = [made[sizes[u], sizes[v]] for u, v in edges]
    names = [f"n{i}" for i in range(len(sizes))]
    return Problem(names, [rng.random(k) for k in sizes], [rng.random(k) for k in sizes], edges, times)


@pytest.mark.parametrize("bounds", [False, True])
def test_more_neighbours_than_numpy_has_axes(bounds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if bounds:
        force_bounds(monkeypatch)
    problem = beside_hubs(80, 3, 3, single=True)
    found = track_frontier(problem, threads=1)
    hubs = np.stack(np.unravel_index(np.arange(27), (3, 3, 3)), axis=1)
    time, memory = problem.costs(np.concatenate([np.zeros((27, 80), np.int64), hubs], axis=1))
    kept, _ = reduce_segments(np.array([0, 27]), time, memory)
    assert found.exact
    np.testing.assert_allclose(found.time_s, time[kept], rtol=1e-13)
    np.testing.assert_allclose(found.memory_bytes, memory[kept], rtol=1e-13)


def test_what_takes_longer_than_it_seemed_is_begun_again_with_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(5, 9, seed=7)
    expected = track_frontier(problem, threads=1)
    monkeypatch.setattr(track, "BOUND_FROM", float("inf"))
    monkeypatch.setattr(track, "SHORT", 3_000)
    found = track_frontier(problem, threads=1)
    assert found.exact
    assert_same_points(found, expected)
