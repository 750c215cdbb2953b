"""What devices send in a step, against counts by hand."""

from __future__ import annotations

import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.graph.graph import Graph
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace
from tensoropt.space.traffic import sent_bytes
from tests.plan.small_graphs import embedding, mlp

pytestmark = pytest.mark.pure

_LOSS = 4  # one float32, summed at the end


def _space(graph: Graph, devices: int) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)), reuse=True)


def _sent(space: SearchSpace, baseline: str) -> float:
    found = apply_baseline(baseline, space)
    return sent_bytes(space.plan(found.assignments[0], baseline, alternatives=found.alternatives[0]))


@pytest.mark.parametrize("devices", [2, 4])
def test_data_parallelism_sends_every_gradient_twice_but_for_ones_own_share(devices: int) -> None:
    space = _space(mlp(), devices)
    variables = sum(op.outputs[0].size_bytes for op in space.graph.of_type("Variable"))
    # An all_reduce: each device sends 2 (n - 1) / n of the whole.
    assert _sent(space, "data_parallel") == 2 * (devices - 1) * (variables + _LOSS)


def test_parts_of_16_bit_gradients_are_sent_as_float32() -> None:
    single, half = (_space(mlp(dtype=dtype), 4) for dtype in ("float32", "bfloat16"))
    assert _sent(half, "data_parallel") == _sent(single, "data_parallel")
    # What zero2 gathers is no sum: of each 16-bit variable 3/4 are sent once as they are and once as parts.
    gathered, summed = 3 / 4 * 4 * 2, 3 / 4 * 4 * 4
    variables = sum(op.outputs[0].elements for op in half.graph.of_type("Variable"))
    assert _sent(half, "zero2") == (gathered + summed) * variables + 2 * 3 * _LOSS


def test_zero_3_gathers_once_more_than_zero_2() -> None:
    space = _space(mlp(batch=8, width=16, classes=4), 4)
    sizes = {op.name: op.outputs[0].size_bytes for op in space.graph.of_type("Variable")}
    every, loss = sum(sizes.values()), 2 * 3 * _LOSS
    # A gather and a reduce_scatter of all, 3/4 of the whole by each of 4 devices; the bias is not read again.
    assert _sent(space, "zero2") == 3 * (every + every) + loss
    assert _sent(space, "zero3") == 3 * (every + every + sizes["w1"] + sizes["w2"]) + loss


def test_gradients_of_a_table_are_sent_as_rows() -> None:
    graph = embedding(batch=8, rows=1600, width=8)
    rows = 8 * 8 * 4
    # Every device needs the rows of the other 3: far less than the table.
    assert _sent(_space(graph, 4), "data_parallel") == 3 * rows + 2 * 3 * _LOSS


def test_rows_stay_where_the_table_is_split_as_the_lookup_is() -> None:
    space = _space(embedding(batch=8, rows=16, width=8), 4)
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    for name, action in (("table", "d0"), ("rows", "v")):
        chosen[name] = Configuration((action, action))
    plan = space.plan(space.assignment(chosen), "rows")
    # Only the sum of the looked-up rows: 2 (n - 1) of 8 x 8 floats.
    assert sent_bytes(plan) == 2 * 3 * 8 * 8 * 4


def test_one_device_sends_nothing() -> None:
    space = _space(mlp(), 1)
    assert sent_bytes(space.plan([0] * len(space.operators), "alone")) == 0
