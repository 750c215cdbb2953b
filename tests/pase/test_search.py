"""The time-only search against brute force, against itself in other orders, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tensoropt.pase.bounds as bounds
import tensoropt.pase.search as search
import tensoropt.pase.tables as tables
from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.ft import track_frontier
from tensoropt.pase import ORDERS, BestStrategy, fastest_point, find_best_strategy
from tensoropt.problem import Problem, brute_force
from tests.ft.random_problems import SHAPES, layered_problem, random_problem

pytestmark = pytest.mark.pure

SEEDS = 84
"""Per shape of graph: 504 problems."""


def solve_or_none(problem: Problem, order: str | Sequence[int] = "generate_seq", prune: bool = True) -> float | None:
    try:
        best = find_best_strategy(problem, order=order, prune=prune, parts=True)
    except InfeasibleError:
        return None
    assert_cost_is_exact(problem, best)
    return best.cost


def assert_cost_is_exact(problem: Problem, best: BestStrategy) -> None:
    """The cost is what the strategy costs, to the last bit."""
    time, memory = problem.costs(best.assignment, best.alternatives)
    assert time.tolist() == [best.cost] and np.isfinite(memory).all()


def force_bounds(patch: pytest.MonkeyPatch) -> None:
    """Makes small problems go where only large ones would."""
    patch.setattr(search, "QUICK", 12)
    patch.setattr(search, "SIMPLE_LONGEST", 12)
    patch.setattr(search, "NARROW", (3, 2, 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_best_strategy_equals_brute_force_on_random_problems(shape: str) -> None:
    feasible = 0
    for seed in range(SEEDS):
        # Brute force over alternatives of a hub's many edges is what this test would otherwise wait for.
        problem = random_problem(shape, seed, nodes=5 if shape == "hub" else 6)
        try:
            expected = brute_force(problem).time_s[-1]
        except InfeasibleError:
            expected = None
        permutation = np.random.default_rng(seed).permutation(problem.nodes).tolist()
        found = [solve_or_none(problem), solve_or_none(problem, "breadth_first"), solve_or_none(problem, permutation)]
        with pytest.MonkeyPatch.context() as patch:
            force_bounds(patch)
            found.append(solve_or_none(problem))
        for cost in found:
            # Theorem 1, whatever the sequence. Equal strategies on paper may round apart in the last bit.
            assert cost == (None if expected is None else pytest.approx(expected, rel=1e-12, abs=1e-15))
        feasible += expected is not None
    assert feasible >= SEEDS // 2


@pytest.mark.parametrize("seed", range(4))
def test_best_strategy_is_the_fastest_point_of_the_exact_frontier(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(6, 8, seed)
    expected = track_frontier(problem, threads=1).time_s[-1]
    assert find_best_strategy(problem).cost == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(search, "QUICK", 100)
    monkeypatch.setattr(search, "SIMPLE_LONGEST", 100)
    bounded = find_best_strategy(problem)
    assert bounded.cost == pytest.approx(expected, rel=1e-12)
    assert find_best_strategy(problem, prune=False).cost == pytest.approx(expected, rel=1e-12)
    assert find_best_strategy(problem).assignment == bounded.assignment


def test_large_tables_are_made_by_the_compiled_loop_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(3, 9, seed=3)
    expected = find_best_strategy(problem, prune=False)
    for entries in (1, 100, 10_000):
        monkeypatch.setattr(tables, "_AT_ONCE", entries)
        monkeypatch.setattr(tables, "_MOST_AT_ONCE", entries)
        monkeypatch.setattr(tables, "_SHARED_FROM", entries)
        for order in ORDERS:
            assert find_best_strategy(problem, order=order, prune=False).cost == pytest.approx(expected.cost, rel=1e-12)


def test_equal_layers_are_worked_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    plain = tables._least_sum

    def counting(*arguments):
        made.append(arguments)
        return plain(*arguments)

    monkeypatch.setattr(tables, "_least_sum", counting)
    best = find_best_strategy(layered_problem(40, 3, seed=1))
    assert len(best.order) == 160
    assert len(made) <= 160 - 39  # the variables of all 40 layers are one step


def test_order_and_dependent_sets_are_reported_by_node() -> None:
    problem = Problem(
        "abcd",
        [[1.0, 2.0]] * 4,
        [[0.0, 0.0]] * 4,
        [(0, 1), (1, 2), (3, 1)],
        [np.ones((2, 2))] * 3,
        groups=[0, 1, 2, 0],
    )
    best = find_best_strategy(problem)
    assert (best.order, best.dependent_set_sizes) == ((0, 1, 2), (1, 1, 0))
    assert find_best_strategy(problem, order="breadth_first").order == (0, 1, 2)
    mine = find_best_strategy(problem, order=[1, 3, 2, 0])
    assert (mine.order, mine.dependent_set_sizes) == ((1, 0, 2), (2, 1, 0))
    assert mine.assignment == (0, 0, 0, 0) and mine.cost == best.cost == 7.0
    assert str(mine).startswith("BestStrategy(7 s, 3 vertices, dependent sets up to 2, found in ")


def test_alternatives_are_the_fastest_that_exist() -> None:
    inf = np.inf
    problem = Problem(
        "ab",
        [[[3.0, 1.0, 2.0]], [5.0]],
        [[[1.0, inf, 9.0]], [1.0]],  # the fastest does not exist
        [(0, 1)],
        [[[[4.0, 4.0, 6.0]]]],
    )
    best = find_best_strategy(problem)
    assert best.alternatives == (2, 0, 0)
    assert best.cost == 11.0


def test_parts_that_nothing_joins_are_solved_each_if_that_is_asked_for() -> None:
    problem = Problem("abc", [[2.0, 1.0], [3.0, 4.0], [5.0]], [[0.0, 0.0], [0.0, 0.0], [0.0]])
    best = find_best_strategy(problem, parts=True)
    assert (best.assignment, best.cost, best.dependent_set_sizes) == ((1, 0, 0), 9.0, (0, 0, 0))


def test_graph_that_is_not_connected_is_refused_with_its_parts() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (4, 5)]
    problem = Problem("abcdef", [[1.0, 2.0]] * 6, [[0.0, 0.0]] * 6, edges, [np.ones((2, 2))] * 4)
    with pytest.raises(
        ProblemError,
        match=r"must be connected, but nothing joins its 2 parts: 'a', 'b', 'c' and 1 more; 'e', 'f'\. "
        r"Add the edges that are missing, or give parts=True",
    ):
        find_best_strategy(problem)
    with pytest.raises(ProblemError, match=r"nothing joins its 5 parts: 'a'; 'b'; 'c'; and 2 more\. Add"):
        find_best_strategy(Problem("abcde", [[1.0]] * 5, [[0.0]] * 5), order="breadth_first")
    assert find_best_strategy(problem, parts=True).cost == 10.0
    assert fastest_point(problem).time_s[0] == 10.0


def test_nodes_of_one_group_join_what_no_edge_does() -> None:
    problem = Problem("abc", [[1.0, 2.0]] * 3, [[0.0, 0.0]] * 3, [(0, 1)], [np.ones((2, 2))], groups=[0, 1, 0])
    assert find_best_strategy(problem).cost == 4.0


def test_registered_search_is_the_fast_end_of_a_frontier() -> None:
    problem = layered_problem(3, 5, seed=5)
    found = fastest_point(problem)
    assert len(found) == 1 and not found.exact
    assert found.time_s[0] == find_best_strategy(problem).cost
    assert found.time_s[0] == pytest.approx(track_frontier(problem).time_s[-1], rel=1e-12)


def dense_problem(nodes: int, configurations: int) -> Problem:
    edges = [(u, v) for u in range(nodes) for v in range(u + 1, nodes)]
    rng = np.random.default_rng(0)
    return Problem(
        [f"n{i}" for i in range(nodes)],
        [rng.random(configurations) for _ in range(nodes)],
        [np.zeros(configurations)] * nodes,
        edges,
        [rng.random((configurations, configurations)) for _ in edges],
    )


def test_dense_graph_is_solved_where_bounds_leave_few_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dense_problem(5, 6)
    expected = brute_force(problem).time_s[-1]
    monkeypatch.setattr(search, "QUICK", 500)
    assert find_best_strategy(problem).cost == pytest.approx(expected, rel=1e-12)


def test_table_that_is_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_TABLE_ENTRIES", 100)
    with pytest.raises(
        ProblemError,
        match=r"at most 100 entries, but that of 'n0' would have 4 × 4 × 4 × 4 = 256, one axis for each of its "
        r"dependent set \('n1', 'n2', 'n3', 'n4'\)\. Use order='generate_seq', fewer configurations",
    ):
        find_best_strategy(dense_problem(5, 4), order="breadth_first", prune=False)


def test_table_that_is_too_large_is_refused_before_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may take minutes; bounds are kept from leaving a few configurations."""

    def no_table(*arguments: Any) -> None:
        raise AssertionError("a table was made")

    monkeypatch.setattr(tables, "MAX_TABLE_ENTRIES", 1000)
    monkeypatch.setattr(tables, "_least_sum", no_table)
    chain = [(i, i + 1) for i in range(3)]
    dense = [(u, v) for u in range(3, 9) for v in range(u + 1, 9)]
    rng = np.random.default_rng(5)
    problem = Problem(
        [f"n{i}" for i in range(9)],
        [rng.random(4) for _ in range(9)],
        [rng.random(4) for _ in range(9)],
        [*chain, *dense],
        [rng.random((4, 4)) for _ in (*chain, *dense)],
    )
    for order in ("generate_seq", range(9)):
        with pytest.raises(
            ProblemError, match=r"at most 1000 entries, but that of 'n3' would have 4 × 4 × 4 × 4 × 4 ="
        ):
            find_best_strategy(problem, order=order, prune=False)


def test_search_ends_where_bounds_prove_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that differ by less than a billionth are equal; to tell them apart takes tables that are too large."""
    nodes, several = 12, 4
    edges = [(u, v) for u in range(nodes) for v in range(u + 1, nodes)]
    rng = np.random.default_rng(1)
    own = [rng.integers(0, 2, several).astype(float) for _ in range(nodes)]
    problem = Problem(
        [f"n{i}" for i in range(nodes)],
        own,
        own,
        edges,
        [1e10 + rng.integers(0, 2, (several, several)) for _ in edges],
    )
    monkeypatch.setattr(search, "QUICK", 1000)
    monkeypatch.setattr(tables, "MAX_TABLE_ENTRIES", 1000)
    assert find_best_strategy(problem).cost == pytest.approx(len(edges) * 1e10, rel=1e-9)
    with pytest.raises(ProblemError, match="at most 1000 entries"):
        find_best_strategy(problem, prune=False)
    monkeypatch.setattr(bounds, "_BITS", 0)  # bounds that do not hold prove nothing
    with pytest.raises(ProblemError, match="at most 1000 entries"):
        find_best_strategy(problem)


def test_least_sum_is_what_broadcasting_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_AT_ONCE", 0)
    rng = np.random.default_rng(11)
    for _ in range(60):
        axes = int(rng.integers(1, 5))
        shape = tuple(rng.integers(1, 5, axes).tolist())
        size = int(rng.integers(1, 7))
        patterns = [tuple(sorted({0, *rng.integers(1, axes + 1, 2).tolist()})) for _ in range(rng.integers(1, 5))]
        missing = set(range(1, axes + 1)) - {axis for pattern in patterns for axis in pattern}
        patterns += [(0,), *((0, axis) for axis in sorted(missing))]
        lengths = (size, *shape)
        given = [rng.integers(0, 9, [lengths[axis] for axis in pattern]).astype(float) for pattern in patterns]
        monkeypatch.setattr(tables, "_MOST_AT_ONCE", int(rng.choice([1, 1000])))
        total = np.zeros(lengths)
        for pattern, table in zip(patterns, given, strict=True):
            total += table.reshape([lengths[axis] if axis in pattern else 1 for axis in range(axes + 1)])
        assert np.array_equal(tables._least_sum(size, shape, patterns, given), total.min(axis=0))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("depth_first", r"must be one of 'generate_seq', 'breadth_first', or all nodes .* got 'depth_first'"),
        ([0, 1], r"each of the 3 nodes once, got 2 of which 2 are different nodes; node 2 is missing"),
        ([0, 1, 1], r"got 3 of which 2 are different nodes; node 2 is missing"),
        ([0, 1, 2, 3], r"got 4 of which 3 are different nodes\. Give a permutation of 0\.\.2"),
        (
            ["a", "b", "c"],
            r"nodes must be their numbers, 0\.\.2, got 'a'\. Give a permutation of these, or one of 'gen",
        ),
        (7.5, r"nodes must be their numbers, 0\.\.2, got 7\.5\."),
    ],
)
def test_order_that_is_none_is_refused(order: Any, message: str) -> None:
    problem = Problem("abc", [[1.0]] * 3, [[0.0]] * 3)
    with pytest.raises(ProblemError, match=message):
        find_best_strategy(problem, order=order)


def test_impossible_problem_names_a_node_and_its_neighbours() -> None:
    inf = np.inf
    problem = Problem("ab", [[1.0, 1.0], [1.0]], [[0.0, 0.0], [0.0]], [(0, 1)], [[[inf], [inf]]])
    with pytest.raises(InfeasibleError, match=r"node 'a': must have .* finite time beside those of 'b', but"):
        find_best_strategy(problem)
    alone = Problem("ab", [[1.0], [inf]], [[0.0], [0.0]])
    with pytest.raises(InfeasibleError, match=r"node 'b': .* beside those of the nodes before it"):
        find_best_strategy(alone, parts=True)


def test_impossible_problem_is_told_by_bounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    inf = np.inf
    dense = dense_problem(4, 3)
    impossible = [np.full((3, 3), inf) if e == 0 else table for e, table in enumerate(dense.edge_time_s)]
    problem = Problem(dense.names, dense.node_time_s, dense.node_memory_bytes, dense.edges, impossible)
    force_bounds(monkeypatch)
    with pytest.raises(InfeasibleError, match=r"node 'n[01]': .* of the other nodes, but every one is impossible"):
        find_best_strategy(problem)
