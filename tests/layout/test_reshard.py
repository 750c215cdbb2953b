"""Shortest reshards: paths lead where they should and are as cheap as can be."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout import (
    PARTIAL,
    REPLICATED,
    Coarsening,
    Layout,
    Mesh,
    Resharder,
    ReshardTable,
    Step,
    StepKind,
    canonical_path,
    reshard_table,
)
from tensoropt.plan.tensor_reuse import reverse_steps

pytestmark = pytest.mark.pure


def _by_bytes(latency_s: float, s_per_byte: float = 1e-9) -> object:
    """Every step costs its kind's share of the bytes over its group, plus a latency."""

    def cost(kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64]) -> NDArray[np.float64]:
        members = 2.0 ** len(axes)
        factor = {
            StepKind.ALL_GATHER: members - 1,
            StepKind.ALL_REDUCE: 2 * (members - 1) / members,
            StepKind.REDUCE_SCATTER: (members - 1) / members,
            StepKind.ALL_TO_ALL: (members - 1) / members,
            StepKind.PERMUTE: 1.0,
        }.get(kind, 0.0)
        return 1e-12 * bytes_in + 1e-9 + (latency_s + factor * s_per_byte * bytes_in if factor else 0.0)

    return cost


def _table(mesh: Mesh, shape: Sequence[int], latency_s: float = 1e-5, s_per_byte: float = 1e-9) -> ReshardTable:
    return reshard_table(mesh, shape, 4, _by_bytes(latency_s, s_per_byte))  # type: ignore[arg-type]


def _cost_of(table: ReshardTable, source: Layout, steps: Sequence[Step], mesh: Mesh, shape: Sequence[int]) -> float:
    cost = _by_bytes(1e-5)
    total, layout = 0.0, source
    for step in steps:
        size = np.array([step.bytes_in(layout, shape, 4, mesh)], dtype=np.float64)
        total += float(cost(step.kind, step.axes or mesh.axes, size)[0])  # type: ignore[operator]
        layout = step.apply(layout)
    return total


SPACES = [
    (Mesh(()), (4, 4)),
    (Mesh((2,)), (4, 6)),
    (Mesh((2, 2)), (4, 4, 4)),
    (Mesh((2, 3)), (6, 6)),
    (Mesh((2, 2, 2)), (8, 8)),
    (Mesh((2, 2, 2)), (4, 2, 8)),
    (Mesh((2, 2)), ()),
    (Mesh((2, 2)), (3, 2)),
    (Mesh((2, 2, 2, 2)), (16, 16)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "shape"), SPACES, ids=str)
def test_every_layout_reaches_every_other_at_the_cost_of_its_path(mesh: Mesh, shape: tuple[int, ...]) -> None:
    table = _table(mesh, shape)
    assert np.all(np.isfinite(table.seconds))
    step = max(1, len(table.layouts) // 60)
    for source in table.layouts[::step]:
        for target in table.layouts[::step]:
            path = table.path(source, target)
            reached = source
            for one in path:
                reached = one.apply(reached)
                reached.check(shape, mesh)
            assert reached == target
            seconds = table.seconds[table.index[source], table.index[target]]
            assert _cost_of(table, source, path, mesh, shape) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("mesh", "shape"), [(Mesh((2, 2)), (4, 4)), (Mesh((2, 3)), (6, 6, 6))], ids=str)
def test_no_path_is_dearer_than_the_canonical_one(mesh: Mesh, shape: tuple[int, ...]) -> None:
    table = _table(mesh, shape)
    for source in table.layouts:
        for target in table.layouts:
            seconds = table.seconds[table.index[source], table.index[target]]
            assert seconds <= _cost_of(table, source, canonical_path(source, target), mesh, shape) + 1e-15


@pytest.mark.parametrize(("mesh", "shape"), [(Mesh((2, 2)), (4, 4)), (Mesh((2, 2, 2)), (8, 4))], ids=str)
def test_times_equal_a_search_of_another_kind(mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Dijkstra over steps as they come, against the table's Bellman-Ford over arrays."""
    table = _table(mesh, shape)
    cost = _by_bytes(1e-5)
    for source in table.layouts[:: max(1, len(table.layouts) // 12)]:
        best = {source: 0.0}
        heap = [(0.0, 0, source)]
        pushed = 0
        while heap:
            seconds, _, layout = heapq.heappop(heap)
            if seconds > best[layout]:
                continue
            steps = _steps_from(layout, mesh)
            if not layout.partial and any(layout.dims):
                counts = layout.shard_counts(mesh)
                steps += [
                    Step(StepKind.PERMUTE, target=other)
                    for other in table.layouts
                    if other != layout and not other.partial and other.shard_counts(mesh) == counts
                ]
            for step in steps:
                after = step.apply(layout)
                if after not in table.index:
                    continue
                size = np.array([step.bytes_in(layout, shape, 4, mesh)], dtype=np.float64)
                new = seconds + float(cost(step.kind, step.axes or mesh.axes, size)[0])  # type: ignore[operator]
                if new < best.get(after, np.inf):
                    best[after] = new
                    pushed += 1
                    heapq.heappush(heap, (new, pushed, after))
        for target in table.layouts:
            assert table.seconds[table.index[source], table.index[target]] == pytest.approx(best[target], rel=1e-9)


def _subsets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    return [subset for size in range(1, len(axes) + 1) for subset in itertools.combinations(axes, size)]


def _steps_from(layout: Layout, mesh: Mesh) -> list[Step]:
    """Every step but permutes that can start from a layout, from what each kind does."""
    steps: list[Step] = []
    dims = range(layout.rank)
    free = tuple(axis for axis in mesh.axes if axis not in layout.used_axes)
    for axes in _subsets(layout.partial):
        steps.append(Step(StepKind.ALL_REDUCE, axes))
        steps += [Step(StepKind.REDUCE_SCATTER, order, dim) for dim in dims for order in itertools.permutations(axes)]
    for dim in dims:
        have = layout.dims[dim]
        for start in range(len(have)):
            axes = have[start:]
            steps.append(Step(StepKind.ALL_GATHER, axes, dim))
            steps += [Step(StepKind.ALL_TO_ALL, axes, dim, to) for to in dims if to != dim]
        steps += [Step(StepKind.SLICE, order, dim) for axes in _subsets(free) for order in itertools.permutations(axes)]
    steps += [Step(StepKind.TO_PARTIAL, axes) for axes in _subsets(free)]
    return steps


def _kinds(table: ReshardTable, source: str, target: str) -> list[str]:
    return [step.kind.value for step in table.path(Layout.parse(source), Layout.parse(target))]


def test_a_partial_sum_that_is_wanted_whole_is_all_reduced() -> None:
    assert _kinds(_table(Mesh((2,)), (8, 8)), "{}{} partial{0}", "{}{}") == ["all_reduce"]


def test_a_partial_sum_that_is_wanted_split_is_reduce_scattered() -> None:
    table = _table(Mesh((2,)), (8, 8))
    assert [str(step) for step in table.path(Layout(((), ()), (0,)), Layout(((), (0,))))] == ["reduce_scatter{0} dim 1"]


def test_a_partial_sum_is_all_reduced_and_sliced_where_reduce_scatter_is_dear() -> None:
    def cost(kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.full(bytes_in.shape, {StepKind.REDUCE_SCATTER: 10.0, StepKind.SLICE: 0.1}.get(kind, 1.0))

    table = reshard_table(Mesh((2,)), (8, 8), 4, cost)
    assert _kinds(table, "{}{} partial{0}", "{0}{}") == ["all_reduce", "slice"]


def test_layouts_that_differ_only_in_the_mesh_axis_are_permuted() -> None:
    # [4] against [2, 2] in the paper's terms: the same pieces, on other devices.
    table = _table(Mesh((2, 2)), (64, 64), latency_s=1e-9)
    assert _kinds(table, "{0}{1}", "{1}{0}") == ["permute"]
    assert _kinds(table, "{0,1}{}", "{1,0}{}") == ["permute"]
    assert _kinds(table, "{0}{}", "{1}{}") in (["permute"], ["slice", "all_gather"])


def test_a_split_that_moves_to_another_dimension_is_exchanged() -> None:
    assert _kinds(_table(Mesh((2, 2)), (64, 64)), "{0,1}{}", "{0}{1}") == ["all_to_all"]


def test_sizes_that_do_not_divide_leave_layouts_out() -> None:
    table = _table(Mesh((2, 2)), (6, 4))
    assert Layout(((0, 1), ())) not in table.index
    assert Layout(((0,), (1,))) in table.index
    assert Layout(((), (1, 0))) in table.index


def test_a_scalar_is_replicated_or_partial() -> None:
    table = _table(Mesh((2, 2)), ())
    assert [str(layout) for layout in table.layouts] == ["", " partial{1}", " partial{0}", " partial{0,1}"]


def test_paths_do_not_depend_on_how_often_they_are_asked_for() -> None:
    one, other = (_table(Mesh((2, 3)), (6, 6)) for _ in range(2))
    for source in one.layouts:
        for target in one.layouts:
            assert one.path(source, target) == other.path(source, target)


def test_a_step_that_costs_nothing_is_refused() -> None:
    with pytest.raises(LayoutError, match="every step needs a positive, finite time"):
        reshard_table(Mesh((2,)), (4,), 4, lambda kind, axes, bytes_in: 0 * bytes_in)


def test_a_layout_that_the_shape_cannot_have_is_named() -> None:
    table = _table(Mesh((2,)), (3, 4))
    with pytest.raises(LayoutError, match=r"Reshard from \{0\}\{\} to \{\}\{\}: .* cannot be a layout"):
        table.path(Layout(((0,), ())), Layout.replicated(2))


LARGE = [(Mesh((2, 2, 2, 2)), (16, 16)), (Mesh((2, 2, 2, 2)), (4, 32, 16)), (Mesh((2, 3, 2, 2, 2)), (48, 96))]


def _states(layout: Layout, mesh: Mesh) -> np.ndarray:
    result = np.full((1, len(mesh.axes)), REPLICATED, dtype=np.int8)
    for dim, axes in enumerate(layout.dims):
        result[0, list(axes)] = dim
    result[0, list(layout.partial)] = PARTIAL
    return result


def _coarse_table(mesh: Mesh, shape: tuple[int, ...], states: np.ndarray | None = None) -> ReshardTable:
    resharder = Resharder(mesh, _by_bytes(1e-5), Coarsening(borders=(1,)))  # type: ignore[arg-type]
    return resharder.whole_table(shape, 4) if states is None else resharder.table(shape, 4, states)


@pytest.mark.parametrize(("mesh", "shape"), LARGE, ids=str)
def test_a_large_mesh_is_resharded_within_its_family_at_the_cost_of_the_path(
    mesh: Mesh, shape: tuple[int, ...]
) -> None:
    table = _coarse_table(mesh, shape)
    assert np.all(np.isfinite(table.seconds))
    random = np.random.default_rng(0)
    for one, other in random.integers(len(table.layouts), size=(300, 2)).tolist():
        source, target = table.layouts[one], table.layouts[other]
        path = table.path(source, target)
        reached = source
        for step in path:
            reached = step.apply(reached)
            reached.check(shape, mesh)
        assert reached == target
        assert _cost_of(table, source, path, mesh, shape) == pytest.approx(table.seconds[one, other], rel=1e-12)
        local = sum(step.kind.is_local for step in path)
        talk = table.communication(_states(source, mesh), _states(target, mesh))[0]
        assert (talk == 0) == (local == len(path))
        assert talk <= table.seconds[one, other]


def test_hardly_a_path_between_operators_is_dearer_than_through_all_layouts() -> None:
    mesh, shape = Mesh((2,) * 5), (32, 32)
    few, every = _coarse_table(mesh, shape), _table(mesh, shape)
    assert len(few.layouts) < len(every.layouts)
    patterns = Coarsening(borders=(1,)).patterns(5, 2, 2)
    states = np.where(patterns == 2, PARTIAL, np.where(patterns == 3, REPLICATED, patterns)).astype(np.int8)
    found, least = few.between(states, states), every.between(states, states)
    dearer = found / np.where(least > 0, least, 1.0)
    assert np.all(found >= least * (1 - 1e-12))
    assert np.quantile(dearer, 0.99) <= 1 + 1e-12
    assert dearer.max() <= 1.1


def test_the_way_back_costs_what_its_steps_do() -> None:
    mesh, shape = Mesh((2, 2, 2, 2)), (16, 32)
    table = _coarse_table(mesh, shape)
    kept = [layout for layout in table.layouts if not layout.partial]
    states = np.concatenate([_states(layout, mesh) for layout in kept])
    back = table.back(states, states)
    talk = table.communication(states, states[::-1], back=True)
    for one in range(0, len(kept), 7):
        for other in range(0, len(kept), 5):
            path = table.path(kept[one], kept[other])
            steps = reverse_steps(kept[one], path)
            expected = _cost_of(table, kept[other], steps, mesh, shape)
            assert back[one, other] == pytest.approx(expected, rel=1e-12)
        assert 0 <= talk[one] <= back[one, len(kept) - 1 - one]


def test_a_sum_cannot_be_undone() -> None:
    mesh = Mesh((2, 2, 2, 2))
    summed, whole = Layout(((), ()), (0,)), Layout(((), ()))
    assert _coarse_table(mesh, (16, 16)).back(_states(summed, mesh), _states(whole, mesh))[0, 0] == np.inf


def test_layouts_outside_of_the_family_are_reached_if_they_are_asked_for() -> None:
    mesh, shape = Mesh((2, 2, 2, 2, 2)), (32, 32, 3)
    strange = Layout(((0, 2), (1, 4), ()), (3,))
    states = np.concatenate([_states(strange, mesh), _states(Layout(((), (0, 1), ())), mesh)])
    table = _coarse_table(mesh, shape, states)
    assert np.all(np.isfinite(table.between(states, states)))
    path = table.path(Layout(((), (0, 1), ())), strange)
    reached = Layout(((), (0, 1), ()))
    for step in path:
        reached = step.apply(reached)
    assert reached == strange
    with pytest.raises(LayoutError, match="cannot be a layout of this tensor"):
        table.numbers(_states(Layout(((), (), (0,))), mesh))


def test_a_tensor_and_its_transpose_share_their_paths() -> None:
    resharder = Resharder(Mesh((2, 2, 2, 2)), _by_bytes(1e-5), Coarsening())  # type: ignore[arg-type]
    one, other = resharder.whole_table((8, 5, 16), 4), resharder.whole_table((16, 8), 20)
    assert one.solved is other.solved
    before, after = Layout(((0, 1), (), (2,))), Layout(((), (), (0, 1, 2)))
    turned = other.path(Layout(((2,), (0, 1))), Layout(((0, 1, 2), ())))
    for step, twin in zip(one.path(before, after), turned, strict=True):
        assert (step.kind, step.axes) == (twin.kind, twin.axes)


def test_times_between_layouts_that_operators_cannot_have_are_not_kept() -> None:
    mesh = Mesh((2, 2, 2, 2))
    table = _coarse_table(mesh, (16, 16))
    passed_through = Layout(((0,), (1,)))
    assert passed_through in table.layouts
    assert table.path(passed_through, Layout(((), ())))
    with pytest.raises(LayoutError, match=r"between layouts that operators may have, and others were asked for"):
        table.between(_states(passed_through, mesh), _states(Layout(((), ())), mesh))


def test_steps_of_parts_of_a_sum_are_of_their_own_size() -> None:
    mesh, states = Mesh((2,)), np.array([[0], [PARTIAL], [REPLICATED]], dtype=np.int8)

    def seconds(itemsize: int, sum_itemsize: int | None, latency_s: float = 1e-3) -> list[list[float]]:
        coarsening = Coarsening(free_up_to_axes=1)
        resharder = Resharder(mesh, _by_bytes(latency_s), coarsening)  # type: ignore[arg-type]
        return resharder.table((8, 4), itemsize, states, sum_itemsize).between(states, states).tolist()

    single, half, mixed = seconds(4, None), seconds(2, 2), seconds(2, 4)
    # A gather of 16-bit pieces costs as between 16-bit tensors, a reduction of float32 parts as between float32 ones.
    assert mixed[0][2] == half[0][2] < single[0][2]
    assert mixed[1][:1] + mixed[1][2:] == single[1][:1] + single[1][2:]
    # Where starting a step costs nothing, the sum is scattered in float32 and gathered in 16 bits.
    assert seconds(2, 2, 0.0)[1][2] < seconds(2, 4, 0.0)[1][2] < seconds(4, 4, 0.0)[1][2]
