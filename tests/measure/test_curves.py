"""What is made of probes whose work is alike at every size."""

from __future__ import annotations

import pytest

from tensoropt.measure.curves import _mean

pytestmark = pytest.mark.tf


def test_probes_that_cannot_be_measured_do_not_count() -> None:
    assert _mean([(1.0, 0.0), None, (3.0, 0.0)]) == (2.0,)
    assert _mean([None]) is None
