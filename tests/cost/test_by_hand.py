"""Costs that other costs are made of, worked out by hand on clusters with round figures.

What a search finds is compared with brute force over the same tables, so a wrong figure here would be on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tensoropt.cluster import CollectiveModel, Device, Level, Topology
from tensoropt.cost import AnalyticCost, OpCall
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import KEEPS
from tensoropt.space.breakdown import Breakdown
from tensoropt.space.space import SearchSpace
from tensoropt.space.sparse_gradient_seconds import rows_seconds
from tensoropt.space.traffic import sent_bytes
from tests.plan.small_graphs import embedding, operator

pytestmark = pytest.mark.pure

MS = 1e-3
MB = 10**6

Actions = tuple[str | None, ...]


def _cluster(
    *levels: Level, flops_per_s: float = 1e12, bytes_per_s: float = 1e9, overhead_s: float = 1 * MS
) -> Topology:
    """Devices that move a megabyte in a millisecond, as long as it takes to start an op."""
    return Topology("invented", levels, Device("chip", {"float32": flops_per_s}, bytes_per_s, 2**30, overhead_s))


def _flat(size: int, **device: float) -> Topology:
    """One level, whose links take 10 ms to begin and 1 ms for a megabyte."""
    return _cluster(Level("device", size, 10 * MS, 1e9), **device)


# ------------------------------------------------------------------------------------------------------- operators


def _seconds(
    topology: Topology, op: Operator, inputs: tuple[TensorSpec, ...], actions: Actions, gradients: int
) -> float:
    rule = rule_of(op, inputs)
    return AnalyticCost(topology).op_seconds(OpCall(op, rule, inputs, Configuration(actions), gradients))


@pytest.mark.parametrize(
    ("actions", "gradients", "expected_ms"),
    [
        # Two operands and a result of 4 MB: 12 MB forward, and the start of the op.
        ((None,), 0, 12 + 1),
        # The gradient of one operand is half of the backward pass, which moves twice the bytes: 24 / 2 MB more.
        ((None,), 1, 12 + 1 + 12 + 1),
        # That of both is all of it, and two ops start.
        ((None,), 2, 12 + 1 + 24 + 2),
        # Each of two devices moves half of all.
        (("d0",), 2, 6 + 1 + 12 + 2),
    ],
)
def test_backward_time_of_an_op_that_waits_for_memory(actions: Actions, gradients: int, expected_ms: float) -> None:
    spec = TensorSpec((1000, 1000), "float32")  # 4 MB; a million additions take a thousandth of a millisecond
    op = operator("z", "Mul", ("x", "y"), (1000, 1000))
    assert _seconds(_flat(2), op, (spec, spec), actions, gradients) == pytest.approx(expected_ms * MS)


def test_backward_flops_of_an_op_without_a_rule() -> None:
    spec = TensorSpec((10, 10), "float32")
    op = operator("y", "NobodyKnows", ("x",), (10, 10))
    rule = rule_of(op, (spec,))
    # A flop for each of the 200 elements that it reads and writes, and twice as many backward.
    assert (rule.flops, rule.backward_flops) == (200, 400)
    # At 1,000 flops a second and with memory that takes no time; every device does all of it.
    slow = _flat(2, flops_per_s=1e3, bytes_per_s=1e15, overhead_s=0.0)
    assert _seconds(slow, op, (spec,), (None,), 0) == pytest.approx(0.2)
    assert _seconds(slow, op, (spec,), (None,), 1) == pytest.approx(0.2 + 0.4)


# ----------------------------------------------------------------------------------------------------- collectives

# In a level with L for the start of a message and B for the input of a device: rounds * L + share * B of the
# algorithm that takes least.
ROUNDS = [
    # 8 devices, 3 rounds. Doubling: 3 rounds of all. Halving, then doubling: 6 rounds, 7/8 twice.
    ("all_reduce", 8, 1 * MB, 3 * 10 + 3 * 1),
    ("all_reduce", 8, 100 * MB, 6 * 10 + 2 * 7 / 8 * 100),
    # 5 devices. A tree there and back: 3 rounds each. A ring: 4 steps each, 4/5 twice.
    ("all_reduce", 5, 1 * MB, 6 * 10 + 6 * 1),
    ("all_reduce", 5, 100 * MB, 8 * 10 + 2 * 4 / 5 * 100),
    # Doubling in 3 rounds, a ring in 4 steps: the other devices' shards, or all of the own input but one's share.
    ("all_gather", 8, 1 * MB, 3 * 10 + 7 * 1),
    ("all_gather", 5, 1 * MB, 4 * 10 + 4 * 1),
    ("reduce_scatter", 8, 8 * MB, 3 * 10 + 7),
    ("reduce_scatter", 5, 5 * MB, 4 * 10 + 4),
    # Bruck: half of all in each of 3 rounds. Pairs: a message to each of the others.
    ("all_to_all", 8, 8 * MB, 3 * 10 + 3 / 2 * 8),
    ("all_to_all", 8, 800 * MB, 7 * 10 + 7 / 8 * 800),
    ("all_to_all", 5, 5 * MB, 3 * 10 + 3 / 2 * 5),
    ("all_to_all", 5, 500 * MB, 4 * 10 + 4 / 5 * 500),
    # A tree: 3 rounds of all. Scattered in 3 rounds, then gathered by a ring.
    ("broadcast", 8, 8 * MB, 3 * 10 + 3 * 8),
    ("broadcast", 8, 800 * MB, (3 + 7) * 10 + 2 * 7 / 8 * 800),
    ("broadcast", 5, 500 * MB, (3 + 4) * 10 + 2 * 4 / 5 * 500),
    ("permute", 8, 8 * MB, 10 + 8),
]


@pytest.mark.parametrize(("kind", "devices", "size_bytes", "expected_ms"), ROUNDS)
def test_rounds_and_bytes_of_a_collective(kind: str, devices: int, size_bytes: int, expected_ms: float) -> None:
    topology = _flat(devices)
    axes = tuple(range(len(topology.factor_mesh())))
    assert CollectiveModel(topology).seconds(kind, axes, size_bytes) == pytest.approx(expected_ms * MS)


# 2 hosts that take 100 ms to begin and 10 ms for a megabyte, each of 4 devices with 10 ms and 1 ms.
TWO_LEVELS = _cluster(Level("host", 2, 100 * MS, 1e8), Level("device", 4, 10 * MS, 1e9))


@pytest.mark.parametrize(
    ("kind", "axes", "expected_ms"),
    [
        # Of 8 MB. Inside: 4 devices, 2 rounds of all. Across: one round of the quarter that each has reduced.
        ("all_reduce", (0, 1, 2), 2 * 10 + 2 * 8 + 100 + 2 * 10),
        # Inside: 2 rounds, 3/4. Across: a round with half of a quarter.
        ("reduce_scatter", (0, 1, 2), 2 * 10 + 6 + 100 + 10),
        # Across: the own shard. Inside: 3 times the shards of both hosts.
        ("all_gather", (0, 1, 2), 100 + 80 + 2 * 10 + 3 * 16),
        # Across, in one round: the half for the other host. Inside: half of the other half in each of 2 rounds.
        ("all_to_all", (0, 1, 2), 100 + 40 + 2 * 10 + 4),
        # Across: a quarter each. Inside: 2 rounds of all.
        ("broadcast", (0, 1, 2), 100 + 20 + 2 * 10 + 2 * 8),
        # Somebody's piece goes to the other host.
        ("permute", (0, 1, 2), 100 + 80),
        ("permute", (0, 2), 100 + 80),
        # A group within hosts stays there.
        ("all_reduce", (1, 2), 2 * 10 + 2 * 8),
        ("permute", (2,), 10 + 8),
    ],
)
def test_a_group_over_two_levels(kind: str, axes: tuple[int, ...], expected_ms: float) -> None:
    assert CollectiveModel(TWO_LEVELS).seconds(kind, axes, 8 * MB) == pytest.approx(expected_ms * MS)


def test_an_all_to_all_of_large_pieces_sends_a_message_to_each_device_of_the_other_hosts() -> None:
    hosts = CollectiveModel(_cluster(Level("host", 4, 100 * MS, 1e8), Level("device", 2, 0.0, 1e15)))
    # To 2 devices on each of 3 other hosts; 3/4 of 800 MB. In 2 rounds it would be all of it: 200 + 8000.
    assert hosts.seconds("all_to_all", (0, 1, 2), 800 * MB) == pytest.approx((6 * 100 + 6000) * MS)


def test_a_step_is_on_the_links_of_the_outermost_level_of_its_group() -> None:
    graph = embedding()
    space = SearchSpace(graph, AnalyticCost(TWO_LEVELS))
    assert space.mesh.shape == (2, 2, 2)  # one axis of hosts, two of devices
    beside = Breakdown(space, overlap=True)
    # Bits are axes. Lane 1 is the links between hosts, 2 those within them; 0 would be the devices.
    lanes = {0b001: 1, 0b011: 1, 0b101: 1, 0b111: 1, 0b010: 2, 0b100: 2, 0b110: 2}
    assert {axes: beside.lane(axes) for axes in lanes} == lanes
    assert {Breakdown(space).lane(axes) for axes in lanes} == {0}


# --------------------------------------------------------------------------------------------------------- fan-outs


def _squares_of(size: int, readers: int) -> Graph:
    """A variable's product, squared several times through a fan-out, and the mean of the sum."""
    shape = (size, size)
    plain = {"transpose_a": False, "transpose_b": False}
    squares = [f"s{i}" for i in range(readers)]
    operators = [
        operator("x", "Placeholder", (), shape),
        operator("w", "Variable", (), shape),
        operator("h", "MatMul", ("x", "w"), shape, plain),
        operator("h/fanout0", "Fanout", ("h",), shape),
        *(operator(name, "Square", ("h/fanout0",), shape) for name in squares),
        operator("sum", "AddN", tuple(squares), shape),
        operator("loss", "Mean", ("sum",), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    ]
    edges = frozenset(
        Edge(tensor, op.name, position)
        for op in operators
        for position, tensor in enumerate(op.inputs)
        if tensor.op != "x"
    )
    return Graph(tuple(operators), frozenset(op.name for op in operators), edges)


def _point(space: SearchSpace, actions: Mapping[str, Actions]) -> tuple[int, ...]:
    """The strategy in which operators have the configurations given, and all others replicate."""
    whole = (None,) * len(space.mesh.axes)
    return space.assignment({op.name: Configuration(actions.get(op.name, whole)) for op in space.operators})


T = 100 * 100 * 4
"""Bytes of a tensor of the graph of squares."""

ROWS: dict[str, Actions] = {"x": ("d0",), "h": ("m",)}


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        # x; w and its gradient; h, which squares read backward: once, whoever reads it.
        ({}, T + 2 * T + T),
        # Rows of x, and of h and of what is made of it, on each device.
        (ROWS | {"h/fanout0": ("d0",), "s0": ("d0",), "s1": ("d0",)}, T / 2 + 2 * T + T / 2),
        # A reader that wants columns has its copy beside that which the others share.
        (ROWS | {"h/fanout0": ("d0",), "s0": ("d0",), "s1": ("d1",)}, T / 2 + 2 * T + T / 2 + T / 2),
        # Moved before the fan-out, only what it gives is read again.
        (ROWS | {"h/fanout0": (None,), "s0": (None,), "s1": (None,)}, T / 2 + 2 * T + T),
    ],
)
def test_memory_of_a_fan_out(actions: Mapping[str, Actions], expected: float) -> None:
    space = SearchSpace(_squares_of(100, 2), AnalyticCost(_flat(2)))
    assert space.problem.costs(_point(space, actions))[1].tolist() == [expected]


@pytest.mark.parametrize(("readers", "additions"), [(2, 1), (3, 2)])
def test_time_of_a_fan_out(readers: int, additions: int) -> None:
    space = SearchSpace(_squares_of(1000, readers), AnalyticCost(_flat(2)))
    whole, halves = (space.choices("h/fanout0").index(Configuration((action,))) for action in (None, "d0"))
    # Gradients of 4 MB are added one after the other: each time two are read and one is written.
    assert space.node_costs("h/fanout0", whole) == (pytest.approx(additions * 3 * 4 * MS), 0.0)
    assert space.node_costs("h/fanout0", halves) == (pytest.approx(additions * 3 * 2 * MS), 0.0)


# ------------------------------------------------------------------------------------------------ rows of a table


def test_rows_of_a_gradient_gathered_over_two_dimensions() -> None:
    space = SearchSpace(embedding(batch=8, rows=160, width=8), AnalyticCost(_flat(4)))
    actions: dict[str, Actions] = {
        # The table is whole everywhere. Lookups are split by vocabulary over one axis and by columns over the other.
        "rows": ("v", "p1"),
        # Sums of looked-up rows go to halves of the batch.
        "s": ("d0", "d1"),
        "loss": ("d0", "d1"),
    }
    point = _point(space, actions)
    held = 8 * 8 * 4 / 4  # of the looked-up rows, a device has 1/4
    forward = 4 * (1 / 2) * (2 * held)  # reduce_scatter: each of 4 devices sends half of what it has of the columns
    backward = 4 * held  # all_gather: each sends its quarter to one other
    # Rows of the gradient: each sends its quarter to one device, then both quarters of the columns to another one.
    rows = 4 * held + 4 * 2 * held
    loss = 4 * 2 * (3 / 4) * 4  # one float32, by all_reduce
    assert sent_bytes(space.plan(point, "rows")) == forward + backward + rows + loss


def test_time_of_rows_gathered_over_two_dimensions() -> None:
    cost = AnalyticCost(_flat(4))
    made, need = np.array([[0, 1]], np.int8), np.array([[-1, -1]], np.int8)
    split = np.array([[0, -1]], np.int8)
    spec = TensorSpec((10**9, 1000), "float32")
    # Rows of 8 MB, of which each of 4 devices has 2. Gathering what is in one piece of 2: a round of 10 ms and the
    # piece; the op passes over it twice, and starts.
    first, second = 10 + 2 + 2 * 2 + 1, 10 + 4 + 2 * 4 + 1
    found = rows_seconds(cost, spec, 2 * MB, np.concatenate([made, split]), np.concatenate([need, split]))
    # Split by rows of the table alone, each device has 4 MB; where the table is split alike, they stay.
    assert found.tolist() == [
        [pytest.approx((first + second) * MS), pytest.approx(first * MS)],
        [pytest.approx(second * MS), 0.0],
    ]


# ---------------------------------------------------------------------------------------------------- tensor reuse


def test_a_copy_that_is_made_again_costs_its_move_and_what_the_consumer_repeats() -> None:
    shape = (1000, 1000)
    plain = {"transpose_a": False, "transpose_b": False}
    operators = (
        operator("x", "Placeholder", (), shape),
        operator("w", "Variable", (), shape),
        operator("h", "MatMul", ("x", "w"), shape, plain),
        operator("e", "Variable", (), shape),
        # Its gradient reads both inputs and the output, which nothing else reads.
        operator("p", "Pow", ("h", "e"), shape),
        operator("loss", "Mean", ("p",), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    )
    edge = Edge(TensorId("h"), "p", 0)
    edges = frozenset(
        Edge(tensor, op.name, i) for op in operators for i, tensor in enumerate(op.inputs) if tensor.op != "x"
    )
    graph = Graph(operators, frozenset(op.name for op in operators), edges)
    space = SearchSpace(graph, AnalyticCost(_flat(2)), reuse=True)
    given = space.choices("h").index(Configuration(("m",)))
    wanted = space.choices("p").index(Configuration((None,)))
    both, before = (space.edge_costs(edge, given, wanted, KEEPS.index(keep)) for keep in ("both", "before"))
    # A gather of 2 MB: a message of 10 ms with the piece; the op passes over it twice, and starts.
    there = 10 + 2 + 2 * 2 + 1
    # The gradient comes back by a slice: the op passes over 4 MB twice, and starts.
    back = 2 * 4 + 1
    # The gradient of a product reads its inputs only, so the piece before the gather is forgotten.
    assert list(both) == [pytest.approx((there + back) * MS), 4e6]
    # If only that is kept, it is gathered once more, and the power is taken again: 4 MB each of operands and output.
    assert list(before) == [pytest.approx((there + back + there + 3 * 4 + 1) * MS), 2e6]
