"""Clusters of a kind with fewer and more devices."""

from __future__ import annotations

import doctest

import pytest

from tensoropt.cluster import CollectiveProfile, Level, ProfileEntry, Topology, presets, scaling
from tensoropt.cluster.scaling import device_counts, scaled, usual_counts
from tensoropt.errors import ClusterError

pytestmark = pytest.mark.pure


def test_examples_of_the_docstrings_hold() -> None:
    outcome = doctest.testmod(scaling)
    assert (outcome.failed, outcome.attempted) == (0, 6)


@pytest.mark.parametrize(
    "topology", [presets.v100(3), presets.k80(3), presets.cpu(6), presets.cpu(1), presets.h100(1)], ids=str
)
def test_counts_are_exactly_those_that_the_topology_can_be_cut_to(topology: Topology) -> None:
    found = []
    for count in range(1, topology.device_count + 1):
        try:
            found.append(topology.with_device_count(count).device_count)
        except ClusterError:
            continue
    assert device_counts(topology) == tuple(found)
    assert set(usual_counts(topology)) <= set(found)
    assert usual_counts(topology)[-1] == topology.device_count


@pytest.mark.parametrize(("count", "sizes"), [(4, (1, 4)), (8, (1, 8)), (16, (2, 8)), (24, (3, 8)), (1024, (128, 8))])
def test_devices_within_a_host_then_whole_hosts(count: int, sizes: tuple[int, ...]) -> None:
    topology = scaled(presets.v100(), count)
    assert topology.level_sizes == sizes
    assert topology.device == presets.v100().device
    assert [level.bandwidth_bytes_per_s for level in topology.levels] == [12e9, 120e9]


def test_a_flat_cluster_grows_by_devices() -> None:
    assert scaled(presets.cpu(4), 6).level_sizes == (6,)


def test_more_devices_than_there_are_must_be_whole_units() -> None:
    with pytest.raises(ClusterError, match=r"8 devices per host, but 20 % 8 != 0\. Use 16 or 24"):
        scaled(presets.v100(), 20)


def test_what_was_measured_is_kept_for_more_hosts() -> None:
    profile = CollectiveProfile((ProfileEntry("all_reduce", (2, 1), (8,), (1.0,)),))
    levels = (Level("host", 2, 1e-6, 1e9), Level("device", 2, 1e-6, 1e9))
    topology = Topology("measured", levels, presets.v100().device, profile)
    assert scaled(topology, 8).profile == profile
    assert scaled(topology, 2).profile is None
