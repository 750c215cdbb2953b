"""The benchmark of Keras models: what counts as equal, and what its table says."""

from __future__ import annotations

import pytest

from benchmarks.coverage import difference, judged, row
from benchmarks.coverage_models import MODELS, SIZES

pytestmark = pytest.mark.tf


def test_differences_are_relative_and_a_number_that_is_none_is_the_largest() -> None:
    assert difference({"loss": 2.0, "mae": 0.0}, {"loss": 2.5, "mae": 0.0}) == 0.25
    assert difference({"loss": 1.0}, {"loss": float("nan")}) == float("inf")
    with pytest.raises(ValueError, match=r"one says \['loss'\], the other \['mae'\]"):
        difference({"loss": 1.0}, {"mae": 1.0})


def test_what_differs_no_more_than_keras_from_itself_is_equal() -> None:
    alone = [[{"loss": 1.0}], [{"loss": 1.001}], [{"loss": 1.0}]]
    assert judged(alone, [{"loss": 1.004}])["equal"]
    assert not judged(alone, [{"loss": 1.01}])["equal"]
    exact = [[{"loss": 1.0}]] * 3
    assert judged(exact, [{"loss": 1.0 + 1e-6}])["equal"] and not judged(exact, [{"loss": 1.0001}])["equal"]


def test_what_is_chaos_later_must_be_equal_at_first() -> None:
    alone = [[{"loss": 1.0}] * 3, [{"loss": 1.0}, {"loss": 1.5}, {"loss": 1.1}], [{"loss": 1.0}] * 3]
    late = judged(alone, [{"loss": 1.0}, {"loss": 1.2}, {"loss": 2.0}])
    assert late == {"differences": [0.0, pytest.approx(0.2), 1.0], "spreads": [0.0, 0.5, 0.5], "equal": True}
    assert not judged(alone, [{"loss": 1.001}, {"loss": 1.0}, {"loss": 1.0}])["equal"]


def test_a_row_names_what_has_no_rule_and_what_failed() -> None:
    plan = {
        "operators": 1234,
        "without_rule": {"CTCLossV2": 2},
        "trace_processor_s": 1.0,
        "import_processor_s": 0.5,
        "plan_processor_s": 2.0,
        "memory_bytes": 2**20,
    }
    found = {"plan": plan, "errors": {"ranks": "first\nlast line"}}
    unknown = [""] * 5
    assert row("m", found) == ["m", "1,234", "CTCLossV2:2", "1.5", "2.0", "1.0", *unknown, "ranks: last line"]
    assert row("m", {"errors": {"plan": "no"}})[1:6] == ["", "", "", "", ""]


def test_a_row_says_the_worst_of_all_options() -> None:
    same = {"split": 0.1, "equal": True, "differences": [0.0, 0.0], "spreads": [1e-6, 1e-5]}
    other = {"split": 0.5, "equal": False, "differences": [1e-2, 1e-3], "spreads": [1e-6, 1e-5]}
    every = {"a": same, "b": other, "c": {"error": "E: no"}}
    said = row("m", {"ranks": {"peak_rss_bytes": 2**20, "options": every}})
    assert said[6:11] == ["50%", "NO", "1.0e-02, 1.0e-03", "1.0e-06, 1.0e-05", "1"]
    assert row("m", {"ranks": {"options": {"a": same}}})[6:9] == ["10%", "yes", "0.0e+00, 0.0e+00"]


def test_one_size_of_each_family_of_applications_is_executed() -> None:
    assert {"VGG16", "ResNet50", "NASNetMobile", "ConvNeXtTiny"} <= MODELS.keys()
    assert {"VGG19", "ConvNeXtXLarge", "EfficientNetV2L"} <= SIZES.keys() and not MODELS.keys() & SIZES.keys()
