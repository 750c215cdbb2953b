"""Measured collectives and their interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensoropt.cluster import CollectiveProfile, ProfileEntry
from tensoropt.errors import ClusterError

pytestmark = pytest.mark.pure

ENTRY = ProfileEntry("all_reduce", (1, 4), (1024, 4096, 16384), (1e-5, 2e-5, 4e-5))


def test_interpolation_meets_every_measured_time() -> None:
    np.testing.assert_allclose(ENTRY.interpolate(np.array(ENTRY.sizes_bytes, dtype=float)), ENTRY.seconds)


def test_interpolation_between_sizes_is_of_the_bandwidth() -> None:
    # 1024 bytes at 102.4 MB/s, 4096 at 204.8; half-way between the sizes the bandwidth is 153.6 MB/s.
    (seconds,) = ENTRY.interpolate(np.array([2560.0]))
    assert seconds == pytest.approx(2560 / 153.6e6)


def test_small_messages_cost_what_the_smallest_measured_one_does() -> None:
    np.testing.assert_allclose(ENTRY.interpolate(np.array([0.0, 1.0, 1024.0])), 1e-5)


def test_large_messages_keep_the_largest_measured_bandwidth() -> None:
    np.testing.assert_allclose(ENTRY.interpolate(np.array([16384.0 * 10])), 4e-4)


def test_interpolated_time_never_falls_with_size_where_measured_times_do_not() -> None:
    # Bandwidth that drops, as Open MPI's all_reduce does where buffers leave the cache.
    entry = ProfileEntry("all_reduce", (2,), (2**20, 2**22, 2**24), (3e-4, 5e-4, 8e-3))
    times = entry.interpolate(np.geomspace(2**10, 2**28, 500))
    assert np.all(np.diff(times) >= -1e-15)


def test_find_needs_kind_and_group_to_match() -> None:
    profile = CollectiveProfile((ENTRY,))
    assert profile.find("all_reduce", (1, 4)) is ENTRY
    assert profile.find("all_gather", (1, 4)) is None
    assert profile.find("all_reduce", (4, 1)) is None


def test_json_round_trip_sorts_and_keeps_entries() -> None:
    other = ProfileEntry("all_gather", (1, 4), (1000,), (1 / 3,))
    profile = CollectiveProfile.of([ENTRY, other])
    assert profile.entries == (other, ENTRY)
    assert CollectiveProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gossip"}, "unknown kind 'gossip'. Use one of all_reduce, all_gather"),
        ({"group": (1, 1)}, "a group needs at least two members"),
        ({"group": ()}, "a group needs at least two members"),
        ({"group": (0, 4)}, "a group needs at least two members"),
        ({"sizes_bytes": (1024, 4096)}, "one time per size and at least one, got 2 sizes and 3 times"),
        ({"sizes_bytes": (), "seconds": ()}, "got 0 sizes and 0 times"),
        ({"sizes_bytes": (4096, 1024, 16384)}, "sizes must be positive and ascending"),
        ({"sizes_bytes": (0, 1024, 16384)}, "sizes must be positive and ascending"),
        ({"seconds": (1e-5, 0.0, 1e-5)}, "times must be positive and finite"),
        ({"seconds": (1e-5, float("nan"), 1e-5)}, "times must be positive and finite"),
    ],
)
def test_entry_that_breaks_an_invariant_is_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "kind": ENTRY.kind,
        "group": ENTRY.group,
        "sizes_bytes": ENTRY.sizes_bytes,
        "seconds": ENTRY.seconds,
    }
    with pytest.raises(ClusterError, match=message):
        ProfileEntry(**{**fields, **change})


def test_profile_with_an_entry_twice_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"all_reduce over groups \(1, 4\) occurs twice"):
        CollectiveProfile((ENTRY, ENTRY))


def test_unsorted_profile_is_refused() -> None:
    with pytest.raises(ClusterError, match="Sort entries"):
        CollectiveProfile((ENTRY, ProfileEntry("all_gather", (1, 4), (1000,), (1.0,))))


def test_profile_of_groups_with_different_levels_is_refused() -> None:
    with pytest.raises(ClusterError, match="differ in their number of levels"):
        CollectiveProfile((ENTRY, ProfileEntry("permute", (4,), (1000,), (1.0,))))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", 1, "field 'kind' must be a string, got 1"),
        ("group", 4, "field 'group' must be an array, got 4"),
        ("group", [1, 4.5], "field 'group' must be an integer, got 4.5"),
        ("seconds", ["fast"], "field 'seconds' must be a number, got 'fast'"),
        ("speed", 1, "unknown field 'speed'"),
    ],
)
def test_json_entry_that_breaks_the_schema_names_the_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        ProfileEntry.from_json({**ENTRY.to_json(), field: value})


def test_where_larger_messages_have_less_bandwidth_the_time_is_interpolated() -> None:
    # A link of 1e7 bytes a second that lets 1e4 bytes pass at once.
    entry = ProfileEntry("permute", (2,), (10_000, 1_010_000), (1e-4, 0.1001))
    assert entry.interpolate(np.array([110_000.0])).tolist() == pytest.approx([0.0101])
