"""The analytic cost model: a roofline, and the topology's collectives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tensoropt.cluster import CollectiveModel
from tensoropt.cluster.presets import cpu, v100
from tensoropt.cost import AnalyticCost
from tensoropt.cost.cost_model import OpCall
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh, StepKind
from tensoropt.plan.configuration import Configuration
from tests.plan.small_graphs import embedding, operator

pytestmark = pytest.mark.pure

TOPOLOGY = v100(1)  # 8 devices
COST = AnalyticCost(TOPOLOGY)
DEVICE = TOPOLOGY.device


def _matmul(m: int, k: int, n: int, dtype: str = "float32") -> tuple[Operator, tuple[TensorSpec, TensorSpec]]:
    op = operator("y", "MatMul", ("x", "w"), (m, n), {"transpose_a": False, "transpose_b": False}, dtype)
    return op, (TensorSpec((m, k), dtype), TensorSpec((k, n), dtype))


def _seconds(
    op: Operator,
    inputs: tuple[TensorSpec, ...],
    actions: tuple[str | None, ...],
    gradients: int = 0,
    cost: AnalyticCost = COST,
) -> float:
    return cost.op_seconds(OpCall(op, rule_of(op, inputs), inputs, Configuration(actions), gradients))


def test_the_mesh_is_that_of_the_topology() -> None:
    assert COST.mesh == Mesh((2, 2, 2))
    assert AnalyticCost(cpu(6)).mesh == Mesh((2, 3))


def test_a_large_product_takes_its_arithmetic() -> None:
    op, inputs = _matmul(4096, 4096, 4096)
    flops = 2 * 4096**3
    assert _seconds(op, inputs, (None,) * 3) == pytest.approx(flops / DEVICE.flops("float32") + DEVICE.op_overhead_s)
    assert _seconds(op, inputs, ("m", "n", "k")) == pytest.approx(
        flops / 8 / DEVICE.flops("float32") + DEVICE.op_overhead_s
    )


@pytest.mark.parametrize("wide_products", [False, True])
def test_parts_of_16_bit_sums_take_the_rate_of_float32_unless_products_are_wide(wide_products: bool) -> None:
    device = dataclasses.replace(DEVICE, wide_products=wide_products)
    cost = AnalyticCost(dataclasses.replace(COST.topology, device=device))
    op, inputs = _matmul(4096, 4096, 4096, "float16")
    narrow, wide = (2 * 4096**3 / 8 / DEVICE.flops(dtype) for dtype in ("float16", "float32"))
    part, start = narrow if wide_products else wide, DEVICE.op_overhead_s
    assert _seconds(op, inputs, ("m",) * 3, cost=cost) == pytest.approx(narrow + start)
    assert _seconds(op, inputs, ("k",) * 3, cost=cost) == pytest.approx(part + start)
    # Where samples are split, the gradient of the second operand is a part of a sum, that of the first is whole.
    assert _seconds(op, inputs, ("m",) * 3, 2, cost) == pytest.approx(2 * narrow + part + 3 * start)


def test_a_thin_product_takes_its_memory_traffic() -> None:
    op, inputs = _matmul(1, 4096, 4096)
    size = 4 * (4096 + 4096**2 + 4096)
    assert _seconds(op, inputs, (None,) * 3) == pytest.approx(
        size / DEVICE.memory_bandwidth_bytes_per_s + DEVICE.op_overhead_s
    )


def test_gradients_add_their_arithmetic() -> None:
    op, inputs = _matmul(4096, 4096, 4096)
    forward, one, two = (_seconds(op, inputs, (None,) * 3, gradients) for gradients in range(3))
    flops_s = 2 * 4096**3 / DEVICE.flops("float32")
    assert one - forward == pytest.approx(flops_s + DEVICE.op_overhead_s)
    assert two - forward == pytest.approx(2 * flops_s + 2 * DEVICE.op_overhead_s)


def test_another_dtype_has_another_rate() -> None:
    op, inputs = _matmul(4096, 4096, 4096, "float64")
    assert _seconds(op, inputs, (None,) * 3) == pytest.approx(
        2 * 4096**3 / DEVICE.flops("float64") + DEVICE.op_overhead_s
    )


def test_a_lookup_reads_the_rows_that_it_looks_up() -> None:
    graph = embedding(batch=8, rows=1_000_000, width=8)
    op = graph["rows"]
    assert _seconds(op, graph.input_specs(op), (None,) * 3) < DEVICE.op_overhead_s + 1e-6


def test_an_operator_that_reduces_over_a_split_axis_pays_its_collectives() -> None:
    op = operator("p", "Softmax", ("x",), (64, 1024))
    inputs = (TensorSpec((64, 1024), "float32"),)
    rule = rule_of(op, inputs)
    axis = next(name for name in sorted(rule.internal) if rule.size(name) == 1024)
    one = float(CollectiveModel(TOPOLOGY).seconds("all_reduce", (0,), np.array([64 * 4.0]))[0])
    other = next(name for name in rule.split if name not in rule.internal)
    # Split either way an op has half of the work; one way it talks.
    talking = _seconds(op, inputs, (axis, None, None)) - _seconds(op, inputs, (other, None, None))
    assert talking == pytest.approx(2 * one)


def test_an_operator_without_inputs_costs_its_start_and_what_it_writes() -> None:
    op = Operator("c", "Range", (), (TensorSpec((1024,), "float32"),))
    assert _seconds(op, (), (None,) * 3) == pytest.approx(
        DEVICE.op_overhead_s + 4096 / DEVICE.memory_bandwidth_bytes_per_s
    )


@pytest.mark.parametrize("kind", [kind for kind in StepKind if kind is not StepKind.DROP])
def test_steps_cost_more_the_more_goes_in(kind: StepKind) -> None:
    seconds = COST.step_seconds(kind, (0, 1), np.array([1.0, 1e3, 1e6, 1e9]))
    assert np.all(seconds > 0)
    assert np.all(np.diff(seconds) > 0)


@pytest.mark.parametrize("kind", [kind for kind in StepKind if not kind.is_local])
def test_no_collective_is_as_cheap_as_a_local_step(kind: StepKind) -> None:
    size = np.array([1e3, 1e7])
    assert np.all(COST.step_seconds(kind, (0,), size) > COST.step_seconds(StepKind.SLICE, (0,), size) * 0.99)


def test_what_a_device_forgets_costs_next_to_nothing() -> None:
    assert np.all(COST.step_seconds(StepKind.DROP, (0, 1), np.array([1.0, 1e9])) == 1e-9)


def test_steps_from_and_to_one_place_cost_what_a_collective_does_that_passes_the_same_links() -> None:
    # 3.4 us and 1 / 150 GB/s a hop on NVLink: all of it has 8 devices, and bytes pass memory once each way.
    collectives, size = CollectiveModel(TOPOLOGY), np.array([4e6])
    start = DEVICE.op_overhead_s + 8e6 / DEVICE.memory_bandwidth_bytes_per_s

    def seconds(kind: StepKind) -> float:
        return float(COST.step_seconds(kind, (0, 1, 2), size)[0])

    link = TOPOLOGY.levels[-1]
    hop = link.latency_s + 4e6 / link.bandwidth_bytes_per_s
    assert seconds(StepKind.SEND) == pytest.approx(hop + start)
    for kind, like, sent in [
        (StepKind.BROADCAST, "broadcast", size),
        (StepKind.GATHER, "all_gather", size),
        (StepKind.SCATTER, "all_gather", size / 8),
    ]:
        assert seconds(kind) == pytest.approx(float(collectives.seconds(like, (0, 1, 2), sent)[0]) + start)
    # Sums are taken in place.
    assert seconds(StepKind.REDUCE) == pytest.approx(
        float(collectives.seconds("broadcast", (0, 1, 2), size)[0]) + DEVICE.op_overhead_s
    )
    # Three rounds of halves, 7/8 of the bytes.
    assert seconds(StepKind.SCATTER) == pytest.approx(
        3 * link.latency_s + 7 / 8 * 4e6 / link.bandwidth_bytes_per_s + start
    )


def test_one_all_reduce_is_cheaper_than_one_after_the_other() -> None:
    for size in (np.array([16.0]), np.array([1e8])):
        alone = [COST.step_seconds(StepKind.ALL_REDUCE, (axis,), size)[0] for axis in range(3)]
        assert COST.step_seconds(StepKind.ALL_REDUCE, (0, 1, 2), size)[0] < sum(alone)


def test_a_device_without_overhead_still_charges_for_steps() -> None:
    free = dataclasses.replace(cpu(2), device=dataclasses.replace(cpu(2).device, op_overhead_s=0.0))
    for kind in StepKind:
        assert AnalyticCost(free).step_seconds(kind, (0,), np.array([0.0]))[0] > 0


def test_traffic_is_bytes_over_bandwidth() -> None:
    assert COST.traffic_seconds(DEVICE.memory_bandwidth_bytes_per_s) == 1.0
