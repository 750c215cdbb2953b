"""The planner: which models it stands for, and that searches get what it knows of the model."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.mirror.model import Model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import OpProfile
from tensoropt.plan.configuration import Configuration
from tensoropt.search.options import MemoryLimit
from tests.plan.small_graphs import mlp, trained

pytestmark = pytest.mark.tf

# Bytes of the variables of mlp().
W1, B1, W2 = 288, 48, 192


def _imported(slots: int = 0, width: int = 12) -> ImportedModel:
    return ImportedModel(trained(mlp(width=width), "w1", slots), None, ())


def _planner(slots: int = 0, feed: str = "data_parallel") -> Planner:
    return Planner(_imported(slots), feed, Model())


def test_a_planner_suits_an_import_of_the_same_graph_and_feed() -> None:
    planner = _planner(2)
    assert planner.suits(_imported(2), "data_parallel")
    assert not planner.suits(_imported(1), "data_parallel")
    assert not planner.suits(_imported(), "data_parallel")
    assert not planner.suits(_imported(2), "global")
    assert not planner.suits(_imported(2, width=24), "data_parallel")


def test_searches_get_alternatives_and_inputs_as_they_are_fed() -> None:
    shared, whole = (_planner(2, feed).space(cpu(2)) for feed in ("data_parallel", "global"))
    assert shared.choices("x") == (Configuration(("d0",)),)
    assert Configuration((None,)) in whole.choices("x")
    for space in (shared, whole):
        assert space.reuse
        # Variables with their gradients; slots have none.
        names = ("w1", "w2", "w1/slot0", "w1/slot1")
        held = {name: space.node_costs(name, space.choices(name).index(Configuration((None,))))[1] for name in names}
        assert held == {"w1": 2 * W1, "w2": 2 * W2, "w1/slot0": W1, "w1/slot1": W1}


def test_what_fits_on_one_device_counts_slots() -> None:
    few, many = _planner(), _planner(2)
    least = few.least_bytes(cpu(1))
    numbers = 5 * 4  # that Adam takes more than gradient descent
    assert many.least_bytes(cpu(1)) == least + 2 * W1 + numbers
    assert few.alone_seconds(cpu(2), least) is not None
    assert few.alone_seconds(cpu(2), least - 1) is None
    assert many.alone_seconds(cpu(2), least) is None


def test_a_bound_without_a_search_is_shares_of_variables_and_slots_or_of_the_least_on_fewer_devices() -> None:
    planner = _planner(2)
    shares = (W1 + B1 + W2 + 2 * W1) / 4
    assert planner.least_possible(4)[0] == shares
    least = planner.least_bytes(cpu(2))
    assert least / 2 > shares
    assert planner.least_possible(4)[0] == least / 2
    assert planner.least_possible(4, any_batch=True)[0] == shares
    assert planner.least_possible(3)[0] == (W1 + B1 + W2 + 2 * W1) / 3


def test_what_was_found_is_kept_for_the_cluster_and_the_measurements_that_it_is_of() -> None:
    planner = _planner()
    first = planner.frontier(cpu(2))
    assert planner.frontier(cpu(2)) is first
    other = planner.frontier(cpu(4))
    assert other is not first and other.provenance is not None and other.provenance.topology == cpu(4)
    planner.calibrate(None)
    assert planner.frontier(cpu(4)) is other
    planner.calibrate(OpProfile())
    again = planner.frontier(cpu(4))
    assert again is not other and again.provenance is not None and again.provenance.costs == "measured"


def test_a_plan_is_of_the_point_that_was_chosen() -> None:
    planner = _planner()
    frontier = planner.frontier(cpu(4))
    limit = MemoryLimit(1e12, "all there is")
    for index in range(len(frontier)):
        plan = planner.plan(cpu(4), frontier.point(index), "mini_time", limit)
        np.testing.assert_allclose(plan.time_s, frontier.time_s[index], rtol=1e-9)
        np.testing.assert_allclose(plan.memory_bytes, frontier.memory_bytes[index], rtol=1e-9)
        assert (plan.notes["feed"], plan.notes["topology"]) == ("data_parallel", cpu(4).fingerprint())
