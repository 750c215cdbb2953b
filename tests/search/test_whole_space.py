"""The whole space: operators on a part of the mesh, and images in pieces, planned and compared."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu, p100, v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import AT, Layout, Step, StepKind, at_state
from tensoropt.plan.configuration import Configuration, at
from tensoropt.plan.plan import Plan, row_edges
from tensoropt.space.space import SearchSpace
from tensoropt.space.sparse_gradient_seconds import rows_seconds
from tests.effort import EVERY_CASE
from tests.plan.small_graphs import assigning, embedding, mlp, operator, tied, two_lookups

pytestmark = pytest.mark.pure

GRAPHS: list[Callable[[], Graph]] = [mlp, tied, embedding, two_lookups]


def _space(graph: Graph, devices: int = 4, **more: object) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)), **{"placements": True, "halos": True, **more})  # type: ignore[arg-type]


def _random(space: SearchSpace, seed: int) -> list[int]:
    """A configuration for each operator to which all that it reads can be brought."""
    random, chosen = np.random.default_rng(seed), dict[str, int]()
    for op in space.operators:
        possible = np.ones(len(space.choices(op.name)), bool)
        for edge in (edge for edge in space.edges if edge.consumer == op.name and edge.tensor.op in chosen):
            given = chosen[edge.tensor.op]
            costs = [space.edge_costs(edge, given, wanted)[0] for wanted in range(len(possible))]
            possible &= np.isfinite(costs)
        chosen[op.name] = int(random.choice(np.flatnonzero(possible)))
    return list(chosen.values())


def _alternatives(space: SearchSpace, assignment: Sequence[int], seed: int) -> list[int]:
    """Random ones that can be had."""
    random = np.random.default_rng(seed)
    index = {op.name: position for position, op in enumerate(space.operators)}
    picks = [0] * len(space.operators)
    for edge in space.edges:
        given, wanted = assignment[index[edge.tensor.op]], assignment[index[edge.consumer]]
        able = [pick for pick in range(3) if np.isfinite(space.edge_costs(edge, given, wanted, pick)[0])]
        picks.append(int(random.choice(able)))
    return picks


def _seconds(space: SearchSpace, edge: Edge, layout: Layout, steps: Sequence[Step]) -> float:
    spec, total = space.graph.spec(edge.tensor), 0.0
    for step in steps:
        size = np.array([float(step.bytes_in(layout, spec.shape, spec.itemsize, space.mesh))])
        axes, idle = step.axes or space.mesh.axes, step.idle_axes(layout)
        total += float(space.cost.step_seconds(step.kind, axes, size, idle)[0])
        layout = step.apply(layout)
    return total


def images(batch: int = 4, size: int = 8) -> Graph:
    """A convolution of windows of three, its maxima over windows of two, and the mean of them."""
    attrs = {"data_format": "NHWC", "padding": "SAME"}
    pool = {**attrs, "ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1]}
    operators = (
        operator("x", "Placeholder", (), (batch, size, size, 4)),
        operator("w", "Variable", (), (3, 3, 4, 8)),
        operator("y", "Conv2D", ("x", "w"), (batch, size, size, 8), {**attrs, "strides": [1, 1, 1, 1]}),
        operator("a", "Relu", ("y",), (batch, size, size, 8)),
        operator("p", "MaxPool", ("a",), (batch, size // 2, size // 2, 8), pool),
        operator("loss", "Mean", ("p",), (), {"keep_dims": False}, static={1: (0, 1, 2, 3)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    )
    return _training(operators)


def branches() -> Graph:
    """Two dense layers side by side on one input, and their sum."""
    plain = {"transpose_a": False, "transpose_b": False}
    operators = (
        operator("x", "Placeholder", (), (64, 256)),
        operator("x/fanout0", "Fanout", ("x",), (64, 256)),
        operator("wl", "Variable", (), (256, 256)),
        operator("left", "MatMul", ("x/fanout0", "wl"), (64, 256), plain),
        operator("wr", "Variable", (), (256, 256)),
        operator("right", "MatMul", ("x/fanout0", "wr"), (64, 256), plain),
        operator("sum", "AddV2", ("left", "right"), (64, 256)),
        operator("loss", "Mean", ("sum",), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    )
    return _training(operators)


def _training(operators: tuple[Operator, ...]) -> Graph:
    """All of them train, and gradients go everywhere but into the input ``x``."""
    edges = frozenset(
        Edge(tensor, op.name, position)
        for op in operators
        for position, tensor in enumerate(op.inputs)
        if tensor.op not in ("x", "x/fanout0")
    )
    return Graph(operators, frozenset(op.name for op in operators), edges)


def test_by_default_nothing_is_placed_and_no_image_is_split() -> None:
    space = SearchSpace(images(), AnalyticCost(cpu(4)))
    whole = _space(images(), 4)
    for op in space.operators:
        few, every = space.choices(op.name), whole.choices(op.name)
        assert not any(configuration.at for configuration in few)
        assert set(few) <= set(every)
        assert every[-1] == few[-1] == Configuration((None, None))
    assert {"height", "width"} <= {action for c in whole.choices("y") for action in c.actions if action}
    assert any(c.at for c in whole.choices("y"))
    assert not any(c.at for c in whole.choices("loss:0/sink"))


def test_what_both_spaces_have_costs_the_same_in_both() -> None:
    space, whole = SearchSpace(images(), AnalyticCost(cpu(4))), _space(images(), 4)
    one, other = space.problem, whole.problem
    places = [[whole.choices(op.name).index(c) for c in space.choices(op.name)] for op in space.operators]
    for position, place in enumerate(places):
        assert np.array_equal(one.node_time_s[position], other.node_time_s[position][place])
    for number, (source, target) in enumerate(one.edges.tolist()):
        both = np.ix_(places[source], places[target])
        # A tensor that some configurations of its ends place may take a shorter way.
        assert np.all(other.edge_time_s[number][both] <= one.edge_time_s[number] * (1 + 1e-12))
        assert np.array_equal(one.edge_memory_bytes[number], other.edge_memory_bytes[number][both])


@pytest.mark.parametrize("make", [*GRAPHS, images, branches])
@pytest.mark.parametrize("devices", [2, 4, 6, 16] if EVERY_CASE else [6])
def test_a_plan_costs_what_the_tables_say_and_what_its_steps_cost(make: Callable[[], Graph], devices: int) -> None:
    space = _space(make(), devices)
    for seed in range(8):
        assignment = _random(space, seed)
        plan = space.plan(assignment, "random")
        plan.check(space.graph, runs=False)
        time, memory = space.problem.costs(assignment)
        assert (plan.time_s, plan.memory_bytes) == (time[0], memory[0])
        costs = [(entry.time_s, entry.memory_bytes) for entry in plan.operators.values()]
        costs += [(entry.time_s, entry.memory_bytes) for entry in plan.edges.values()]
        assert np.sum(costs, axis=0) == pytest.approx([plan.time_s, plan.memory_bytes], rel=1e-12)
        for edge in space.graph.edges():
            if edge in row_edges(space.graph, space.rules):
                continue
            given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
            wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
            entry = plan.edge(edge)
            seconds = _seconds(space, edge, given.value, entry.forward)
            seconds += _seconds(space, edge, wanted.gradient, entry.backward)
            assert entry.time_s == pytest.approx(seconds, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("make", [mlp, two_lookups, images])
def test_single_choices_cost_what_the_tables_say(make: Callable[[], Graph]) -> None:
    lazy, whole = (_space(make(), 4, reuse=True) for _ in range(2))
    problem = whole.problem
    rounding_s = problem.time_unit_s / 2
    for seed in range(6):
        assignment = _random(whole, seed)
        for position, op in enumerate(whole.operators):
            time_s, memory_bytes = lazy.node_costs(op.name, assignment[position])
            assert abs(time_s - problem.node_time_s[position][assignment[position]]) <= rounding_s
            assert memory_bytes == problem.node_memory_bytes[position][assignment[position]]
        for number, edge in enumerate(whole.edges):
            source, target = (assignment[end] for end in problem.edges[number])
            time, memory = (
                np.atleast_1d(t[number][source, target]) for t in (problem.edge_time_s, problem.edge_memory_bytes)
            )
            for pick in range(3):
                found = lazy.edge_costs(edge, source, target, pick)
                if pick < len(time):
                    assert found[0] == pytest.approx(time[pick], rel=1e-12, abs=rounding_s)
                    assert found[1] == memory[pick]
                else:
                    assert found == (np.inf, np.inf)
            assert lazy.edge_plan(edge, source, target).forward == whole.edge_plan(edge, source, target).forward
    assert not lazy._edge_costs._edges


def test_plans_with_placements_and_split_images_run_and_go_through_json() -> None:
    space = _space(images(), 4)
    split, placed = Configuration(("height", "n")), Configuration((at(1), "n"))
    plain = {op.name: space.choices(op.name)[-1] for op in space.operators}
    for changes in (
        {"y": split},
        {"w": placed_variable()},
        {"y": split, "a": Configuration((at(1), "d0"))},
        {"y": placed},
    ):
        plan = space.plan(space.assignment(plain | changes), "by hand")
        again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert again == plan and json.dumps(again.to_json()) == json.dumps(plan.to_json())
        plan.check(space.graph)


def placed_variable() -> Configuration:
    """A variable that only one of four devices stores."""
    return Configuration((at(0), at(1)))


def test_a_plan_that_names_a_place_outside_of_its_mesh_is_refused() -> None:
    space = _space(mlp(), 4)
    plan = space.plan([len(space.choices(op.name)) - 1 for op in space.operators], "by hand")
    entry = dataclasses.replace(plan.operators["h"], configuration=Configuration((at(2), None)))
    wrong = dataclasses.replace(plan, operators={**plan.operators, "h": entry})
    with pytest.raises(
        PlanError, match=r"'h': is placed at coordinate 2 of mesh axis 0, which goes from 0 to 1 on Mesh"
    ):
        wrong.check(space.graph)


def test_a_variable_is_assigned_only_where_it_is_stored() -> None:
    space = _space(assigning(), 4)
    edge = next(edge for edge in space.edges if edge.tensor.op == "v")
    stored, written = space.choices("v"), space.choices("write")
    for i, j in itertools.product(range(len(stored)), range(len(written))):
        assert np.isfinite(space.edge_costs(edge, i, j)[0]) == (stored[i] == written[j])


def test_branches_side_by_side_are_placed_on_different_halves_and_the_plan_says_so() -> None:
    space = _space(branches(), 4)
    left, right = ({"m": Configuration((at(half), "m")), "store": Configuration((at(half), None))} for half in (0, 1))
    chosen = {op.name: space.choices(op.name)[-1] for op in space.operators}
    chosen |= {"wl": left["store"], "left": left["m"], "wr": right["store"], "right": right["m"]}
    chosen |= {"sum": Configuration(("d0", "d0")), "loss": Configuration(("d0", "d0"))}
    assert [chosen[name].devices(space.mesh) for name in ("left", "right", "sum")] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    plan = space.plan(space.assignment(chosen), "by hand")
    text = plan.to_json()
    assert text["operators"]["left"]["actions"] == ["@0", "m"] and text["operators"]["right"]["actions"] == ["@1", "m"]
    assert str(plan.configuration("right")) == "@1,m"
    steps = {edge.consumer + str(edge.position): entry for edge, entry in plan.edges.items()}
    # Each branch takes its half of the devices' copies, for nothing, and its weight is where it is used.
    assert sorted(str(step) for step in steps["left0"].forward) == ["drop{0} to 0", "slice{1} dim 0"]
    assert sorted(str(step) for step in steps["right0"].forward) == ["drop{0} to 1", "slice{1} dim 0"]
    # Gradients of a weight are summed on its half only.
    assert [str(step) for step in steps["left1"].backward] == ["all_reduce{1}"] and not steps["left1"].forward
    # What both made is brought to all devices, and gradients back.
    assert {StepKind.SCATTER, StepKind.BROADCAST} & {step.kind for step in steps["sum1"].forward}
    assert {StepKind.GATHER, StepKind.DROP} & {step.kind for step in steps["sum1"].backward}
    # A half stores one weight, not both.
    weight = 256 * 256 * 4
    memory = space.device_memory(space.assignment(chosen))
    both = {**chosen, "wl": Configuration((None, None)), "wr": Configuration((None, None))}
    everywhere = space.device_memory(space.assignment(both))
    assert np.all(everywhere - memory >= 2 * weight)


@pytest.mark.parametrize("make", [mlp, tied, images] if EVERY_CASE else [tied])
def test_memory_of_the_fullest_device_is_bounded_by_the_plans(make: Callable[[], Graph]) -> None:
    space = _space(make(), 4, reuse=True)
    for seed in range(20):
        assignment = _random(space, seed)
        picks = _alternatives(space, assignment, seed)
        memory = space.device_memory(assignment, picks)
        bound = space.plan(assignment, "random", alternatives=picks).memory_bytes
        assert memory.shape == (4,) and np.all(memory >= 0)
        assert memory.max() <= bound * (1 + 1e-12)
        if not any(space.choices(op.name)[index].at for op, index in zip(space.operators, assignment, strict=True)):
            assert memory == pytest.approx([bound] * 4)


def test_memory_of_each_device_is_what_is_there() -> None:
    space = _space(mlp(batch=8, width=12, classes=4), 2)
    chosen = {op.name: Configuration((at(1),)) for op in space.operators} | {"loss:0/sink": Configuration((None,))}
    chosen |= {"x": Configuration((at(0),)), "w1": Configuration((None,))}
    memory = space.device_memory(space.assignment(chosen))
    # The input, and the first weight with its gradient, which are copied for the product.
    assert memory[0] == 4 * (8 * 6 + 2 * 6 * 12)
    assert memory[1] == space.plan(space.assignment(chosen), "by hand").memory_bytes - 4 * 8 * 6


def test_a_tensor_that_goes_from_one_device_to_another_costs_what_the_link_takes() -> None:
    space = _space(mlp(), 2)
    edge = Edge(TensorId("h"), "hb", 0)
    ends = [space.choices(name).index(Configuration((at(place),))) for name, place in (("h", 0), ("hb", 1))]
    plan = space.edge_plan(edge, *ends)
    assert [str(step) for step in plan.forward] == ["send{0} at 0 -> 1"]
    assert [str(step) for step in plan.backward] == ["send{0} at 1 -> 0"]
    level, device, size = cpu(2).levels[-1], cpu(2).device, 8 * 12 * 4
    once = level.latency_s + size / level.bandwidth_bytes_per_s  # the other device does not send
    once += device.op_overhead_s + 2 * size / device.memory_bandwidth_bytes_per_s
    assert plan.time_s == pytest.approx(2 * once, rel=1e-12)
    # Both ends hold it, and count it as if both devices held both: the copy that is sent is read nowhere else.
    assert space.edge_costs(edge, *ends) == (plan.time_s, plan.memory_bytes)


def test_work_on_one_device_counts_whole() -> None:
    space = _space(mlp(512, 512), 2)
    seconds = {c: space.node_costs("h", index)[0] for index, c in enumerate(space.choices("h"))}
    assert seconds[Configuration((at(0),))] == seconds[Configuration((at(1),))] == seconds[Configuration((None,))]
    assert seconds[Configuration(("m",))] < 0.75 * seconds[Configuration((None,))]


def test_rows_of_a_gradient_are_sent_to_where_the_table_is() -> None:
    cost = AnalyticCost(cpu(4))
    spec = TensorSpec((16, 8), "float32")

    def seconds(made: list[int], need: list[int]) -> float:
        states = (np.array([row], np.int8) for row in (made, need))
        return float(rows_seconds(cost, spec, 64, *states)[0, 0])

    def step(kind: StepKind, axes: tuple[int, ...], size: float) -> float:
        idle = axes if kind is StepKind.SEND else ()
        return float(cost.step_seconds(kind, axes, np.array([size]), idle)[0])

    size = 64 * 4.0
    assert seconds([AT, AT], [AT, AT]) == 0
    assert seconds([AT, -1], [at_state(1), -1]) == step(StepKind.SEND, (0,), size)
    assert seconds([AT, -1], [-1, -1]) == step(StepKind.BROADCAST, (0,), size)
    assert seconds([AT, -1], [-2, -1]) == 0  # the others have no rows to add
    # Rows of two lookups are brought together at the place of the table, then sent.
    assert seconds([-2, AT], [AT, at_state(1)]) == pytest.approx(
        step(StepKind.ALL_GATHER, (0,), size / 2) + step(StepKind.SEND, (1,), size)
    )


def test_a_split_image_costs_the_rims_and_network_time_has_them() -> None:
    space = _space(images(8, 64), 2, placements=False)
    conv = space.choices("y")
    split, samples = conv.index(Configuration(("height",))), conv.index(Configuration(("n",)))
    # One row of 64 x 4 elements each way; none back, as the input wants no gradient.
    rim = float(space.cost.step_seconds(StepKind.PERMUTE, (0,), np.array([8 * 64 * 4 * 4.0]))[0])
    # A half of 32 rows gets one of them, and both sides of each row get padding, in copies that
    # are written and read, once more in the backward pass.
    copies = 8 * 4 * 4.0 * (34 * 64 + 34 * 66)
    more = 2 * rim + space.cost.traffic_seconds(4 * copies)
    assert space.node_costs("y", split)[0] - space.node_costs("y", samples)[0] == pytest.approx(more, rel=1e-9)
    # Windows of two, two apart, need nothing of their neighbours.
    pool = space.choices("p")
    times = [space.node_costs("p", pool.index(Configuration((axis,))))[0] for axis in ("height", "n")]
    assert times[0] == pytest.approx(times[1])
    whole = [len(space.choices(op.name)) - 1 for op in space.operators]
    whole[[op.name for op in space.operators].index("y")] = split
    plan = space.plan(whole, "by hand")
    moved = sum(_talking(space, edge, plan) for edge in space.graph.edges())
    assert space.network_seconds(whole)[0] == pytest.approx(2 * rim + moved, rel=1e-9)


def _talking(space: SearchSpace, edge: Edge, plan: Plan) -> float:
    """Seconds of the collectives of an edge."""
    given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
    wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
    total = 0.0
    for layout, steps in ((given.value, plan.edge(edge).forward), (wanted.gradient, plan.edge(edge).backward)):
        for step in steps:
            if not step.kind.is_local:
                total += _seconds(space, edge, layout, [step])
            layout = step.apply(layout)
    return total


def test_sixty_four_devices_have_a_tractable_number_of_configurations() -> None:
    space = SearchSpace(images(64, 64), AnalyticCost(v100(8)), placements=True)
    assert len(space.mesh.axes) == 6
    assert max(len(space.choices(op.name)) for op in space.operators) < 1500
    halves = {c.devices(space.mesh) for c in space.choices("y") if len(c.devices(space.mesh)) == 32}
    assert (tuple(range(32)) in halves) and (tuple(range(32, 64)) in halves)
    singles = {c.devices(space.mesh) for c in space.choices("y") if len(c.devices(space.mesh)) == 1}
    assert len(singles) == 64


def photo(size: int = 256, channels: int = 32) -> Graph:
    """Two convolutions of one large image: samples cannot be split, and channels are few."""
    conv = {"data_format": "NHWC", "padding": "SAME", "strides": [1, 1, 1, 1]}
    shape = (1, size, size, channels)
    operators = (
        operator("x", "Placeholder", (), shape),
        operator("w1", "Variable", (), (3, 3, channels, channels)),
        operator("y1", "Conv2D", ("x", "w1"), shape, conv),
        operator("a1", "Relu", ("y1",), shape),
        operator("w2", "Variable", (), (3, 3, channels, channels)),
        operator("y2", "Conv2D", ("a1", "w2"), shape, conv),
        operator("loss", "Mean", ("y2",), (), {"keep_dims": False}, static={1: (0, 1, 2, 3)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    )
    return _training(operators)


def test_one_large_image_is_split_by_height_and_width_from_end_to_end() -> None:
    cost = AnalyticCost(p100(1))
    space, whole = (SearchSpace(photo(), cost, halos=halos) for halos in (False, True))
    frontiers = [track_frontier(each.problem) for each in (space, whole)]
    seconds = [frontier.time_s.min() for frontier in frontiers]
    assert seconds[1] < 0.95 * seconds[0]
    fastest = frontiers[1].assignments[int(np.argmin(frontiers[1].time_s))]
    chosen = {op.name: whole.choices(op.name)[index] for op, index in zip(whole.operators, fastest, strict=True)}
    for name in ("y1", "y2"):
        assert {*chosen[name].actions} <= {"height", "width"}, str(chosen[name])
    assert {*chosen["a1"].actions} <= {"d1", "d2"}
