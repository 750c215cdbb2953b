"""What collectives cost: closed forms on invented clusters, and laws that hold on all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensoropt.cluster import (
    COLLECTIVE_KINDS,
    PRESETS,
    CollectiveModel,
    CollectiveProfile,
    Device,
    Level,
    ProfileEntry,
    Topology,
    preset,
)
from tensoropt.errors import ClusterError
from tensoropt.layout import StepKind

pytestmark = pytest.mark.pure

DEVICE = Device("chip", {"float32": 1e12}, 1e11, 2**30, 1e-6)
MB = 1e6


def model(*levels: Level, profile: CollectiveProfile | None = None) -> CollectiveModel:
    return CollectiveModel(Topology("invented", levels, DEVICE, profile))


def flat(size: int, *, latency_s: float = 0.0, shared: bool = False) -> CollectiveModel:
    return model(Level("device", size, latency_s, 1e9, shared))


# Bandwidth alone, 1 GB/s, 8 devices: what a rank sends of 8 MB, its whole input for all but the gather.
@pytest.mark.parametrize(
    ("kind", "expected_s"),
    [
        ("all_reduce", 2 * 7 / 8 * 8e-3),
        ("all_gather", 7 * 8e-3),
        ("reduce_scatter", 7 / 8 * 8e-3),
        ("all_to_all", 7 / 8 * 8e-3),
        ("broadcast", 2 * 7 / 8 * 8e-3),
        ("permute", 8e-3),
    ],
)
def test_large_message_on_one_level_takes_its_bytes_over_bandwidth(kind: str, expected_s: float) -> None:
    assert flat(8).seconds(kind, (0, 1, 2), 8 * MB) == pytest.approx(expected_s)


# Latency alone, 1 µs: rounds of the algorithm with the fewest.
@pytest.mark.parametrize(
    ("members", "kind", "rounds"),
    [
        (8, "all_reduce", 3),
        (5, "all_reduce", 6),
        (3, "all_reduce", 4),
        (8, "all_gather", 3),
        (5, "all_gather", 4),
        (5, "reduce_scatter", 4),
        (8, "all_to_all", 3),
        (5, "broadcast", 3),
        (8, "permute", 1),
    ],
)
def test_empty_message_takes_the_fewest_rounds(members: int, kind: str, rounds: int) -> None:
    topology = flat(members, latency_s=1e-6)
    axes = range(len(topology.topology.factor_mesh()))
    assert topology.seconds(kind, tuple(axes), 0) == pytest.approx(rounds * 1e-6)


def test_all_reduce_over_hosts_divides_the_card_among_the_devices_behind_it() -> None:
    # (2 hosts, 8 devices): 8 groups of two, all through one card of 1 GB/s per host.
    own = model(Level("host", 2, 0.0, 1e9), Level("device", 8, 0.0, 1e12))
    shared = model(Level("host", 2, 0.0, 1e9, shared=True), Level("device", 8, 0.0, 1e12))
    assert own.seconds("all_reduce", (0,), 1 * MB) == pytest.approx(1e-3)
    assert shared.seconds("all_reduce", (0,), 1 * MB) == pytest.approx(8e-3)


def test_group_that_spans_hosts_sends_little_across() -> None:
    # All 16: reduced inside each host first, so the card carries what one all_reduce of two hosts would.
    shared = model(Level("host", 2, 0.0, 1e9, shared=True), Level("device", 8, 0.0, 1e15))
    assert shared.seconds("all_reduce", (0, 1, 2, 3), 1 * MB) == pytest.approx(1e-3, rel=1e-3)
    # Half of a host in each group: two groups at once through the card.
    assert shared.seconds("all_reduce", (0, 2, 3), 1 * MB) == pytest.approx(2e-3, rel=1e-3)
    # A gather brings seven others' shards, and eight of the other host, through the card.
    assert shared.seconds("all_gather", (0, 1, 2, 3), 1 * MB) == pytest.approx(8e-3, rel=1e-3)
    # Half of each device's pieces go to the other host.
    assert shared.seconds("all_to_all", (0, 1, 2, 3), 1 * MB) == pytest.approx(4e-3, rel=1e-3)


def test_shared_innermost_level_is_one_bus() -> None:
    assert flat(4, shared=True).seconds("permute", (1,), 1 * MB) == pytest.approx(4e-3)
    assert flat(4).seconds("permute", (1,), 1 * MB) == pytest.approx(1e-3)


def test_permute_crosses_the_outermost_level_of_its_group() -> None:
    slow_outside = model(Level("host", 2, 0.0, 1e6), Level("device", 2, 0.0, 1e9))
    assert slow_outside.seconds("permute", (1,), 1 * MB) == pytest.approx(1e-3)
    assert slow_outside.seconds("permute", (0, 1), 1 * MB) == pytest.approx(1.0)


def test_three_levels_each_add_their_stage() -> None:
    # 2 racks x 2 hosts x 2 devices at 1, 10, 100 MB/s: 1/4 of 1 MB crosses racks, 1/2 hosts, all devices.
    model_ = model(Level("rack", 2, 0.0, 1e6), Level("host", 2, 0.0, 1e7), Level("device", 2, 0.0, 1e8))
    assert model_.seconds("all_reduce", (0, 1, 2), 1 * MB) == pytest.approx(0.25 + 0.05 + 0.01)


def groups(axes: range) -> list[tuple[int, ...]]:
    """All groups of one axis, of two, and of all of them."""
    return [group for count in (1, 2, len(axes)) for group in itertools.combinations(axes, count)]


ALL = [(name, kind) for name in PRESETS for kind in COLLECTIVE_KINDS]


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_time_is_positive_and_never_falls_with_bytes_for_any_group(name: str, kind: str) -> None:
    topology = preset(name)
    sizes = np.geomspace(1, 2**34, 60)
    axes = range(len(topology.factor_mesh()))
    for group in groups(axes):
        times = CollectiveModel(topology).seconds(kind, group, sizes)
        assert times.shape == sizes.shape and np.all(times > 0) and np.all(np.diff(times) >= 0)


@pytest.mark.parametrize("name", PRESETS)
def test_all_reduce_is_never_dearer_than_reduce_scatter_then_all_gather(name: str) -> None:
    topology = preset(name)
    costs = CollectiveModel(topology)
    sizes = 2.0 ** np.arange(6, 34)
    axes = range(len(topology.factor_mesh()))
    for group in groups(axes):
        members = np.prod([topology.factor_mesh()[axis] for axis in group])
        parts = costs.seconds("reduce_scatter", group, sizes) + costs.seconds("all_gather", group, sizes / members)
        assert np.all(costs.seconds("all_reduce", group, sizes) <= parts * (1 + 1e-9))


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_array_of_bytes_gives_the_times_of_its_elements(kind: str) -> None:
    costs = CollectiveModel(preset("k80"))
    sizes = np.array([[0, 1000], [10**6, 10**9]])
    times = costs.seconds(kind, (0, 4, 5), sizes)
    single = [[costs.seconds(kind, (0, 4, 5), int(size)) for size in row] for row in sizes]
    np.testing.assert_allclose(times, single)
    assert isinstance(single[0][0], float)


@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_group_of_one_device_takes_no_time_and_moves_nothing(kind: str) -> None:
    costs = CollectiveModel(preset("v100"))
    assert costs.seconds(kind, (), 1000) == 0.0
    np.testing.assert_array_equal(costs.seconds(kind, (), np.array([1, 2])), [0.0, 0.0])
    assert costs.bytes_moved(kind, (), 1000) == 0


@pytest.mark.parametrize(
    ("kind", "moved"),
    [
        ("all_gather", 5 * 1000),
        ("all_reduce", 1666),
        ("reduce_scatter", 833),
        ("all_to_all", 833),
        ("broadcast", 833),
        ("permute", 1000),
    ],
)
def test_bytes_moved_are_the_payload_that_each_rank_sends(kind: str, moved: int) -> None:
    costs = flat(6)
    assert costs.bytes_moved(kind, (0, 1), 1000) == moved
    np.testing.assert_array_equal(costs.bytes_moved(kind, (0, 1), np.array([0, 1000])), [0, moved])


def test_measured_time_wins_over_the_model_and_only_for_its_group() -> None:
    entry = ProfileEntry("all_reduce", (1, 2), (1024,), (0.5,))
    levels = (Level("host", 2, 1e-6, 1e9), Level("device", 4, 1e-6, 1e9))
    costs = model(*levels, profile=CollectiveProfile((entry,)))
    predicted = model(*levels)
    # Both axes of the inner level are alike.
    assert costs.seconds("all_reduce", (1,), 1024) == costs.seconds("all_reduce", (2,), 1024) == 0.5
    assert costs.is_measured("all_reduce", (2,)) and not costs.is_measured("all_reduce", (0,))
    for kind, axes in (("all_reduce", (0,)), ("all_reduce", (1, 2)), ("all_gather", (1,))):
        assert costs.seconds(kind, axes, 1024) == predicted.seconds(kind, axes, 1024)


@pytest.mark.parametrize(
    "step", [StepKind.ALL_REDUCE, StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL, StepKind.PERMUTE]
)
def test_kinds_of_reshard_steps_are_kinds_of_collectives(step: StepKind) -> None:
    costs = CollectiveModel(preset("v100"))
    assert costs.seconds(step, (0, 1), 1000) == costs.seconds(step.value, (0, 1), 1000) > 0
    assert costs.bytes_moved(step, (0, 1), 1000) == costs.bytes_moved(step.value, (0, 1), 1000) > 0


@pytest.mark.parametrize("kind", ["slice", "gossip", ""])
def test_unknown_kind_is_refused_instead_of_free(kind: str) -> None:
    costs = flat(4)
    for ask in (
        costs.is_measured,
        lambda k, a: costs.seconds(k, a, 1),
        lambda k, a: costs.bytes_moved(k, a, 1),
    ):
        with pytest.raises(ClusterError, match=f"Collective '{kind}': unknown"):
            ask(kind, (0,))


@pytest.mark.parametrize("size", [-1, float("nan")])
def test_negative_bytes_are_refused(size: float) -> None:
    with pytest.raises(ClusterError, match="bytes_in is negative"):
        flat(4).seconds("permute", (0,), size)


def test_axis_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ClusterError, match="mesh axis 2 does not exist"):
        flat(4).seconds("permute", (2,), 1)
