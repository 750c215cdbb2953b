"""What is measured of a space's operators: what first, and how much at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.measure.candidates import Candidate, candidates_of, in_batches, likeliest_first, runs_of
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp

pytestmark = pytest.mark.tf

TOPOLOGY = cpu(4)
SPACE = SearchSpace(mlp(), AnalyticCost(TOPOLOGY))
CANDIDATES = candidates_of(TOPOLOGY, SPACE, 0)


def _changed(**fields: Any) -> Candidate:
    return dataclasses.replace(next(iter(CANDIDATES.values())), **fields)


def test_all_configurations_are_there_once() -> None:
    assert sum(one.count for one in CANDIDATES.values()) == sum(
        len(SPACE.choices(op.name))
        for op in SPACE.operators
        if op.name in {one.probe.op.name for one in CANDIDATES.values()}
    )
    assert {one.probe.op.type for one in CANDIDATES.values()} >= {"MatMul", "Relu"}


def test_what_has_effects_a_state_or_python_in_it_is_never_measured() -> None:
    to.reset_default_graph()
    w = to.get_variable("w", [4, 4])
    memory = to.get_variable("memory", [4, 4], trainable=False)
    called: list[Any] = []

    def note(value: Any) -> Any:
        called.append(value)
        return value

    noted = to.py_func(note, [w], to.float32)
    pure = to.py_func(note, [w], to.float32, stateful=False)
    with to.control_dependencies([to.scatter_add(memory, [1], w[:1]).op, to.debugging.assert_less(w, 9.0)]):
        read = w.read_value()
    printed = to.compat.v1.Print(read, [w])
    for tensor in (noted, pure):
        tensor.set_shape([4, 4])
    # No rule, but nothing that could matter to anyone.
    rounded = to.quantization.quantize_and_dequantize_v2(printed, -1.0, 1.0)
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(rounded * noted * pure))
    imported = import_model(current_model())
    space = SearchSpace(imported.graph, AnalyticCost(TOPOLOGY))
    to.reset_default_graph()
    unmeasured = {"PyFunc", "PyFuncStateless", "Print", "ResourceScatterAdd", "If"}
    assert {op.type for op in space.operators} >= {*unmeasured, "QuantizeAndDequantizeV4"}
    measured = {one.probe.op.type for one in candidates_of(TOPOLOGY, space, 0).values()}
    assert not measured & unmeasured and "QuantizeAndDequantizeV4" in measured
    assert not called


def test_one_configuration_of_each_operator_is_its_fastest() -> None:
    assert all(one.slowness >= 1 for one in CANDIDATES.values())
    for whole in {one.whole for one in CANDIDATES.values() if one.whole in CANDIDATES}:
        assert min(one.slowness for one in CANDIDATES.values() if one.whole == whole) == 1


def test_what_keeps_devices_busy_for_longer_than_it_must_is_measured_last() -> None:
    some = {
        "whole": _changed(slowness=4.0, analytic_s=9.0, count=1),
        "halved": _changed(slowness=2.1, analytic_s=5.0, count=1),
        "small": _changed(slowness=1.0, analytic_s=1.0, count=1),
        "large": _changed(slowness=1.3, analytic_s=3.0, count=1),
        "often": _changed(slowness=1.0, analytic_s=1.0, count=4),
    }
    assert likeliest_first(some, some) == ["often", "large", "small", "halved", "whole"]
    assert likeliest_first(some, ["halved", "small"]) == ["small", "halved"]


def test_a_batch_fits_into_memory_and_into_time() -> None:
    small = _changed(size_bytes=1.0, analytic_s=1e-6)
    assert [len(batch) for batch in in_batches([("small", small)] * 250)] == [100, 100, 50]
    large = _changed(size_bytes=2.0**28, analytic_s=1e-6)
    assert [len(batch) for batch in in_batches([("large", large)] * 5)] == [2, 2, 1]
    long = _changed(size_bytes=1.0, analytic_s=0.04)
    assert [len(batch) for batch in in_batches([("long", long)] * 5)] == [2, 2, 1]
    endless = _changed(size_bytes=2.0**40, analytic_s=10.0)
    assert [len(batch) for batch in in_batches([("endless", endless)] * 2)] == [1, 1]
    assert in_batches([]) == []


def test_what_takes_long_runs_less_often() -> None:
    assert runs_of([("a", _changed(analytic_s=1e-4))]) > runs_of([("a", _changed(analytic_s=0.02))] * 2) >= 3
