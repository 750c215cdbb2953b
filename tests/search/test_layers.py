"""Layers in a row decide as one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensoropt.ft import track_frontier
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.problem import FloatArray, Problem
from tensoropt.problem.repeated_layers import repeated_layers

pytestmark = pytest.mark.pure


def _stack(layers: int, seed: int = 0) -> Problem:
    """An input, equal layers of two nodes each, and an output; what passes from node to node has alternatives."""
    rng = np.random.default_rng(seed)

    def table(*shape: int) -> tuple[FloatArray, FloatArray]:
        return rng.integers(9, size=shape).astype(float), rng.integers(9, size=shape).astype(float)

    ends, one, two = table(3), table(3), table(2)
    within, between, first, last = table(3, 2), table(2, 3, 2), table(3, 3), table(2, 3)
    names, nodes, edges, costs = ["input"], [ends], [(0, 1)], [first]
    for layer in range(layers):
        names += [f"layer{layer}/one", f"layer{layer}/two"]
        nodes += [one, two]
        edges += [(1 + 2 * layer, 2 + 2 * layer), (2 + 2 * layer, 3 + 2 * layer)]
        costs += [within, between if layer + 1 < layers else last]
    times, memories = zip(*(*nodes, ends), strict=True)
    edge_times, edge_memories = zip(*costs, strict=True)
    return Problem([*names, "output"], times, memories, edges, edge_times, edge_memories)


def test_runs_of_a_stack_begin_at_one_layer_for_all_its_nodes() -> None:
    problem = _stack(60)
    leaders = repeated_layers(problem, most_nodes=40)
    assert 24 <= len(np.unique(leaders)) <= 44
    assert leaders[0] == 0
    assert leaders[-1] == problem.nodes - 1
    ones, twos = leaders[1:-1:2], leaders[2:-1:2]
    inside = slice(8, -8)  # layers near the ends decide for themselves
    assert np.array_equal((ones - 1)[inside], (twos - 2)[inside])
    assert len(np.unique(ones[inside])) >= 4


def test_what_is_not_repeated_decides_for_itself() -> None:
    problem = _stack(2)
    assert repeated_layers(problem, most_nodes=1).tolist() == [*range(problem.nodes)]


def test_groups_are_kept_where_nothing_is_repeated() -> None:
    table = np.arange(3.0)
    problem = Problem(["a", "b", "c"], [table, table + 1, table + 2], [table] * 3, groups=[0, 1, 0])
    assert repeated_layers(problem).tolist() == [0, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_frontiers_are_those_of_strategies_with_equal_layers_in_a_run(seed: int) -> None:
    problem = _stack(6, seed)
    leaders = np.array([0, 1, 2, 1, 2, 1, 2, 7, 8, 7, 8, 7, 8, 13])
    whole = Contraction(problem, np.arange(problem.nodes))
    contraction = whole.further(leaders)
    assert contraction.problem.nodes - sum("alternatives" in name for name in contraction.problem.names) == 6
    found = contraction.expand(track_frontier(contraction.problem))
    assert not found.exact  # strategies were left out
    deciding = np.unique(leaders)
    rows = np.array([*itertools.product(*(range(problem.configurations(i)) for i in deciding))])
    chosen = rows[:, np.searchsorted(deciding, leaders)]
    # Moves within a run take one alternative, those between runs another.
    ways = np.array([*itertools.product(range(2), repeat=3)])
    alternatives = np.zeros((len(ways), problem.nodes + len(problem.edges)), np.int64)
    moves = [e for e, table in enumerate(problem.edge_time_s) if table.ndim == 3]
    for e in moves:
        u, v = leaders[problem.edges[e]]
        alternatives[:, problem.nodes + e] = ways[:, 0 if v == 1 else 1 if u == 2 else 2]
    times, memories = zip(
        *(problem.costs(chosen, np.broadcast_to(way, (len(chosen), len(way)))) for way in alternatives), strict=True
    )
    points = sorted(zip(np.concatenate(memories).tolist(), np.concatenate(times).tolist(), strict=True))
    best: list[tuple[float, float]] = []
    for memory, time in points:
        if not best or time < best[-1][1]:
            best.append((memory, time))
    assert list(zip(found.memory_bytes.tolist(), found.time_s.tolist(), strict=True)) == best


def test_costs_of_many_equal_terms_are_their_exact_sum() -> None:
    rng = np.random.default_rng(0)
    time, memory = rng.random((2, 4))
    other = rng.random(4)
    problem = Problem([f"n{i}" for i in range(1003)], [*[time] * 1001, other, time], [memory] * 1003)
    rows = rng.integers(4, size=(5, 1))
    found, _ = problem.costs(np.broadcast_to(rows, (5, 1003)))
    assert found == pytest.approx([time[k] * 1002 + other[k] for k in rows[:, 0]], rel=1e-11)
    rounded = problem.node_time_s
    expected = [np.longdouble(rounded[0][k]) * 1002 + np.longdouble(rounded[1001][k]) for k in rows[:, 0]]
    assert found.tolist() == [float(value) for value in expected]
