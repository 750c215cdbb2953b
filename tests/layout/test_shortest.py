"""Shortest paths: both ways to find them, against a third."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from tensoropt.layout import shortest

pytestmark = pytest.mark.pure


def _random_graph(nodes: int, links: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pairs = np.unique(random.integers(nodes, size=(links, 2)), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]
    return pairs[:, 0], pairs[:, 1], random.uniform(0.1, 1.0, len(pairs)) ** 4


@pytest.mark.parametrize(("nodes", "links"), [(1, 0), (5, 4), (40, 120), (60, 900)])
def test_rounds_and_queue_agree_to_the_last_bit_and_with_dijkstra(
    nodes: int, links: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, weight = _random_graph(nodes, links, seed=links)
    starts = np.arange(0, nodes, 2)
    by_rounds = shortest.shortest_rows(nodes, source, target, weight, starts)
    monkeypatch.setattr(shortest, "_WORTH_COMPILING", 0)
    assert np.array_equal(by_rounds, shortest.shortest_rows(nodes, source, target, weight, starts))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_weighted_edges_from(zip(source.tolist(), target.tolist(), weight.tolist(), strict=True))
    for row, start in zip(by_rounds, starts.tolist(), strict=True):
        lengths = nx.single_source_dijkstra_path_length(graph, start)
        expected = [lengths.get(node, np.inf) for node in range(nodes)]
        assert row == pytest.approx(expected, rel=1e-12)
