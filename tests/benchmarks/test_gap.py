"""The benchmark of how far frontiers are from all that there is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gap import above, apart, beside, main
from tensoropt.problem import Frontier, Problem
from tensoropt.problem.frontier import frontier_of
from tensoropt.problem.lower_bounds import LowerBounds

pytestmark = pytest.mark.tf


def _frontier(*points: tuple[float, float]) -> Frontier:
    """A frontier of pairs of memory and time."""
    memories, times = zip(*points, strict=True)
    rows = np.arange(len(points))[:, None]
    return frontier_of(Problem(["a"], [times], [memories]), rows, None, exact=False, eliminations=(), seconds=0.0)


def test_a_gap_is_of_time_at_equal_memory_and_of_memory_at_equal_time() -> None:
    found, other = _frontier((10, 4.0), (20, 2.0)), _frontier((10, 4.0), (15, 2.5), (16, 2.0), (20, 1.9))
    # At 16 bytes ours takes 4 s and the other one 2; for 2.5 s ours needs 20 bytes and the other one 15.
    assert beside(found, other) == pytest.approx((4.0 / 2.0 - 1, 20 / 15 - 1))
    assert beside(other, found) == (0.0, 0.0)
    # Memories below our smallest have no time of ours, times below our fastest no memory.
    assert beside(_frontier((16, 2.0)), _frontier((10, 4.0), (16, 2.0), (20, 1.0))) == pytest.approx((1.0, 0.6))


def test_a_frontier_is_apart_by_what_both_costs_exceed() -> None:
    found, other = _frontier((10, 4.0), (20, 2.0)), _frontier((10, 4.0), (19, 2.001), (20, 1.9))
    # For 2.001 s ours needs a twentieth more memory, and for 20 bytes a nineteenth more time.
    assert apart(found, other) == pytest.approx(2.0 / 1.9 - 1)
    assert apart(found, _frontier((10, 4.0), (19, 2.001))) == pytest.approx(20 / 19 - 1)
    # A strategy that is a hair slower is nearer than one that is much larger.
    assert apart(_frontier((10, 2.001), (20, 2.0)), _frontier((11, 2.0005))) == pytest.approx(2.001 / 2.0005 - 1)
    assert apart(other, found) == 0.0


def test_what_bounds_leave_open_is_from_each_strategy_to_the_next() -> None:
    found = _frontier((10, 4.0), (20, 2.0))
    # Time is at least 1, memory at least 5, and 5 times the time and the memory at least 30.
    bounds = LowerBounds(np.array([1.0, 0.0, 5.0]), np.array([0.0, 1.0, 1.0]), np.array([1.0, 5.0, 30.0]))
    # Up to just below 20 bytes ours takes 4 s, where 2 may do; from 20 on 2 s, where 1 may do.
    # In 4 s and more ours needs 10 bytes, where 5 may do; in 2 to 4 s 20 bytes, where 10 may do in 4.
    assert above(found, bounds) == pytest.approx((1.0, 1.0))


def test_the_frontier_of_a_small_model_has_no_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gap.json"
    main(["--model", "lenet", "large_softmax", "--devices", "4", "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [*rows] == ["lenet, 4 devices", "large_softmax, 4 devices"]
    for row in rows.values():
        assert row["exact"] and row["whole"]["exact"]
        assert row["found"] == row["proven"] == {"time": 0.0, "memory": 0.0}
        assert row["above_bounds"]["time"] >= 0.0 and row["above_bounds"]["memory"] >= 0.0
    assert "lenet, 4 devices: found 0.00% of time, 0.00% of memory; proven" in capsys.readouterr().out
