"""What is made of measurements of several ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensoropt.measure import probe_seconds
from tensoropt.measure.machine import Machine, Rank
from tensoropt.measure.probe_batch import BatchTimes, Measured
from tensoropt.measure.probe_seconds import _bounded_pace, run_probes
from tensoropt.measure.probes import FunctionProbe, Probe

pytestmark = pytest.mark.tf


def _run_probes(
    monkeypatch: pytest.MonkeyPatch, cores: int, card: str = ""
) -> tuple[Any, list[tuple[float, float, Measured] | None]]:
    """The clock that two ranks on some cores measure two probes by, of which one fails, and what is made of it."""
    mine = np.array([[1.0, 4.0, 0.0, 0.0], [1.0, 4.0, 0.0, 0.0], [9.0, 4.0, 0.0, 0.0]])
    other = np.array([[2.0, 3.0, 0.0, 0.0]] * 3)
    clocks = []

    def measure(probes: Sequence[Probe], **given: Any) -> BatchTimes:
        clocks.append(given["clock"])
        return BatchTimes((Measured(1.0, 4.0), None), {1: "broken"}, mine)

    def allgather(value: Any) -> list[Any]:
        return [value, other if isinstance(value, np.ndarray) else [(2.0, 3.0), (0.0, 0.0)]]

    monkeypatch.setattr(probe_seconds, "measure_batch", measure)
    ranks = [Rank("host", "cpu", (rank % cores,), 2**30, (), card) for rank in range(2)]
    comm: Any = SimpleNamespace(rank=0, allgather=allgather)
    found = run_probes(Machine(comm, ranks), [FunctionProbe((), lambda: [])] * 2)
    return clocks[0], found


def test_kernels_take_as_much_longer_as_all_passes_take_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = _run_probes(monkeypatch, 2)
    assert clock is time.perf_counter
    assert found[0] is not None and found[1] is None
    # Kernels take 1.5 and 3.5; the slowest of each pass takes 2 and 4, but for a run that was disturbed.
    assert found[0][:2] == pytest.approx((1.5 * 6 / 5, 3.5 * 6 / 5))


def test_ranks_that_share_a_core_take_it_for_their_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = _run_probes(monkeypatch, 1)
    assert clock is time.process_time
    assert found == [(2.0 * (1.0 + 2.0) / 2, 2.0 * (4.0 + 3.0) / 2, Measured(1.0, 4.0)), None]


def test_passes_on_a_shared_card_take_those_of_the_slowest_rank_for_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, found = _run_probes(monkeypatch, 2, card="0000:01:00.0")
    assert clock is time.perf_counter
    assert found == [(2 * 2.0, 2 * 4.0, Measured(1.0, 4.0)), None]


def test_a_disturbance_has_bounds_and_without_kernels_there_is_no_pace() -> None:
    assert _bounded_pace(20.0, 2.0) == 1.5
    assert _bounded_pace(0.1, 2.0) == 0.8
    assert _bounded_pace(1.0, 0.0) == 1.0
