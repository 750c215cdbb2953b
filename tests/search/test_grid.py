"""The grid of costs: powers of two of which all are multiples."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.search.grid import coarsest_grid

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("costs", "grid"),
    [
        ([[3.0, 6.0], [9.0]], 1.0),
        ([[0.0, 6.0], [10.0, np.inf]], 2.0),
        ([[0.375, 96.0]], 0.125),
        ([[2.0**40, 2.0**21]], 2.0**21),
        ([[0.0]], 0.0),
        ([[np.inf]], 0.0),
        # 1 and 2^-63 are 64 bits apart.
        ([[1.0, 2.0**-63]], 0.0),
    ],
)
def test_the_coarsest_grid_is_the_largest_power_of_two_that_divides_all(costs: list[list[float]], grid: float) -> None:
    assert coarsest_grid([np.array(row) for row in costs]) == grid


def test_a_broadcast_zero_has_no_say() -> None:
    assert coarsest_grid([np.broadcast_to(np.float64(0.0), (3, 4)), np.array([12.0])]) == 4.0
