"""What is made of operators that were measured in several rounds."""

from __future__ import annotations

import pytest

from tensoropt.cost import Curve
from tensoropt.measure.operators import _medians

pytestmark = pytest.mark.tf


def test_a_curve_is_the_median_of_its_rounds() -> None:
    rounds = [{"sum": Curve((1, 2), seconds)} for seconds in ((1.0, 4.0), (2.0, 3.0), (9.0, 9.0))]
    assert _medians(rounds) == {"sum": Curve((1, 2), (2.0, 4.0))}
    assert _medians([]) == {}
