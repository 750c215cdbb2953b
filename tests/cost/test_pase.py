"""PaSE's cost model against the paper's definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tensoropt.cluster.presets import gtx1080ti, rtx2080ti, v100
from tensoropt.cost.cost_model import OpCall
from tensoropt.cost.pase import PaseCost
from tensoropt.errors import CostError
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Layout, Mesh, StepKind
from tensoropt.layout.reshard import reshard_table
from tensoropt.plan.configuration import Configuration
from tests.plan.small_graphs import operator

pytestmark = pytest.mark.pure

TOPOLOGY = gtx1080ti(1)  # 8 devices
COST = PaseCost(TOPOLOGY)
FLOPS = TOPOLOGY.device.flops("float32")
SHAPE = (8, 8)


def _matmul(m: int, k: int, n: int) -> tuple[Operator, tuple[TensorSpec, TensorSpec]]:
    op = operator("y", "MatMul", ("x", "w"), (m, n), {"transpose_a": False, "transpose_b": False})
    return op, (TensorSpec((m, k), "float32"), TensorSpec((k, n), "float32"))


def _seconds(
    op: Operator, inputs: tuple[TensorSpec, ...], actions: tuple[str | None, ...], gradients: int = 0
) -> float:
    return COST.op_seconds(OpCall(op, rule_of(op, inputs), inputs, Configuration(actions), gradients))


def test_ratio_is_that_of_the_peak_and_the_slowest_link() -> None:
    assert COST.flop_per_byte == pytest.approx(11.34e12 / 12e9)
    # The paper's second system computes faster and has half of the bandwidth: bytes weigh more (section IV-B).
    assert PaseCost(rtx2080ti(4)).flop_per_byte == pytest.approx(13.45e12 / 6e9)
    assert PaseCost(v100(2)).flop_per_byte == pytest.approx(15.7e12 / 12e9)  # the network, not NVLink
    assert PaseCost(v100(2), flop_per_byte=100).flop_per_byte == 100.0


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.inf, math.nan])
def test_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(CostError, match=r"flop_per_byte: must be finite and positive, got .*\. Give peak FLOP"):
        PaseCost(TOPOLOGY, flop_per_byte=ratio)


def test_layer_cost_is_the_arithmetic_of_a_device() -> None:
    op, inputs = _matmul(64, 32, 16)
    flop = 2 * 64 * 32 * 16
    assert _seconds(op, inputs, (None,) * 3) == pytest.approx(flop / FLOPS)
    assert _seconds(op, inputs, ("m", "n", "k")) == pytest.approx(flop / 8 / FLOPS)
    assert _seconds(op, inputs, ("m", "m", None), gradients=2) == pytest.approx(3 * flop / 4 / FLOPS)


def test_layer_that_reduces_inside_pays_its_bytes() -> None:
    op = operator("p", "Softmax", ("x",), (64, 1024))
    inputs = (TensorSpec((64, 1024), "float32"),)
    rule = rule_of(op, inputs)
    inside = next(name for name in sorted(rule.internal) if rule.size(name) == 1024)
    other = next(name for name in rule.split if name not in rule.internal)
    talking = _seconds(op, inputs, (inside, None, None)) - _seconds(op, inputs, (other, None, None))
    # Two all_reduces of one number per row: each device gets half of the sums, then the other half.
    assert talking == pytest.approx(2 * 64 * 4 * COST.flop_per_byte / FLOPS, rel=1e-4)


def test_split_image_pays_the_rims_of_its_neighbours() -> None:
    attrs = {"strides": (1, 1, 1, 1), "padding": "SAME", "data_format": "NHWC", "dilations": (1, 1, 1, 1)}
    op = operator("y", "Conv2D", ("x", "w"), (2, 16, 16, 4), {**attrs, "explicit_paddings": ()})
    inputs = (TensorSpec((2, 16, 16, 3), "float32"), TensorSpec((3, 3, 3, 4), "float32"))
    rule = rule_of(op, inputs)
    whole = COST.op_seconds(OpCall(op, rule, inputs, Configuration((None, None, None)), 0))
    halves = COST.op_seconds(OpCall(op, rule, inputs, Configuration((rule.halos[0].axis, None, None)), 0))
    row_bytes = 2 * 16 * 3 * 4
    assert halves == pytest.approx(whole / 2 + 2 * row_bytes * COST.flop_per_byte / FLOPS)
    both = COST.internal_seconds(OpCall(op, rule, inputs, Configuration((rule.halos[0].axis, None, None)), 2))
    assert both == pytest.approx(4 * row_bytes * COST.flop_per_byte / FLOPS)


def test_nothing_else_costs_anything() -> None:
    assert COST.iteration_seconds == COST.traffic_seconds(1e9) == COST.update_seconds("ResourceApplyAdam", 1e9) == 0.0
    for kind in (StepKind.SLICE, StepKind.TO_PARTIAL, StepKind.DROP, StepKind.FILL):
        assert COST.received_bytes(kind, (0,), np.array([4.0])).tolist() == [0.0]


def _volume(source: Layout, target: Layout, mesh: Mesh) -> int:
    """The paper's edge volume: the most elements that a device needs and does not hold."""
    most = 0
    for rank in range(mesh.size):
        needed, held = (np.zeros(SHAPE, bool) for _ in range(2))
        needed[target.slices(SHAPE, mesh, rank)] = True
        held[source.slices(SHAPE, mesh, rank)] = True
        most = max(most, int((needed & ~held).sum()))
    return most


def test_transfer_cost_is_the_papers_volume_wherever_one_step_does() -> None:
    mesh = COST.mesh
    table = reshard_table(mesh, SHAPE, 4, COST.step_seconds)
    whole = [layout for layout in table.layouts if not layout.partial and not layout.at]
    compared = {kind: 0 for kind in StepKind}
    for source, target in itertools.permutations(whole, 2):
        path = table.path(source, target)
        seconds = float(table.seconds[table.index[source], table.index[target]])
        volume_s = _volume(source, target, mesh) * 4 * COST.flop_per_byte / FLOPS
        # Through several steps no fewer bytes can arrive.
        assert seconds >= volume_s * (1 - 1e-9)
        if len(path) == 1 and path[0].kind is not StepKind.PERMUTE:
            assert seconds == pytest.approx(volume_s, abs=1e-11)
            compared[path[0].kind] += 1
    assert min(compared[kind] for kind in (StepKind.ALL_GATHER, StepKind.SLICE, StepKind.ALL_TO_ALL)) > 0


def test_partial_sums_cost_a_reduction() -> None:
    table = reshard_table(COST.mesh, SHAPE, 4, COST.step_seconds)
    partial, copies = Layout(((), ()), (0, 1, 2)), Layout.replicated(2)
    split = Layout(((0, 1, 2), ()))
    byte_s, size = COST.flop_per_byte / FLOPS, 64 * 4
    seconds = table.seconds
    assert seconds[table.index[partial], table.index[copies]] == pytest.approx(2 * 7 / 8 * size * byte_s, abs=1e-11)
    assert seconds[table.index[partial], table.index[split]] == pytest.approx(7 / 8 * size * byte_s, abs=1e-11)


def test_steps_from_and_to_one_place_cost_what_arrives() -> None:
    piece = np.array([96.0])
    received = {kind: float(COST.received_bytes(kind, (0, 1), piece)[0]) for kind in StepKind}
    assert received[StepKind.BROADCAST] == received[StepKind.SEND] == received[StepKind.REDUCE] == 96.0
    assert (received[StepKind.GATHER], received[StepKind.SCATTER]) == (3 * 96.0, 24.0)
