"""Settings of scripts, and names of modes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tensoropt

pytestmark = pytest.mark.tf


@pytest.fixture
def params() -> Any:
    return tensoropt.contrib.training.HParams(
        rate=0.1, units=64, name="relu", sizes=[3, 5], rates=(0.1, 0.2), is_big=False, nothing=None
    )


def test_settings_are_attributes_and_a_dict(params: Any) -> None:
    assert (params.rate, params.units, params.sizes) == (0.1, 64, [3, 5])
    assert "rate" in params and "other" not in params
    assert params.get("units") == 64 and params.get("other", 7) == 7
    assert json.loads(params.to_json())["name"] == "relu"
    assert str(params) == str(sorted(params.values().items()))
    assert repr(params).startswith("HParams([('is_big', False)")
    params.add_hparam("more", 1)
    params.del_hparam("more")
    assert "more" not in params and not hasattr(params, "more")
    params.nothing = 3  # as scripts do
    assert params.values()["nothing"] == 3


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rate=1e-3", "rate", 0.001),
        ("rate=2", "rate", 2.0),
        ("units=7,name=tanh", "name", "tanh"),
        ("sizes=[1, 2,3]", "sizes", [1, 2, 3]),
        ("sizes=[]", "sizes", []),
        ("sizes[1]=9", "sizes", [3, 9]),
        ("is_big=true", "is_big", True),
        ("is_big=0", "is_big", False),
        ("units=1,units=2", "units", 2),
        ("", "units", 64),
    ],
)
def test_settings_are_parsed(params: Any, text: str, name: str, value: Any) -> None:
    assert params.parse(text) is params
    assert params.values()[name] == value
    assert type(params.values()[name]) is type(value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("unit=1", r"there is no 'unit'. Known are is_big,"),
        ("units=1.5", "'units' is of type int, which '1.5' is not"),
        ("is_big=yes", "'is_big' is of type bool, which 'yes' is not"),
        ("units=[1]", r"'units' is no list. Got \[1\]"),
        ("sizes=1", "'sizes' is a list. Got 1"),
        ("sizes[2]=1", "'sizes' has no place 2"),
        ("sizes[0]=1,sizes[0]=2", r"sizes\[0\] is given twice"),
        ("units", "'units' is no name=value"),
        ("units=1;rate=2", "is of type int, which '1;rate=2' is not"),
    ],
)
def test_what_does_not_fit_is_an_error(params: Any, text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        params.parse(text)


def test_types_are_kept(params: Any) -> None:
    params.parse_json('{"rate": 3, "sizes": [4]}')
    assert params.rate == 3.0 and isinstance(params.rate, float)
    params.override_from_dict({"nothing": "x"})
    for name, value in {"units": 1.5, "is_big": 1, "name": 3, "rate": "0.1", "rates": [True]}.items():
        with pytest.raises(ValueError, match=rf"{name}. is of type"):
            params.set_hparam(name, value)
    with pytest.raises(ValueError, match="'values' is taken"):
        params.add_hparam("values", 1)
    with pytest.raises(ValueError, match="'empty' is empty"):
        params.add_hparam("empty", [])


def test_modes_are_words() -> None:
    assert tensoropt.estimator.ModeKeys.PREDICT == "infer"
    assert tensoropt.contrib.learn.ModeKeys.TRAIN == tensoropt.estimator.ModeKeys.TRAIN == "train"
