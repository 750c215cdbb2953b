"""The planner: which models it stands for, and that searches get what it knows of the model."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tensoropt.api.find.choosing import find_plan
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.mirror.model import Model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import OpProfile
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.search.options import MemoryLimit
from tests.plan.small_graphs import deep, mlp, trained

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


def test_micro_batches_are_tried_where_bounds_let_them_fit_and_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def plan_of(steps: Planner) -> Plan:
        searched.append(steps.micro_batches)
        return find_plan(steps, topology, "mini_time", limit.limit_bytes, micro_batches=steps.micro_batches)

    def fastest(*, bounded: bool) -> tuple[Plan | None, list[int]]:
        planner = Planner(imported, "global", Model())
        with monkeypatch.context() as patch:
            if not bounded:
                patch.setattr(Planner, "surpasses", lambda *_: False)
                patch.setattr(Planner, "is_slower", lambda *_: False)
            searched.clear()
            assert not planner.fits(topology, limit.limit_bytes)
            return planner.fastest_split(topology, limit, plan_of, lambda plan: plan.time_s), searched.copy()

    topology, fewer = cpu(2), 0
    for make in (lambda: mlp(batch=64), lambda: deep(3, batch=64, width=32)):
        imported = ImportedModel(trained(make(), "w1", 2), None, ())
        least = Planner(imported, "global", Model()).least_bytes(topology)
        for share in (0.9, 0.6, 0.4, 0.1):
            limit = MemoryLimit(share * least, "test")
            with_bounds, without = fastest(bounded=True), fastest(bounded=False)
            assert (with_bounds[0] is None) == (without[0] is None)
            if with_bounds[0] is not None and without[0] is not None:
                assert with_bounds[0].micro_batches == without[0].micro_batches
                assert with_bounds[0].time_s == without[0].time_s
            assert set(with_bounds[1]) <= set(without[1])
            fewer += len(without[1]) - len(with_bounds[1])
    assert fewer > 0


def test_of_more_micro_batches_what_fewer_hold_is_a_bound() -> None:
    planner = Planner(ImportedModel(trained(deep(3, batch=64, width=32), "w1", 2), None, ()), "global", Model())
    shares = planner.least_possible(2)[0]
    assert not planner.surpasses(cpu(2), math.inf)  # and now it is known what operators take
    bound, why = planner.with_steps(2).least_possible(2)
    assert bound > shares and re.search(r"are needed on 2 devices in micro-batches 2 times as large$", why)
    assert bound <= planner.with_steps(2).least_bytes(cpu(2))
    assert planner.with_steps(2).surpasses(cpu(2), bound * 0.99)
    assert not planner.with_steps(2).fits(cpu(2), bound * 0.99)
    assert planner.with_steps(2, True).least_possible(2)[0] == shares  # what is made again takes less


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
