"""The measure of what is rounding and what is a difference."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.api.session.difference import TOLERANCES, Expected, difference, expected_gradients, tolerance_of

pytestmark = pytest.mark.pure

FLOAT32 = TOLERANCES["float32"]


def is_wrong(mine: object, expected: object) -> bool:
    return not difference(mine, expected, FLOAT32) <= FLOAT32.relative


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e9])
def test_a_hundredth_is_found_at_any_scale_and_rounding_is_none(scale: float) -> None:
    right = scale * np.linspace(-1.0, 0.5, 1000).astype(np.float32)
    assert not is_wrong(np.nextafter(right, np.float32(1)), right)
    assert is_wrong(right * np.float32(1.01), right)
    one = right.copy()
    one[3] *= np.float32(1.01)
    assert is_wrong(one, right)


def test_a_small_number_in_a_tensor_of_large_ones_may_round() -> None:
    right = np.array([1.0, 1e-8], np.float32)
    assert not is_wrong(np.array([1.0, 2e-8], np.float32), right)


def test_a_gradient_that_is_nothing_but_rounding_is_held_against_the_largest_of_the_step() -> None:
    noise, real = np.array([1e-9], np.float32), np.array([0.1, 0.05], np.float32)
    expected = expected_gradients([noise, real], FLOAT32)
    assert is_wrong(-noise, noise)
    assert not is_wrong(-noise, expected[0])
    assert is_wrong(np.array([1e-4], np.float32), expected[0])
    assert is_wrong(real * np.float32(1.01), expected[1])


def test_a_variable_is_held_against_its_change() -> None:
    before = np.full(4, 1.0)
    after = before - 1e-3
    expected = Expected.changed(before, after, tolerance_of(["float64"]))
    assert difference(after + 1e-16, expected) <= 1e-9
    assert difference(before - 1.01e-3, expected) == pytest.approx(0.01, rel=0.05)
    part = expected.part((slice(0, 2),))
    assert difference(after[:2], part) == 0.0 and part.scale == expected.scale


def test_what_is_not_finite_must_be_so_on_both_sides() -> None:
    for odd in (np.nan, np.inf, -np.inf):
        right = np.array([1.0, odd])
        assert difference(right, right) == 0.0
        assert difference(np.array([1.0, 2.0]), right) == np.inf
        assert difference(right, np.array([1.0, 2.0])) == np.inf
    assert difference(np.array([np.inf]), np.array([-np.inf])) == np.inf


def test_integers_and_truth_values_are_exact() -> None:
    assert difference(np.array([10**6]), np.array([10**6])) == 0.0
    assert difference(np.array([10**6 + 1]), np.array([10**6])) == np.inf
    assert difference(np.array([True]), np.array([False])) == np.inf


def test_shapes_must_agree_and_nothing_is_equal_to_nothing() -> None:
    assert difference(np.zeros(3), np.zeros((3, 1))) == np.inf
    assert difference(np.zeros((0, 2)), np.zeros((0, 2))) == 0.0
    assert difference(np.array([1e-30]), np.zeros(1)) == np.inf


def test_complex_numbers_differ_in_either_part() -> None:
    right = np.array([1.0 + 1.0j], np.complex64)
    assert difference(right + 0.01j, right) == pytest.approx(0.01 / 2**0.5, rel=1e-3)


def test_the_coarsest_dtype_counts() -> None:
    assert tolerance_of(["float32", "bfloat16", "int64"]) == TOLERANCES["bfloat16"]
    assert tolerance_of(["complex128"]) == TOLERANCES["float64"]
    assert tolerance_of(["int32", "bool"]).relative == 0.0
    relative = [TOLERANCES[name].relative for name in ("float64", "float32", "float16", "bfloat16")]
    assert relative == sorted(relative)
