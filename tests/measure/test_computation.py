"""How fast one process computes and copies."""

from __future__ import annotations

import pytest

from tensoropt.measure.computation import measure_flops_per_s, measure_memory_bandwidth_bytes_per_s

pytestmark = pytest.mark.pure


def test_measured_speeds_are_of_a_computer() -> None:
    # Any machine that runs these tests is between a slow board and a large server.
    assert 1e7 < measure_flops_per_s("float32", 0.02) < 1e14
    assert 1e7 < measure_memory_bandwidth_bytes_per_s(0.02) < 1e13
