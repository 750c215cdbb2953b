"""Searches repeat themselves: the same arguments give the same plan, but for the seconds that it took to find."""

from __future__ import annotations

import json

import pytest

import tensoropt
from tensoropt.cluster import preset

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("search", ["ft", "pase", "mcmc"])
def test_a_plan_repeats_itself_but_for_the_seconds_of_its_search(model: object, search: str) -> None:
    x = tensoropt.placeholder(tensoropt.float32, [64, 32])
    labels = tensoropt.placeholder(tensoropt.int32, [64])
    hidden = tensoropt.layers.dense(x, 48, activation=tensoropt.tanh)
    loss = tensoropt.softmax_cross_entropy(labels, tensoropt.layers.dense(hidden, 10))
    tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    texts = []
    for _ in range(2):
        plan = tensoropt.find_strategy(search=search, topology=preset("p100", devices=4)).to_json()
        notes = dict(plan["notes"])
        assert notes.pop("search_seconds") > 0
        texts.append(json.dumps({**plan, "notes": notes}))
    assert texts[0] == texts[1]
