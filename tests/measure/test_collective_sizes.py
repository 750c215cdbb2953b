"""The measuring of collectives, with an invented engine on an invented clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tensoropt.cluster import COLLECTIVE_KINDS, CollectiveModel, Device, Level, Topology, preset
from tensoropt.errors import ClusterError
from tensoropt.measure.collective_sizes import measure_profile, measured_groups
from tensoropt.measure.levels import fitted_levels

pytestmark = pytest.mark.pure

MEMORY_BYTES = 2**30


class OneRank:
    """The only rank; its clock stands still but for the collectives, which take what ``seconds`` says."""

    def __init__(self, seconds: Callable[[str, tuple[int, ...], int], float]) -> None:
        self.now_s = 0.0
        self.seconds = seconds
        self.calls: list[tuple[str, tuple[int, ...], int]] = []

    def measure(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        self.calls.append((kind, axes, size_bytes))
        took_s = self.seconds(kind, axes, size_bytes)
        self.now_s += calls * took_s
        return took_s

    def clock(self) -> float:
        return self.now_s

    def barrier(self) -> None:
        pass

    def agree(self, values: Sequence[float], error: Exception | None) -> list[float]:
        if error is not None:
            raise ClusterError(f"failed: {error}")
        return list(values)


def cluster(*sizes: int) -> Topology:
    device = Device("chip", {"float32": 1e12}, 1e11, MEMORY_BYTES, 1e-6)
    return Topology("invented", tuple(Level(f"l{i}", size, 0.0, 1.0) for i, size in enumerate(sizes)), device)


def profile_of(topology: Topology, rank: OneRank, budget_s: float = 3.0) -> CollectiveModel:
    profile = measure_profile(
        topology, rank.measure, rank, budget_s=budget_s, max_output_bytes=MEMORY_BYTES, clock=rank.clock
    )
    return CollectiveModel(Topology("measured", topology.levels, topology.device, profile))


def test_groups_that_are_alike_are_measured_once() -> None:
    assert measured_groups(cluster(2, 8)) == {
        (2, 1): (0,),
        (1, 2): (1,),
        (2, 2): (0, 1),
        (1, 4): (1, 2),
        (2, 4): (0, 1, 2),
        (1, 8): (1, 2, 3),
        (2, 8): (0, 1, 2, 3),
    }


def test_measured_profile_predicts_the_engine_for_every_kind_and_group() -> None:
    truth = CollectiveModel(preset("v100"))
    measured = profile_of(truth.topology, OneRank(truth.seconds))
    for kind in COLLECTIVE_KINDS:
        for group, axes in measured_groups(truth.topology).items():
            assert measured.is_measured(kind, axes), (kind, group)
            for size in (2**10, 2**14, 2**18):
                assert measured.seconds(kind, axes, size) == pytest.approx(truth.seconds(kind, axes, size))


def test_buffers_hold_whole_elements_for_every_member() -> None:
    rank = OneRank(lambda *_: 1e-3)
    profile_of(cluster(6), rank)
    for _, axes, size_bytes in rank.calls:
        assert size_bytes % (4 * {(0,): 2, (1,): 3, (0, 1): 6}[axes]) == 0


def test_few_disturbed_repetitions_do_not_decide() -> None:
    class Busy(OneRank):
        def measure(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
            super().measure(kind, axes, size_bytes, calls)
            return 1e-3 if self.calls.count((kind, axes, size_bytes)) % 3 == 0 else 1e-5

    measured = profile_of(cluster(2), Busy(lambda *_: 1e-6))
    assert measured.seconds("all_reduce", (0,), 2**12) == pytest.approx(1e-5)


def test_time_stays_near_the_budget_and_every_entry_has_a_size() -> None:
    truth = CollectiveModel(preset("v100-no-rdma"))
    rank = OneRank(lambda kind, axes, size: 100 * truth.seconds(kind, axes, size))
    measured = profile_of(truth.topology, rank, budget_s=1.0)
    assert rank.now_s < 1.5
    profile = measured.topology.profile
    assert profile is not None and len(profile.entries) == 7 * len(COLLECTIVE_KINDS)


def test_without_a_budget_only_the_smallest_size_is_measured() -> None:
    profile = profile_of(cluster(4), OneRank(lambda *_: 0.1), budget_s=0.0).topology.profile
    assert profile is not None and {len(entry.sizes_bytes) for entry in profile.entries} == {1}


def test_outputs_that_memory_has_no_room_for_are_left_out() -> None:
    rank = OneRank(lambda *_: 1e-6)
    topology = cluster(4)
    profile = measure_profile(topology, rank.measure, rank, budget_s=100, max_output_bytes=2**20, clock=rank.clock)
    largest = {(entry.kind, entry.group): entry.sizes_bytes[-1] for entry in profile.entries}
    assert largest["all_reduce", (4,)] == 2**20 and largest["all_gather", (4,)] == 2**18


def test_single_device_has_nothing_to_measure() -> None:
    rank = OneRank(lambda *_: 1.0)
    assert profile_of(cluster(1), rank).topology.profile is not None and not rank.calls


def test_disturbed_time_of_a_small_size_is_bounded_by_larger_ones() -> None:
    def disturbed(kind: str, axes: tuple[int, ...], size: int) -> float:
        return 1e-3 if size == 2**12 else 1e-5

    measured = profile_of(cluster(2), OneRank(disturbed))
    assert measured.seconds("permute", (0,), 2**12) == pytest.approx(1e-5)


def test_times_that_scatter_are_neither_the_least_nor_the_largest() -> None:
    def scattered(kind: str, axes: tuple[int, ...], size: int) -> float:
        # Up and down from size to size.
        return (3e-5, 1e-5, 2e-5)[(size.bit_length() - 1) % 3]

    measured = profile_of(cluster(2), OneRank(scattered))
    assert measured.seconds("permute", (0,), 2**20) == pytest.approx(2e-5)


def test_error_of_the_engine_is_handed_to_the_agreement() -> None:
    def broken(kind: str, axes: tuple[int, ...], size: int) -> float:
        if kind == "all_to_all":
            raise RuntimeError("no such collective")
        return 1e-5

    with pytest.raises(ClusterError, match="failed: no such collective"):
        profile_of(cluster(2), OneRank(broken))


def test_levels_fitted_to_measurements_give_back_latency_and_bandwidth() -> None:
    truth = CollectiveModel(preset("h100").with_device_count(8))
    measured = profile_of(truth.topology, OneRank(truth.seconds), budget_s=10.0)
    host, device = fitted_levels(measured.topology)
    assert host == truth.topology.levels[0]  # one host: nothing to fit
    assert device.bandwidth_bytes_per_s == pytest.approx(18 * 20.6e9, rel=0.1)
    assert device.latency_s == pytest.approx(truth.topology.levels[1].latency_s, rel=0.1)


class Link(OneRank):
    """Two hosts on a slow link that lets the first bytes pass at once; other work is part of every repetition."""

    BYTES_PER_S, BURST_BYTES, LATENCY_S, WORK_S = 12.5e6, 2**13, 1e-4, 0.02

    def __init__(self) -> None:
        super().__init__(self.takes)

    def takes(self, kind: str, axes: tuple[int, ...], size_bytes: int) -> float:
        sent = CollectiveModel(cluster(2)).bytes_moved(kind, axes, size_bytes)
        return self.LATENCY_S + max(0, sent - self.BURST_BYTES) / self.BYTES_PER_S

    def measure(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        took_s = super().measure(kind, axes, size_bytes, max(calls, 2))
        self.now_s += self.WORK_S
        return took_s


def test_a_slow_link_is_measured_beyond_its_latency_and_its_bursts() -> None:
    link = Link()
    measured = profile_of(cluster(2), link, budget_s=6.0)
    assert link.now_s < 7.0
    (level,) = fitted_levels(measured.topology)
    assert level.bandwidth_bytes_per_s == pytest.approx(link.BYTES_PER_S, rel=0.2)
    for kind in COLLECTIVE_KINDS:
        for size in (2**17, 2**20, 2**24):
            assert measured.seconds(kind, (0,), size) == pytest.approx(link.takes(kind, (0,), size), rel=0.2), kind


def test_a_slow_link_is_measured_beyond_its_latency_even_where_runs_take_long() -> None:
    link = Link()
    link.WORK_S = 0.06
    measured = profile_of(cluster(2), link, budget_s=6.0)
    (level,) = fitted_levels(measured.topology)
    assert level.bandwidth_bytes_per_s == pytest.approx(link.BYTES_PER_S, rel=0.3)
