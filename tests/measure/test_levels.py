"""The levels that ranks on hosts make."""

from __future__ import annotations

import logging

import pytest

from tensoropt.measure.levels import level_sizes

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("hosts", "levels"),
    [
        ("a", (("device", 1),)),
        ("aaaa", (("device", 4),)),
        ("aabb", (("host", 2), ("device", 2))),
        ("aaabbbccc", (("host", 3), ("device", 3))),
        ("ab", (("host", 2),)),
    ],
)
def test_equal_runs_of_ranks_on_hosts_are_levels(
    hosts: str, levels: tuple[tuple[str, int], ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert level_sizes(list(hosts)) == levels
    assert not caplog.records


@pytest.mark.parametrize(("hosts", "counts"), [("abab", "a: 2, b: 2"), ("aaab", "a: 3, b: 1"), ("aba", "a: 2, b: 1")])
def test_irregular_hosts_are_one_flat_level_with_a_warning(
    hosts: str, counts: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert level_sizes(list(hosts)) == (("rank", len(hosts)),)
    assert counts in caplog.text and "--map-by slot" in caplog.text
