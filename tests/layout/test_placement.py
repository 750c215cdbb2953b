"""Tensors that only some devices have: their layouts, the steps from and to them, and the cheapest paths."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest

from tensoropt.cluster import Level, Topology
from tensoropt.cluster.presets import cpu, p100, v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import LayoutError
from tensoropt.layout import (
    AT,
    Coarsening,
    Layout,
    Mesh,
    Resharder,
    ReshardTable,
    Step,
    StepKind,
    at_state,
    canonical_path,
)
from tensoropt.plan.tensor_reuse import reverse_steps
from tests.layout.step_interpreter import problem_of, run, scattered

pytestmark = pytest.mark.pure

MESH = Mesh((2, 2))
PLACED = Coarsening(placed_blocks=2)


def _table(topology: Topology, shape: Sequence[int]) -> ReshardTable:
    cost = AnalyticCost(topology)
    return Resharder(cost.mesh, cost.step_seconds, PLACED).whole_table(shape, 4)


def _topology(*shape: int) -> Topology:
    """A cluster with one level of devices per mesh axis."""
    device = cpu(2).device
    return Topology(
        "made up",
        tuple(Level(f"l{i}", n, bandwidth_bytes_per_s=1e9, latency_s=1e-5) for i, n in enumerate(shape)),
        device,
    )


# ------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("text", ["{}{} at{0=1}", "{1}{} at{0=0,2=1}", "{}{3} partial{1} at{0=10}", " at{0=0}"])
def test_text_gives_the_layout_back(text: str) -> None:
    assert str(Layout.parse(text)) == text


@pytest.mark.parametrize("text", ["{} at{}", "{} at{0}", "{} at{0=1} partial{1}", "{}at{0=1}"])
def test_text_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match=r"expected one '\{axes\}' per dimension"):
        Layout.parse(text)


def test_a_layout_knows_who_has_the_tensor() -> None:
    layout = Layout(((1,), ()), at=((0, 1),))
    assert layout.used_axes == (0, 1)
    assert not layout.is_replicated and not Layout(((), ()), at=((0, 1),)).is_replicated
    assert layout.devices(Mesh((2, 3))) == (3, 4, 5)
    assert [layout.holds(Mesh((2, 3)), rank) for rank in range(6)] == [False] * 3 + [True] * 3
    assert layout.local_shape((6, 4), Mesh((2, 3))) == (2, 4)
    assert Layout(((),)).devices(MESH) == (0, 1, 2, 3)


def test_an_axis_that_splits_cannot_place() -> None:
    with pytest.raises(LayoutError, match="a mesh axis may be used once only"):
        Layout(((0,),), at=((0, 1),))


@pytest.mark.parametrize("at", [((1, 0), (0, 0)), ((0, -1),)])
def test_places_are_ascending_and_not_negative(at: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(LayoutError, match="axes of one place are given ascending, with coordinates from 0"):
        Layout(((),), at=at)


def test_a_coordinate_that_the_mesh_has_not_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"x: layout \{\} at\{1=2\} is at a coordinate that mesh axes \[1\] of Mesh"):
        Layout(((),), at=((1, 2),)).check((4,), MESH, "x")


# --------------------------------------------------------------------------------------------------------- steps

STEPS = [
    (Step(StepKind.BROADCAST, (0,), at=(1,)), "{1}{} at{0=1}", "{1}{}"),
    (Step(StepKind.BROADCAST, (1,), at=(0,)), "{}{} at{0=1,1=0}", "{}{} at{0=1}"),
    (Step(StepKind.SEND, (0, 1), at=(0, 1), to_at=(1, 0)), "{}{} at{0=0,1=1}", "{}{} at{0=1,1=0}"),
    (Step(StepKind.SCATTER, (0,), 1, at=(1,)), "{}{1} at{0=1}", "{}{1,0}"),
    (Step(StepKind.GATHER, (1, 0), 0, to_at=(0, 1)), "{2,1,0}{}", "{2}{} at{0=1,1=0}"),
    (Step(StepKind.REDUCE, (1,), to_at=(0,)), "{}{} partial{0,1}", "{}{} partial{0} at{1=0}"),
    (Step(StepKind.DROP, (0,), to_at=(1,)), "{1}{}", "{1}{} at{0=1}"),
    (Step(StepKind.FILL, (0,), at=(1,)), "{}{} partial{1} at{0=1}", "{}{} partial{0,1}"),
]


@pytest.mark.parametrize(("step", "before", "after"), STEPS, ids=lambda value: str(value))
def test_apply_gives_the_layout_afterwards(step: Step, before: str, after: str) -> None:
    assert str(step.apply(Layout.parse(before))) == after
    assert Step.from_json(json.loads(json.dumps(step.to_json()))) == step


def test_steps_say_from_where_to_where() -> None:
    assert [str(step) for step, _, _ in STEPS[:5]] == [
        "broadcast{0} from 1",
        "broadcast{1} from 0",
        "send{0,1} at 0,1 -> 1,0",
        "scatter{0} dim 1 from 1",
        "gather{1,0} dim 0 to 0,1",
    ]


@pytest.mark.parametrize(
    ("step", "layout"),
    [
        (Step(StepKind.BROADCAST, (0,), at=(1,)), "{}{} at{0=0}"),  # elsewhere
        (Step(StepKind.SEND, (0,), at=(1,), to_at=(0,)), "{}{}"),
        (Step(StepKind.GATHER, (0,), 0, to_at=(0,)), "{0,1}{}"),  # not the minor axis
        (Step(StepKind.REDUCE, (0,), to_at=(0,)), "{0}{}"),
        (Step(StepKind.DROP, (0,), to_at=(0,)), "{0}{}"),
        (Step(StepKind.SLICE, (0,), 0), "{}{} at{0=0}"),
        (Step(StepKind.TO_PARTIAL, (0,)), "{}{} at{0=0}"),
        (Step(StepKind.SCATTER, (0,), 2, at=(0,)), "{}{} at{0=0}"),
    ],
    ids=str,
)
def test_a_step_starts_only_where_it_can(step: Step, layout: str) -> None:
    with pytest.raises(LayoutError, match="cannot start from layout"):
        step.apply(Layout.parse(layout))


def test_a_step_has_what_its_kind_needs() -> None:
    with pytest.raises(LayoutError, match=r"Step send: needs axes, at, to_at .* got axes="):
        Step(StepKind.SEND, (0,), at=(1,))
    with pytest.raises(LayoutError, match=r"Step slice: needs axes, dim .* got .*at="):
        Step(StepKind.SLICE, (0,), 0, at=(1,))
    with pytest.raises(LayoutError, match=r"one coordinate for each of the axes \(0, 1\), got at=\(1,\)"):
        Step(StepKind.BROADCAST, (0, 1), at=(1,))


def test_a_permute_stays_among_the_devices_that_have_the_tensor() -> None:
    mesh = Mesh((2, 2, 2))
    step = Step(StepKind.PERMUTE, target=Layout.parse("{2}{1} at{0=1}"))
    assert step.permutation(Layout.parse("{1}{2} at{0=1}"), mesh) == (0, 1, 2, 3, 4, 6, 5, 7)
    with pytest.raises(LayoutError, match=r"is on other devices\. Send the tensor there first"):
        step.permutation(Layout.parse("{1}{2} at{0=0}"), mesh)


@pytest.mark.parametrize(
    ("step", "layout", "sent"),
    [
        (Step(StepKind.SEND, (0,), at=(0,), to_at=(1,)), "{1}{} at{0=0}", [128, 128, 0, 0]),
        (Step(StepKind.GATHER, (0, 1), 0, to_at=(1, 0)), "{0,1}{}", [64, 64, 0, 64]),
        (Step(StepKind.SCATTER, (0, 1), 0, at=(1, 0)), "{}{} at{0=1,1=0}", [0, 0, 192, 0]),
        (Step(StepKind.BROADCAST, (1,), at=(0,)), "{}{} at{0=1,1=0}", [0, 0, 128, 128]),
        (Step(StepKind.REDUCE, (1,), to_at=(0,)), "{}{} partial{1}", [128] * 4),
        (Step(StepKind.DROP, (1,), to_at=(0,)), "{}{}", [0] * 4),
        (Step(StepKind.FILL, (1,), at=(0,)), "{}{} at{1=0}", [0] * 4),
    ],
    ids=str,
)
def test_bytes_sent_are_those_of_the_devices_that_take_part(step: Step, layout: str, sent: list[int]) -> None:
    # 8x8 elements of 4 bytes: 256 bytes.
    assert [step.bytes_sent(Layout.parse(layout), (8, 8), 4, MESH, rank) for rank in range(4)] == sent
    assert step.all_bytes_sent(Layout.parse(layout), (8, 8), 4, MESH) == sum(sent)


def test_all_devices_send_what_each_of_them_sends() -> None:
    mesh, shape, several = Mesh((2, 2, 3)), (24, 12), 0
    cost = AnalyticCost(_topology(*mesh.shape))
    table = Resharder(mesh, cost.step_seconds, PLACED).whole_table(shape, 4)
    for link in range(0, len(table.solved.graph.source), 7):
        layout, step = table.layouts[table.solved.graph.source[link]], table._step(link)
        each = [step.bytes_sent(layout, shape, 4, mesh, rank) for rank in range(mesh.size)]
        assert step.all_bytes_sent(layout, shape, 4, mesh) == sum(each), (str(layout), str(step))
        if not (step.kind.leaves or step.kind.arrives):
            assert not any(sent for rank, sent in enumerate(each) if not layout.holds(mesh, rank))
        several += bool(layout.at) and sum(each) > 0
    assert several > 100


@pytest.mark.parametrize(
    ("step", "layout", "idle"),
    [
        (Step(StepKind.SEND, (0,), at=(0,), to_at=(1,)), "{}{1} at{0=0,2=1}", (0, 2)),
        (Step(StepKind.BROADCAST, (0,), at=(0,)), "{}{1} at{0=0,2=1}", (2,)),
        (Step(StepKind.ALL_GATHER, (1,), 1), "{}{1} at{0=0,2=1}", (0, 2)),
        (Step(StepKind.GATHER, (1,), 1, to_at=(0,)), "{}{1} at{2=1}", (2,)),
        (Step(StepKind.PERMUTE, target=Layout(((), (2,)), at=((0, 0),))), "{}{1} at{0=0}", (0,)),
        (Step(StepKind.ALL_GATHER, (1,), 1), "{}{1}", ()),
    ],
    ids=str,
)
def test_along_places_only_one_device_takes_part(step: Step, layout: str, idle: tuple[int, ...]) -> None:
    assert step.idle_axes(Layout.parse(layout)) == idle


# --------------------------------------------------------------------------------------------------------- paths


@pytest.mark.slow
@pytest.mark.parametrize(("extents", "shape"), [((2, 2), (4, 4)), ((2, 3), (6, 6)), ((2, 2), ())], ids=str)
def test_every_pair_of_layouts_is_joined_by_steps_that_give_every_device_its_values(
    extents: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    mesh, random = Mesh(extents), np.random.default_rng(0)
    table = _table(_topology(*extents), shape)
    states = 2 + len(shape)
    assert sum(bool(layout.at) for layout in table.layouts) >= (states + 2) * (states + extents[1]) - states**2
    whole = random.integers(-99, 100, shape).astype(float)
    seen = set()
    for source, target in itertools.product(table.layouts, repeat=2):
        steps = table.path(source, target)
        seen |= {step.kind for step in steps}
        pieces, reached = run(steps, scattered(whole, source, mesh, random), source, mesh)
        assert reached == target
        assert problem_of(pieces, whole, target, mesh) is None, f"{source} -> {target}: {list(map(str, steps))}"
        pieces, reached = run(canonical_path(source, target), scattered(whole, source, mesh, random), source, mesh)
        assert reached == target
        assert problem_of(pieces, whole, target, mesh) is None, f"canonical {source} -> {target}"
        if not source.partial and not target.partial:
            back = reverse_steps(source, steps)
            pieces, reached = run(back, scattered(whole, target, mesh, random), target, mesh)
            assert reached == source
            assert problem_of(pieces, whole, source, mesh) is None, f"back from {target} to {source}"
    wanted = {StepKind.BROADCAST, StepKind.SEND, StepKind.REDUCE, StepKind.DROP, StepKind.FILL}
    assert seen >= (wanted | {StepKind.GATHER, StepKind.SCATTER} if shape else wanted)


def test_random_pairs_of_a_large_mesh_are_joined_by_steps_that_give_every_device_its_values() -> None:
    topology, random = v100(2), np.random.default_rng(1)
    mesh = Mesh(topology.factor_mesh())
    table = _table(topology, (16, 32))
    whole = random.integers(-99, 100, (16, 32)).astype(float)
    placed = [layout for layout in table.layouts if layout.at]
    assert len(placed) > 100
    for one, other in random.integers(len(table.layouts), size=(150, 2)).tolist():
        source, target = placed[one % len(placed)], table.layouts[other]
        for start, end in ((source, target), (target, source)):
            pieces, reached = run(table.path(start, end), scattered(whole, start, mesh, random), start, mesh)
            assert reached == end
            assert problem_of(pieces, whole, end, mesh) is None, f"{start} -> {end}"


def _kinds(table: ReshardTable, source: str, target: str) -> list[str]:
    return [step.kind.value for step in table.path(Layout.parse(source), Layout.parse(target))]


def test_the_cheapest_steps_are_the_expected_ones() -> None:
    table = _table(_topology(2, 2), (1024, 1024))
    assert _kinds(table, "{}{} at{0=0}", "{}{} at{0=1}") == ["send"]
    assert _kinds(table, "{}{} at{0=0}", "{}{}") == ["broadcast"]
    assert _kinds(table, "{}{} at{0=0}", "{0}{}") == ["scatter"]
    assert _kinds(table, "{0}{}", "{}{} at{0=1}") == ["gather"]
    assert _kinds(table, "{}{}", "{}{} at{0=1}") == ["drop"]
    assert _kinds(table, "{}{} partial{0}", "{}{} at{0=1}") == ["reduce"]
    assert _kinds(table, "{}{} at{0=1}", "{}{} partial{0}") == ["fill"]
    assert _kinds(table, "{1}{} at{0=0}", "{}{1} at{0=0}") == ["all_to_all"]


def test_a_send_of_a_megabyte_costs_the_link_and_memory() -> None:
    topology = _topology(2, 2)
    table = _table(topology, (512, 512))
    ends = [Layout.parse(text) for text in ("{}{} at{0=0,1=0}", "{}{} at{0=0,1=1}")]
    device = topology.device
    # 1e-5 s and 2^20 bytes at 1e9 bytes/s; read and written once in memory.
    by_hand = 1e-5 + 2**20 / 1e9 + device.op_overhead_s + 2 * 2**20 / device.memory_bandwidth_bytes_per_s
    assert table.seconds[table.index[ends[0]], table.index[ends[1]]] == pytest.approx(by_hand, rel=1e-12)


def test_devices_that_have_nothing_to_send_leave_their_share_of_the_hosts_link() -> None:
    # 4 hosts of 4 devices, each host with one card for all of them.
    topology = p100(4)
    table, size = _table(topology, (512, 512)), 2**20
    host, device = topology.levels[0], topology.device
    assert host.shared and topology.factor_mesh() == (2, 2, 2, 2)
    for source, target, bytes_each, senders in [
        ("{}{} at{0=0,1=0,2=0,3=0}", "{}{} at{0=1,1=0,2=0,3=0}", size, 1),
        ("{}{} at{0=0,1=0,2=0,3=1}", "{}{} at{0=1,1=1,2=1,3=0}", size, 1),
        ("{2,3}{} at{0=0,1=0}", "{2,3}{} at{0=1,1=0}", size / 4, 4),
    ]:
        ends = Layout.parse(source), Layout.parse(target)
        (step,) = table.path(*ends)
        assert step.kind is StepKind.SEND
        by_hand = host.latency_s + senders * bytes_each / host.bandwidth_bytes_per_s
        by_hand += device.op_overhead_s + 2 * bytes_each / device.memory_bandwidth_bytes_per_s
        assert table.seconds[table.index[ends[0]], table.index[ends[1]]] == pytest.approx(by_hand, rel=1e-12)
    # Of copies on all devices of a host, each device sends a part only.
    assert _kinds(table, "{}{} at{0=0,1=0}", "{}{} at{0=1,1=0}") == ["slice", "send", "all_gather"]


def test_a_tensor_that_is_everywhere_has_the_table_that_it_has_without_placements() -> None:
    cost = AnalyticCost(v100(2))
    states = np.array([[-1, -1, -1, -1], [0, 0, 1, 1], [-2, -2, 0, 1]], np.int8)
    with_places, without = (
        Resharder(cost.mesh, cost.step_seconds, coarsening).table((16, 32), 4, states)
        for coarsening in (PLACED, Coarsening())
    )
    assert with_places.layouts == without.layouts
    assert np.array_equal(with_places.between(states, states), without.between(states, states))


def test_a_placed_layout_is_found_though_the_coarsening_places_nothing() -> None:
    cost = AnalyticCost(v100(2))
    strange = np.array([[0, at_state(1), 1, at_state(0)], [-1, -1, -1, -1], [AT, AT, 0, 0]], np.int8)
    table = Resharder(cost.mesh, cost.step_seconds, Coarsening()).table((16, 32), 4, strange)
    assert np.all(np.isfinite(table.between(strange, strange)))
    layout = Layout(((0,), (2,)), at=((1, 1), (3, 0)))
    path, whole = table.path(Layout(((), ())), layout), np.arange(512.0).reshape(16, 32)
    everywhere = scattered(whole, Layout(((), ())), cost.mesh, np.random.default_rng(0))
    pieces, reached = run(path, everywhere, Layout(((), ())), cost.mesh)
    assert reached == layout and problem_of(pieces, whole, layout, cost.mesh) is None


@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (3, 2, 2, 2)])
def test_pairs_of_places_that_differ_alike_share_their_paths(shape: tuple[int, ...]) -> None:
    cost = AnalyticCost(_topology(*shape))
    resharder = Resharder(cost.mesh, cost.step_seconds, PLACED)
    whole, solved = np.arange(768.0).reshape(24, 32), set()
    every = [((0, one), (1, other)) for one, other in itertools.product(range(shape[0]), range(2))]
    alone = Resharder(cost.mesh, cost.step_seconds, PLACED).whole_table((24, 32), 4)
    for here, there in itertools.permutations(every, 2):
        layouts = Layout(((2,), ()), at=here), Layout(((), (3,)), at=there)
        states = np.array(
            [
                [at_state(here[0][1]), at_state(here[1][1]), 0, -1],
                [at_state(there[0][1]), at_state(there[1][1]), -1, 1],
            ],
            np.int8,
        )
        table = resharder.table((24, 32), 4, states)
        expected_s = alone.seconds[alone.index[layouts[0]], alone.index[layouts[1]]]
        assert float(table.between(states[:1], states[1:])[0, 0]) == pytest.approx(expected_s)
        pieces = scattered(whole, layouts[0], cost.mesh, np.random.default_rng(0))
        pieces, reached = run(table.path(*layouts), pieces, layouts[0], cost.mesh)
        assert reached == layouts[1] and problem_of(pieces, whole, layouts[1], cost.mesh) is None
        assert layouts[0] in table.layouts and table.layouts[table.index[layouts[1]]] == layouts[1]
        solved.add(id(table.solved))
    assert len(solved) == 3  # along the first axis, along the second one, along both


# ---------------------------------------------------------------------------------------------------- coarsening


def test_on_a_small_mesh_any_axes_may_place() -> None:
    # Two states and the places of each axis, less the patterns without a place.
    assert len(PLACED.placed_patterns((2, 3), 1, 1)) == 4 * 5 - 4
    assert not len(Coarsening().placed_patterns((2, 3), 1, 1))


def test_on_a_large_mesh_the_placed_block_is_at_one_end_with_one_block_beside() -> None:
    patterns = PLACED.placed_patterns((2, 2, 2, 2), 2, 1)
    # 16 devices; 2, 4, 8 places of the first or the last axes, and 3 states of the others.
    assert len(patterns) == 16 + 2 * (2 + 4 + 8) * 3
    assert len(np.unique(patterns, axis=0)) == len(patterns)
    for row in patterns:
        placed = np.flatnonzero(row < 0)
        assert placed.tolist() in ([*range(len(placed))], [*range(4 - len(placed), 4)])
        assert len(set(row[row >= 0])) <= 1


def test_a_coarsening_that_places_nothing_is_told_as_before() -> None:
    assert "placed_blocks" not in Coarsening().to_json()
    assert PLACED.to_json()["placed_blocks"] == 2
    with pytest.raises(LayoutError, match="placed_blocks must be at least 0"):
        Coarsening(placed_blocks=-1)


def test_a_mesh_of_too_many_axes_is_refused() -> None:
    with pytest.raises(LayoutError, match="Mesh of 13 axes: at most 12 can be planned for"):
        PLACED.placed_patterns((2,) * 13, 1, 1)
