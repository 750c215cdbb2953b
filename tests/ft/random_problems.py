"""Small random problems of many shapes, on which brute force can be asked."""

from __future__ import annotations

import numpy as np

from tensoropt.problem import Problem

SHAPES = ("chain", "tree", "series_parallel", "hub", "dense", "disconnected")


def random_edges(shape: str, n: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Edges of a graph of ``n`` nodes; some pairs repeat, some point backwards."""
    if shape == "chain":
        edges = [(i, i + 1) for i in range(n - 1)]
    elif shape == "tree":
        edges = [(int(rng.integers(0, i)), i) for i in range(1, n)]
    elif shape == "series_parallel":
        edges = [(0, n - 1)] if n > 1 else []
        for i in range(1, n - 1):  # a new node in the middle of an edge, which stays or goes
            at = int(rng.integers(0, len(edges)))
            u, v = edges[at] if rng.random() < 0.5 else edges.pop(at)
            edges += [(u, i), (i, v)]
    elif shape == "hub":  # an attention mask: the last node feeds all of a chain
        edges = [(i, i + 1) for i in range(n - 2)] + [(n - 1, i) for i in range(n - 1)]
    elif shape == "dense":
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.8]
    else:
        edges = [(i, i + 2) for i in range(n - 2) if rng.random() < 0.7]
    if edges and rng.random() < 0.4:
        edges.append(edges[int(rng.integers(0, len(edges)))])
    return [(v, u) if rng.random() < 0.1 else (u, v) for u, v in edges]


def random_problem(shape: str, seed: int, *, nodes: int = 6, whole: bool | None = None) -> Problem:
    """A problem that depends on its arguments only.

    Args:
        shape: one of `SHAPES`.
        seed: of everything else: configurations, groups, alternatives, impossible entries, number of ties.
        nodes: at most so many.
        whole: whether costs are whole numbers; at random if None.
    """
    rng = np.random.default_rng([SHAPES.index(shape), seed])
    # Brute force over alternatives of many edges is what these tests would otherwise wait for.
    n = int(rng.integers(2, (nodes if shape != "dense" else min(nodes, 5)) + 1))
    sizes = rng.integers(1, 5, n)
    groups = None
    if rng.random() < 0.3:
        groups = rng.integers(0, n, n)
        _, leaders, member = np.unique(groups, return_index=True, return_inverse=True)
        sizes = sizes[leaders][member]
    if whole is None:
        whole = rng.random() < 0.6
    highest = int(rng.choice([3, 12, 1000]))  # few different values make many ties
    impossible = float(rng.choice([0.0, 0.0, 0.1, 0.25]))
    alternatives = int(rng.choice([1, 1, 2]))

    def costs(*shape: int) -> np.ndarray:
        p = int(rng.integers(1, alternatives + 1))
        full = shape if p == 1 else (*shape, p)
        return rng.integers(0, highest, full).astype(float) if whole else rng.random(full) * highest

    def holes(array: np.ndarray) -> np.ndarray:
        return np.where(rng.random(array.shape) < impossible, np.inf, array)

    node_time = [costs(int(k)) for k in sizes]
    node_memory = [rng.permuted(t) if rng.random() < 0.3 else costs_like(t, rng, highest, whole) for t in node_time]
    edges = random_edges(shape, n, rng)
    edge_time = [costs(int(sizes[u]), int(sizes[v])) for u, v in edges]
    edge_memory = [costs_like(t, rng, highest, whole) if rng.random() < 0.3 else None for t in edge_time]
    return Problem(
        [f"{shape}_{i}" for i in range(n)],
        [holes(t) for t in node_time],
        node_memory,
        np.array(edges, dtype=np.int64).reshape(-1, 2),
        [holes(t) for t in edge_time],
        edge_memory,
        groups,
    )


def costs_like(array: np.ndarray, rng: np.random.Generator, highest: int, whole: bool) -> np.ndarray:
    """Other costs of the same shape and kind."""
    return rng.integers(0, highest, array.shape).astype(float) if whole else rng.random(array.shape) * highest


def layered_problem(layers: int, configurations: int, seed: int) -> Problem:
    """Equal residual layers, each with a leaf for its variable: too many strategies for brute force."""
    rng = np.random.default_rng(seed)
    k = configurations
    kinds = {kind: (rng.random(k), rng.integers(1, 1000, k).astype(float)) for kind in ("in", "mid", "add", "w")}
    tables = {name: rng.random((k, k)) for name in ("in-mid", "mid-add", "in-add", "add-in", "w-mid")}
    names, time, memory, edges, edge_time = [], [], [], [], []

    def node(layer: int, kind: str) -> int:
        names.append(f"{kind}{layer}")
        time.append(kinds[kind][0])
        memory.append(kinds[kind][1])
        return len(names) - 1

    def edge(u: int, v: int, table: str) -> None:
        edges.append((u, v))
        edge_time.append(tables[table])

    before = -1
    for layer in range(layers):
        start, weight = node(layer, "in"), node(layer, "w")
        mid, add = node(layer, "mid"), node(layer, "add")
        if before >= 0:
            edge(before, start, "add-in")
        edge(weight, mid, "w-mid")
        edge(start, mid, "in-mid")
        edge(mid, add, "mid-add")
        edge(start, add, "in-add")
        before = add
    return Problem(names, time, memory, edges, edge_time)
