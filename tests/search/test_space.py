"""Search spaces: tables that agree with the plans made from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tensoropt.cluster import Topology
from tensoropt.cluster.presets import cpu, v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Coarsening, Layout, Mesh, Step, StepKind
from tensoropt.plan.configuration import DEFER, Configuration
from tensoropt.plan.plan import Plan, row_edges
from tensoropt.plan.tensor_reuse import reverse_steps
from tensoropt.space.space import SearchSpace, feed_layout
from tests.plan.small_graphs import assigning, embedding, mlp, operator, tied, trained_mlp, two_lookups

pytestmark = pytest.mark.pure

GRAPHS: list[Callable[[], Graph]] = [mlp, tied, embedding, two_lookups]


def _space(graph: Graph, devices: int = 4, **more: object) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)), **more)  # type: ignore[arg-type]


def _random(space: SearchSpace, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(random.integers(len(space.choices(op.name)))) for op in space.operators]


def _seconds(space: SearchSpace, edge: Edge, layout: Layout, steps: Sequence[Step]) -> float:
    spec, total = space.graph.spec(edge.tensor), 0.0
    for step in steps:
        size = np.array([float(step.bytes_in(layout, spec.shape, spec.itemsize, space.mesh))])
        total += float(space.cost.step_seconds(step.kind, step.axes or space.mesh.axes, size)[0])
        layout = step.apply(layout)
    return total


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("devices", [1, 2, 4, 6, 8])
def test_tables_have_a_row_per_configuration(make: Callable[[], Graph], devices: int) -> None:
    space = _space(make(), devices)
    problem = space.problem
    counts = [len(space.choices(name)) for name in problem.names]
    assert list(problem.names) == [op.name for op in space.graph.operators]
    assert [len(time) for time in problem.node_time_s] == counts
    assert [len(memory) for memory in problem.node_memory_bytes] == counts
    edges = space.graph.edges()
    assert len(problem.edges) == len(edges)
    for (source, target), edge, time in zip(problem.edges.tolist(), edges, problem.edge_time_s, strict=True):
        assert (problem.names[source], problem.names[target]) == (edge.tensor.op, edge.consumer)
        assert time.shape == (counts[source], counts[target])
        assert np.all(np.isfinite(time))


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("devices", [1, 4, 6])
def test_a_plan_costs_what_the_tables_say_and_what_its_steps_cost(make: Callable[[], Graph], devices: int) -> None:
    space = _space(make(), devices)
    for seed in range(20):
        assignment = _random(space, seed)
        plan = space.plan(assignment, "random")
        plan.check(space.graph)
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
            assert not (entry.backward and edge not in space.graph.differentiable)


@pytest.mark.parametrize("make", GRAPHS)
def test_the_assignment_of_a_plan_is_the_one_it_was_made_from(make: Callable[[], Graph]) -> None:
    space = _space(make(), 6)
    for seed in range(10):
        assignment = _random(space, seed)
        plan = space.plan(assignment, "random")
        found = space.assignment({name: entry.configuration for name, entry in plan.operators.items()})
        assert found == tuple(assignment)


def test_a_configuration_that_is_no_choice_is_named() -> None:
    space = _space(mlp(), 4)
    whole = {op.name: space.choices(op.name)[-1] for op in space.operators}
    with pytest.raises(PlanError, match=r"Placeholder 'x': configuration d1,d1 is not one of its \d+ on Mesh\(2x2\)"):
        space.assignment(whole | {"x": Configuration(("d1", "d1"))})


def test_tables_do_not_depend_on_the_process() -> None:
    one, other = (_space(mlp(), 8).problem for _ in range(2))
    for left, right in zip(one.edge_time_s + one.node_time_s, other.edge_time_s + other.node_time_s, strict=True):
        assert np.array_equal(left, right)


def test_only_the_allowed_configurations_are_chosen_from() -> None:
    only = (Configuration(("d0", "d0")),)
    space = _space(mlp(), 4, allowed={"x": only})
    assert space.choices("x") == only
    assert space.problem.node_time_s[0].shape == (1,)
    assert space.plan(_random(space, 0), "random").configuration("x") == only[0]


def test_an_allowed_list_is_as_good_as_a_tuple() -> None:
    only = [Configuration(("d0", "d0"))]
    assert _space(mlp(), 4, allowed={"x": only}).problem.node_time_s[0].shape == (1,)


def test_a_variable_is_assigned_only_as_it_is_stored() -> None:
    space = _space(assigning(), 4)
    problem = space.problem
    edge = [tuple(pair) for pair in problem.edges.tolist()].index(
        (problem.names.index("v"), problem.names.index("write"))
    )
    stored, written = space.choices("v"), space.choices("write")
    for i, one in enumerate(stored):
        for j, other in enumerate(written):
            assert np.isfinite(problem.edge_time_s[edge][i, j]) == (one == other)


def test_a_gradient_counts_for_trained_variables_only() -> None:
    def memory(graph: Graph, name: str) -> float:
        space = _space(graph, 1)
        return float(space.problem.node_memory_bytes[space.problem.names.index(name)][0])

    assert memory(mlp(), "w1") == 2 * 6 * 12 * 4
    assert memory(assigning(), "v") == 8 * 4 * 4


def test_an_update_lies_as_what_it_takes_in_place_and_costs_what_it_reads_there() -> None:
    graph = trained_mlp()
    space = _space(graph, 2)
    problem = space.problem
    place = problem.names.index
    update, gradient = space.choices("update"), space.choices("gradients/w1")
    for name in ("w1", "w1/m"):
        edge = [tuple(pair) for pair in problem.edges.tolist()].index((place(name), place("update")))
        for i, one in enumerate(space.choices(name)):
            for j, other in enumerate(update):
                assert np.isfinite(problem.edge_time_s[edge][i, j]) == (one == other)
    # 6x12 floats each: the variable, its slot and its gradient.
    whole = 3 * 6 * 12 * 4
    for j, one in enumerate(update):
        pieces = 2 ** sum(action is not None for action in one.actions)
        wanted = space.cost.update_seconds("ResourceApplyMomentum", whole / pieces)
        assert problem.node_time_s[place("update")][j] == pytest.approx(wanted)
    assert len(gradient) == len(update) and not np.any(problem.node_time_s[place("gradients/w1")])


def test_activations_count_where_the_backward_pass_needs_them() -> None:
    space = _space(mlp(), 1)
    plan = space.plan([0] * len(space.operators), "hand")
    # The output of Relu, which its gradient and MatMul's read: counted on the edge, shown as the producer's.
    assert _edge_memory(space, "a")[0, 0] == plan.operators["a"].memory_bytes == 8 * 12 * 4
    assert _edge_memory(space, "h")[0, 0] == 0  # BiasAdd does not need its input back
    assert plan.operators["loss"].memory_bytes == 0
    assert plan.edges == {}


def _edge_memory(space: SearchSpace, producer: str) -> np.ndarray:
    """The memory of the edge from an operator with one reader."""
    ends = [space.problem.names[source] for source, _ in space.problem.edges.tolist()]
    return space.problem.edge_memory_bytes[ends.index(producer)]


def test_a_reshard_that_is_kept_counts_its_copy() -> None:
    space = _space(mlp(), 2)
    whole = {op.name: space.choices(op.name)[-1] for op in space.operators}
    plan = space.plan(space.assignment(whole | {"y": Configuration(("k",))}), "hand")
    edge = plan.edge(Edge(TensorId("a"), "y", 0))
    assert [step.kind.value for step in edge.forward] == ["slice"]
    assert edge.memory_bytes == 8 * 6 * 4


def test_gradients_of_a_shared_variable_are_reduced_once_where_its_fan_out_defers() -> None:
    space = _space(tied(), 2)
    split = {op.name: space.choices(op.name)[-1] for op in space.operators}
    split |= {"x": Configuration(("d0",)), "h": Configuration(("m",)), "y": Configuration(("m",))}

    def kinds(configuration: Configuration) -> dict[str, list[str]]:
        plan = space.plan(space.assignment(split | {"w/fanout0": configuration}), "hand")
        plan.check(space.graph)
        return {
            str(edge): [step.kind.value for step in entry.backward]
            for edge, entry in plan.edges.items()
            if edge.tensor.op.startswith("w") and entry.backward
        }

    assert kinds(Configuration((DEFER,))) == {"w:0 -> w/fanout0[0]": ["all_reduce"]}
    at_once = kinds(Configuration((None,)))
    assert at_once == {"w/fanout0:0 -> h[1]": ["all_reduce"], "w/fanout0:0 -> y[1]": ["all_reduce"]}


def test_operators_outside_of_training_get_the_cheapest_configuration() -> None:
    graph = mlp()
    extra = operator("probe", "Relu", ("hb",), (8, 12))
    graph = Graph((*graph.operators, extra), graph.training, graph.differentiable)
    space = _space(graph, 4)
    assert "probe" not in space.problem.names
    split = {op.name: space.choices(op.name)[-1] for op in space.operators}
    plan = space.plan(space.assignment(split | {"hb": Configuration(("d0", "c"))}), "hand")
    plan.check(graph)
    assert plan.configuration("probe") == Configuration(("d0", "d1"))
    assert plan.edge(Edge(TensorId("hb"), "probe", 0)).forward == ()
    assert plan.time_s == space.problem.costs(_index(space, plan))[0][0]


def _index(space: SearchSpace, plan: Plan) -> tuple[int, ...]:
    return space.assignment({op.name: plan.configuration(op.name) for op in space.operators})


def test_rows_of_an_embedding_cost_less_to_bring_home_than_the_table() -> None:
    space = SearchSpace(embedding(rows=100_000), AnalyticCost(v100(1)))
    problem = space.problem
    edge = [tuple(pair) for pair in problem.edges.tolist()].index(
        (problem.names.index("table"), problem.names.index("rows"))
    )
    whole = space.choices("table").index(Configuration((None, None, None)))
    # The batch is the axis of the numbers that are looked up.
    axis = space.rules["rows"].inputs[1][0][0]
    batch = space.choices("rows").index(Configuration((axis,) * 3))
    table_bytes = 100_000 * 8 * 4
    assert 0 < problem.edge_time_s[edge][whole, batch] < table_bytes / 100e9


def test_inputs_are_fed_by_their_first_dimension() -> None:
    mesh = Mesh((2, 3))
    assert feed_layout(TensorSpec((12, 5), "float32"), mesh) == Layout(((0, 1), ()))
    assert feed_layout(TensorSpec((8, 6), "float32"), mesh) is None
    assert feed_layout(TensorSpec((), "float32"), mesh) is None


def _topology(devices: int) -> Topology:
    return v100(1).with_device_count(devices) if devices <= 8 else v100(devices // 8)


@pytest.mark.parametrize("devices", [2, 4, 8, 16, 64, 1024])
def test_the_usual_strategies_are_in_the_space(devices: int) -> None:
    space = SearchSpace(mlp(2048, 1024, 1024), AnalyticCost(_topology(devices)))
    axes = len(space.mesh.axes)
    for data in range(axes + 1):
        inner = axes - data
        # Over the outer axes data parallelism, over the inner ones tensor parallelism.
        assert Configuration(("m",) * data + ("n",) * inner) in space.choices("h")
        assert Configuration(("m",) * data + ("k",) * inner) in space.choices("y")
        # The same with variables that are split over all devices, as ZeRO does.
        assert Configuration(("d0",) * data + ("d1",) * inner) in space.choices("w2")
        assert Configuration(("d0",) * axes) in space.choices("w2")
        assert Configuration((None,) * data + ("d1",) * inner) in space.choices("w2")


@pytest.mark.parametrize(("devices", "blocks"), [(16, 2), (16, 3), (64, 2), (1024, 3)])
def test_a_large_mesh_has_a_few_hundred_configurations_and_a_plan_of_any_runs(devices: int, blocks: int) -> None:
    graph = mlp(2048, 1024, 1024)
    cost = AnalyticCost(_topology(devices))
    coarsening = Coarsening(blocks=blocks, borders=cost.topology.level_borders())
    space = SearchSpace(graph, cost, reuse=True, coarsening=coarsening)
    counts = [len(space.choices(op.name)) for op in space.operators]
    assert max(counts) < {2: 80, 3: 300}[blocks]
    for seed in range(5):
        assignment = _random(space, seed)
        alternatives = _random_alternatives(space, assignment, seed)
        plan = space.plan(assignment, "random", alternatives=alternatives)
        plan.check(graph)
        assert plan.notes["coarsening"]["blocks"] == blocks
        time, memory = space.problem.costs(assignment, alternatives)
        assert (plan.time_s, plan.memory_bytes) == (time[0], memory[0])
        _check_edges(space, plan)


def _random_alternatives(space: SearchSpace, assignment: Sequence[int], seed: int) -> np.ndarray:
    """A random possible alternative of every edge."""
    random, problem = np.random.default_rng(seed), space.problem
    picks = [0] * problem.nodes
    for (source, target), time in zip(problem.edges.tolist(), problem.edge_time_s, strict=True):
        entry = time[assignment[source], assignment[target]]
        picks.append(int(random.choice(np.flatnonzero(np.isfinite(entry)))) if entry.ndim else 0)
    return np.array(picks)


def _check_edges(space: SearchSpace, plan: Plan) -> None:
    """What the plan says of each edge is what its steps cost, made again ones included."""
    for edge in space.graph.edges():
        if edge in row_edges(space.graph, space.rules):
            continue
        entry = plan.edge(edge)
        given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
        wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
        seconds = _seconds(space, edge, given.value, entry.forward)
        if entry.keep == "before":
            seconds *= 2
        elif entry.keep == "after":
            seconds += _seconds(space, edge, wanted.value, reverse_steps(given.value, entry.forward))
        seconds += _seconds(space, edge, wanted.gradient, entry.backward)
        assert entry.time_s == pytest.approx(seconds, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("devices", [1, 4, 6])
def test_a_plan_with_alternatives_costs_what_its_steps_do(make: Callable[[], Graph], devices: int) -> None:
    space = _space(make(), devices, reuse=True)
    kept = set()
    for seed in range(20):
        assignment = _random(space, seed)
        alternatives = _random_alternatives(space, assignment, seed)
        plan = space.plan(assignment, "random", alternatives=alternatives)
        plan.check(space.graph)
        kept |= {entry.keep for entry in plan.edges.values()}
        costs = [(entry.time_s, entry.memory_bytes) for entry in plan.operators.values()]
        costs += [(entry.time_s, entry.memory_bytes) for entry in plan.edges.values()]
        assert np.sum(costs, axis=0) == pytest.approx([plan.time_s, plan.memory_bytes], rel=1e-12)
        _check_edges(space, plan)
    if make is mlp and devices > 1:
        assert kept == {"both", "before", "after"}
    if devices == 1:
        assert kept <= {"both"}


def _edge_between(space: SearchSpace, producer: str, consumer: str) -> int:
    names = space.problem.names
    pairs = [(names[source], names[target]) for source, target in space.problem.edges.tolist()]
    return pairs.index((producer, consumer))


def test_a_sharded_variable_may_be_gathered_again_rather_than_kept() -> None:
    space = _space(mlp(), 2, reuse=True)
    edge = _edge_between(space, "w2", "y")
    sharded = space.choices("w2").index(Configuration(("d0",)))
    batch = space.choices("y").index(Configuration(("m",)))
    time = space.problem.edge_time_s[edge][sharded, batch]
    memory = space.problem.edge_memory_bytes[edge][sharded, batch]
    whole = 12 * 4 * 4
    assert memory.tolist() == [whole, 0, np.inf]
    spec = space.graph.spec(TensorId("w2"))
    gather = space.cost.step_seconds(StepKind.ALL_GATHER, (0,), np.array([spec.size_bytes / 2]))[0]
    assert time[1] - time[0] == pytest.approx(gather)
    plain = _space(mlp(), 2)
    assert plain.problem.edge_time_s[edge].shape == (len(plain.choices("w2")), len(plain.choices("y")))
    assert plain.problem.edge_memory_bytes[edge][sharded, batch] == whole


def test_one_of_two_copies_may_be_kept_where_producer_and_consumer_read_theirs() -> None:
    space = _space(mlp(), 2, reuse=True)
    edge = _edge_between(space, "a", "y")
    relu = space.choices("a").index(Configuration(("d0",)))
    product = space.choices("y").index(Configuration(("k",)))
    time = space.problem.edge_time_s[edge][relu, product]
    memory = space.problem.edge_memory_bytes[edge][relu, product]
    half = 8 * 12 * 4 / 2
    # Two halves, or one of them; they cost the same to make again, so that one of the single ones is needless.
    assert memory.tolist() == [2 * half, half, np.inf]
    assert time[1] > time[0]
    whole = space.choices("y").index(Configuration((None,)))
    # Gathering takes longer than to cut the piece out of the whole, which takes more memory.
    assert space.problem.edge_memory_bytes[edge][relu, whole].tolist() == [3 * half, half, 2 * half]


def test_alternatives_that_never_pay_are_left_out() -> None:
    for make in GRAPHS:
        problem = _space(make(), 4, reuse=True).problem
        for time, memory in zip(problem.edge_time_s, problem.edge_memory_bytes, strict=True):
            if time.ndim == 3:
                assert np.all(np.isfinite(time) == np.isfinite(memory))
                for one, other in itertools.permutations(range(3), 2):
                    both = np.isfinite(time[..., one]) & np.isfinite(time[..., other])
                    worse = (time[..., one] >= time[..., other]) & (memory[..., one] >= memory[..., other])
                    assert not np.any(both & worse)


def test_equal_operators_and_edges_share_their_tables() -> None:
    problem = _space(two_lookups(), 8, reuse=True).problem
    names = problem.names
    assert problem.node_time_s[names.index("one")].base is problem.node_time_s[names.index("other")].base
    tables = {
        (names[source], names[target]): time.base
        for (source, target), time in zip(problem.edges.tolist(), problem.edge_time_s, strict=True)
    }
    assert tables["table/fanout0", "one"] is tables["table/fanout0", "other"]


@pytest.mark.parametrize("make", GRAPHS)
def test_network_time_is_that_of_the_steps_in_which_devices_talk(make: Callable[[], Graph]) -> None:
    space = _space(make(), 6, reuse=True)
    strategies = [_random(space, seed) for seed in range(10)]
    alternatives = [_random_alternatives(space, one, seed) for seed, one in enumerate(strategies)]
    seconds = space.network_seconds(strategies, alternatives)
    for one, picks, found in zip(strategies, alternatives, seconds, strict=True):
        plan = space.plan(one, "random", alternatives=picks)
        expected = 0.0
        for edge in space.graph.edges():
            entry = plan.edge(edge)
            given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
            wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
            paths = [(given.value, entry.forward), (wanted.gradient, entry.backward)]
            if entry.keep == "before":
                paths.append((given.value, entry.forward))
            elif entry.keep == "after":
                paths.append((wanted.value, reverse_steps(given.value, entry.forward)))
            for layout, steps in paths:
                for step in steps:
                    expected += 0.0 if step.kind.is_local else _seconds(space, edge, layout, [step])
                    layout = step.apply(layout)
            if edge in row_edges(space.graph, space.rules):
                expected += entry.time_s - sum(_seconds(space, edge, layout, steps) for layout, steps in paths)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)
        assert 0 <= found <= plan.time_s
    assert space.network_seconds(strategies[0]).shape == (1,)


def test_the_largest_temporary_is_noted() -> None:
    space = _space(mlp(), 2, reuse=True)
    whole = {op.name: space.choices(op.name)[-1] for op in space.operators}
    assignment = list(space.assignment(whole | {"w1": Configuration(("d0",))}))
    # The first product: its gradient (8x12) and its weight's (6x12); the input's is not wanted.
    least = 4 * (8 * 12 + 6 * 12)
    # BiasAdd: its gradient, its input's and its bias's. The second product: 8x12, 12x4 and 8x4.
    largest = max(least, 4 * (8 * 12 + 8 * 12 + 12), 4 * (8 * 12 + 12 * 4 + 8 * 4))
    assert space.plan(assignment, "hand").notes["largest_temporary_bytes"] == largest
    picks = np.zeros(space.problem.nodes + len(space.problem.edges), np.int64)
    picks[space.problem.nodes + _edge_between(space, "w1", "h")] = 1
    again = space.plan(assignment, "hand", alternatives=picks).notes["largest_temporary_bytes"]
    assert again == least + 4 * 6 * 12  # and the weight, gathered again
