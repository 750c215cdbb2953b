"""The planner: which models it stands for, and that searches get what it knows of the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.mirror.model import Model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import OpProfile
from tensoropt.graph.graph import Graph
from tensoropt.plan.configuration import Configuration
from tensoropt.search.options import MemoryLimit
from tests.plan.small_graphs import mlp

pytestmark = pytest.mark.tf

# Bytes of the variables of mlp().
W1, B1, W2 = 288, 48, 192


def _imported(slots: Mapping[str, int] | None = None, graph: Graph | None = None) -> ImportedModel:
    return ImportedModel(graph or mlp(), None, dict(slots or {}), ())


def _planner(slots: Mapping[str, int] | None = None, feed: str = "data_parallel") -> Planner:
    return Planner(_imported(slots), feed, Model())


def test_a_planner_suits_an_import_of_the_same_graph_slots_and_feed() -> None:
    planner = _planner({"w1": 2})
    assert planner.suits(_imported({"w1": 2}), "data_parallel")
    assert not planner.suits(_imported({"w1": 1}), "data_parallel")
    assert not planner.suits(_imported(), "data_parallel")
    assert not planner.suits(_imported({"w1": 2}), "global")
    assert not planner.suits(_imported({"w1": 2}, mlp(width=24)), "data_parallel")


def test_searches_get_slots_and_alternatives_and_inputs_as_they_are_fed() -> None:
    shared, whole = (_planner({"w1": 2}, feed).space(cpu(2)) for feed in ("data_parallel", "global"))
    assert shared.choices("x") == (Configuration(("d0",)),)
    assert Configuration((None,)) in whole.choices("x")
    for space in (shared, whole):
        assert space.reuse
        # With their gradients, one variable also with its slots.
        held = {
            name: space.node_costs(name, space.choices(name).index(Configuration((None,))))[1] for name in ("w1", "w2")
        }
        assert held == {"w1": 4 * W1, "w2": 2 * W2}


def test_what_fits_on_one_device_counts_slots() -> None:
    few, many = _planner(), _planner({"w1": 2})
    least = few.least_bytes(cpu(1))
    assert many.least_bytes(cpu(1)) == least + 2 * W1
    assert few.alone_seconds(cpu(2), least) is not None
    assert few.alone_seconds(cpu(2), least - 1) is None
    assert many.alone_seconds(cpu(2), least) is None


def test_a_bound_without_a_search_is_shares_of_variables_and_slots_or_of_the_least_on_fewer_devices() -> None:
    planner = _planner({"w1": 2})
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
