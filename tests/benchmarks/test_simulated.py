"""The benchmark of simulated against measured steps: what it sums up."""

from __future__ import annotations

import pytest

from benchmarks.simulated import compared

pytestmark = pytest.mark.pure


def test_predictions_are_compared_with_what_was_measured() -> None:
    rows = [
        ("zero2", [1.1, 1.0], [0.9, 1.0], 1.25),
        ("zero3", [2.0, 2.0], [1.0, 2.0], 2.5),
        ("frontier 3", [2.4, 3.0], [0.6, 3.0], 2.4),
    ]
    strategies = [
        {
            "kind": kind,
            "time_s": time_s,
            "simulated_s": simulated_s,
            "steady_time_s": [time_s[0], steady_s],
            "steps_s": [time_s[1]] * 4,
        }
        for kind, time_s, simulated_s, steady_s in rows
    ]
    found = compared({"model": "some", "ranks": 2, "strategies": strategies})
    assert found["errors"] == pytest.approx(
        {"sum": 0.1, "simulated": 0.467, "blocking": 0.0, "steady": (0.2 + 0.2 + 0.25) / 3}, abs=1e-3
    )
    assert found["bias"]["sum"] == pytest.approx(-0.1 / 3)
    assert found["spearman"] == pytest.approx({"sum": 1.0, "simulated": -0.5, "blocking": 1.0, "steady": 0.5})
    assert found["steps_s"]["measured"] == [1.0, 2.0, 3.0] and found["steps_s"]["steady"] == [1.25, 2.5, 2.4]
    assert found["kinds"] == ["zero2", "zero3", "frontier 3"] and found["sample"] == "random"
    assert found["spearman_of_halves"] == pytest.approx(1.0)
