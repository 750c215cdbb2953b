"""What is made of measurements of several ranks."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.api.costs import _medians
from tensoropt.api.curves import _mean, _pace
from tensoropt.cost import Curve

pytestmark = pytest.mark.tf


def test_the_slowest_rank_and_waiting_set_the_pace() -> None:
    # Two passes of which each rank is slow in another one; without the trace they take nine tenths of the time.
    passes = [np.array([[1.0, 2.0]] * 3), np.array([[2.0, 1.0]] * 3)]
    ranks = [(4.0, (3.6, 3.6, 9.0), passes[0]), (4.0, (3.5, 3.6, 3.6), passes[1])]
    assert _pace(ranks) == pytest.approx(0.9 * 4 / 3)


def test_a_disturbance_has_bounds_and_without_kernels_or_runs_there_is_no_pace() -> None:
    passes = np.array([[1.0, 1.0]])
    assert _pace([(2.0, (20.0,), passes)]) == 1.5
    assert _pace([(2.0, (0.1,), passes)]) == 0.8
    assert _pace([(0.0, (), np.zeros((0, 0)))]) == 1.0
    assert _pace([(0.0, (), passes)]) == 1.0  # by the processor's clock


def test_a_curve_is_the_median_of_its_rounds() -> None:
    rounds = [{"sum": Curve((1, 2), seconds)} for seconds in ((1.0, 4.0), (2.0, 3.0), (9.0, 9.0))]
    assert _medians(rounds) == {"sum": Curve((1, 2), (2.0, 4.0))}
    assert _medians([]) == {}


def test_probes_that_cannot_be_measured_do_not_count() -> None:
    assert _mean([(1.0, 0.0), None, (3.0, 0.0)]) == (2.0,)
    assert _mean([None]) is None
