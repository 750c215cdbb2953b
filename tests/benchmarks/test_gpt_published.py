"""Predicted steps beside published ones, of a small model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpt import DECODERS
from benchmarks.gpt_published import PUBLISHED, Published, fitted, predicted_s
from tests.effort import left_to_ci

pytestmark = pytest.mark.tf

_SMALL = replace(DECODERS["gpt3"].with_sizes({"width": 256, "heads": 8}), length=128, vocabulary=512)


@left_to_ci("a benchmark, which users do not run")
def test_steps_take_longer_where_more_is_made_again_and_products_are_slower() -> None:
    _, whole, scores = (predicted_s(each, 0.8, _SMALL) for each in PUBLISHED)
    assert scores < whole
    assert scores < predicted_s(PUBLISHED[2], 0.4, _SMALL)
    assert predicted_s(PUBLISHED[1], 0.8, _SMALL, searched=True) < whole


def test_the_share_of_arithmetic_is_the_one_whose_largest_error_is_least() -> None:
    products = {each.name: each.step_s * part for each, part in zip(PUBLISHED, (0.6, 0.5, 0.7), strict=True)}

    def predict(each: Published, share: float) -> float:
        return products[each.name] / share + 0.2 * each.step_s

    share, error = fitted(predict)
    every = {
        percent: max(abs(predict(each, percent / 100) / each.step_s - 1) for each in PUBLISHED)
        for percent in range(50, 101)
    }
    assert (error, share) == (min(every.values()), min(every, key=lambda percent: every[percent]) / 100)
