"""Orders and dependent sets against the paper's definitions, followed word for word by depth-first search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoropt.errors import ProblemError
from tensoropt.pase import VertexOrder, breadth_first, generate_seq

pytestmark = pytest.mark.pure

Neighbours = tuple[frozenset[int], ...]


def graph(n: int, edges: set[tuple[int, int]]) -> Neighbours:
    near: list[set[int]] = [set() for _ in range(n)]
    for u, v in edges:
        if u != v:
            near[u].add(v)
            near[v].add(u)
    return tuple(frozenset(others) for others in near)


@st.composite
def graphs(draw: st.DrawFn) -> Neighbours:
    """Graphs of up to nine vertices, connected or not."""
    n = draw(st.integers(1, 9))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    return graph(n, draw(st.sets(ends, max_size=2 * n)))


def reached(near: Neighbours, first: int, through: set[int]) -> set[int]:
    """All that ``first`` reaches through vertices of ``through`` only."""
    found, stack = {first}, [first]
    while stack:
        for w in near[stack.pop()] & through - found:
            found.add(w)
            stack.append(w)
    return found


def connected_set(near: Neighbours, order: tuple[int, ...], i: int) -> set[int]:
    return reached(near, order[i], set(order[: i + 1]))


def dependent_set(near: Neighbours, order: tuple[int, ...], i: int) -> set[int]:
    around = {w for v in connected_set(near, order, i) for w in near[v]}
    return around & set(order[i + 1 :])


def connected_subsets(near: Neighbours, order: tuple[int, ...], i: int) -> list[set[int]]:
    left = connected_set(near, order, i) - {order[i]}
    parts = []
    while left:
        part = reached(near, min(left), left)
        parts.append(part)
        left -= part
    return parts


def assert_definitions_hold(near: Neighbours, sequence: VertexOrder) -> None:
    order = sequence.vertices
    assert sorted(order) == list(range(len(near)))
    for i in range(len(order)):
        assert set(sequence.dependent_sets[i]) == dependent_set(near, order, i)
        # Each connected subset is the connected set of its last vertex: that one's table is added.
        subsets = connected_subsets(near, order, i)
        last = {max(part, key=order.index): part for part in subsets}
        assert set(sequence.connected_subsets[i]) == set(last)
        for v, part in last.items():
            assert connected_set(near, order, order.index(v)) == part


@settings(max_examples=150, deadline=None)
@given(near=graphs(), seed=st.integers(0, 2**32 - 1))
def test_dependent_sets_and_connected_subsets_are_the_papers(near: Neighbours, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, len(near)).tolist()
    # Theorem 2 is the first of these: GenerateSeq keeps dependent sets right.
    assert_definitions_hold(near, generate_seq(near, sizes))
    assert_definitions_hold(near, breadth_first(near))
    assert_definitions_hold(near, VertexOrder.of(near, rng.permutation(len(near)).tolist()))


@settings(max_examples=100, deadline=None)
@given(near=graphs(), seed=st.integers(0, 2**32 - 1))
def test_generate_seq_takes_a_smallest_dependent_set_each_time(near: Neighbours, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 6, len(near)).tolist()
    sequence = generate_seq(near, sizes)
    for i, v in enumerate(sequence.vertices):
        # What every vertex's set would be if it came next.
        after = sequence.vertices[i:]
        ways = {w: tuple([*sequence.vertices[:i], w, *(x for x in after if x != w)]) for w in after}
        found = {w: len(dependent_set(near, way, i)) for w, way in ways.items()}
        assert found[v] == min(found.values())


@settings(max_examples=100, deadline=None)
@given(near=graphs())
def test_breadth_first_dependent_sets_are_all_later_neighbours_of_all_that_came(near: Neighbours) -> None:
    # Section III-A, recurrence (2): what makes this order dear. It holds part by part.
    sequence = breadth_first(near)
    for i, v in enumerate(sequence.vertices):
        part = reached(near, v, set(range(len(near))))
        came = set(sequence.vertices[: i + 1]) & part
        assert connected_set(near, sequence.vertices, i) == came
        assert set(sequence.dependent_sets[i]) == {w for u in came for w in near[u]} - came


def test_generate_seq_leaves_the_hub_of_an_inception_module_to_the_end() -> None:
    # Figure 5: one vertex splits into four branches, which another joins, module after module.
    edges: set[tuple[int, int]] = set()
    modules, hub = 3, 0
    for _ in range(modules):
        branches = [hub + 1 + b for b in range(4)]
        edges |= {(hub, b) for b in branches} | {(b, hub + 5) for b in branches}
        hub += 5
    near = graph(hub + 1, edges)
    sizes = [10] * len(near)
    generated, breadth = generate_seq(near, sizes), breadth_first(near)
    assert max(map(len, generated.dependent_sets)) == 2
    assert max(map(len, breadth.dependent_sets)) == 4


def test_smaller_tables_go_first_among_equal_dependent_sets() -> None:
    path = graph(4, {(0, 1), (1, 2), (2, 3)})
    assert generate_seq(path, [5, 9, 2, 5]).vertices[0] == 3  # its neighbour has 2 configurations
    assert generate_seq(path, [5, 2, 9, 5]).vertices[0] == 0
    assert generate_seq(path, [5, 5, 5, 5]).vertices == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("near", "message"),
    [
        (({1}, set()), r"Graph of 2 vertices: .* but vertex 0 has the neighbour 1, which does not have it\. Give each"),
        (({1}, {0, 2}), r"vertex 1 has the neighbour 2, which does not"),
        (({0},), r"vertex 0 has the neighbour 0, which"),
        (({-1}, set()), r"vertex 0 has the neighbour -1, which"),
    ],
)
def test_neighbours_of_no_graph_are_refused(near: tuple[set[int], ...], message: str) -> None:
    neighbours = [frozenset(others) for others in near]
    sizes = [2] * len(neighbours)
    for order in (lambda: generate_seq(neighbours, sizes), lambda: breadth_first(neighbours)):
        with pytest.raises(ProblemError, match=message):
            order()


@pytest.mark.parametrize("vertices", [[0, 1], [0, 1, 1], [0, 1, 2, 3], [1, 2, 3], []])
def test_an_order_has_every_vertex_once(vertices: list[int]) -> None:
    with pytest.raises(
        ProblemError, match=r"must have each of the 3 vertices once, got \[.*\]\. Give a permutation of"
    ):
        VertexOrder.of(graph(3, {(0, 1)}), vertices)
    with pytest.raises(ProblemError, match="of each of 3 vertices, got 2"):
        generate_seq(graph(3, {(0, 1)}), [1, 1])


def test_parts_that_are_not_connected_are_ordered_one_by_one() -> None:
    near = graph(5, {(0, 1), (2, 3)})
    assert breadth_first(near).vertices == (0, 1, 2, 3, 4)
    assert max(map(len, generate_seq(near, [2] * 5).dependent_sets)) == 1
