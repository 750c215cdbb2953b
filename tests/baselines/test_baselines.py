"""Baselines in the search space: what they do, and that none of them beats the frontier."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tensoropt.baselines import apply_baseline
from tensoropt.baselines.baseline import alternatives_of, fixed_alternatives
from tensoropt.baselines.logical_dimensions import logical_dimensions
from tensoropt.baselines.mesh_tensorflow import mesh_tensorflow
from tensoropt.baselines.optcnn import fastest
from tensoropt.cluster.presets import v100
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError, PlanError
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Graph
from tensoropt.plan.configuration import Configuration
from tensoropt.problem import Frontier, Problem, brute_force
from tensoropt.problem.restriction import restricted
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import convolutions, embedding, mlp, remembering, tied

pytestmark = pytest.mark.pure

# Those that apply to any graph whose sizes devices divide.
_GRAPHS = (mlp(), tied(), embedding(), remembering())
_GENERAL = ("data_parallel", "mesh_tensorflow", "optcnn", "tofu", "zero2", "zero3")


def _space(graph: Graph, devices: int = 4, *, reuse: bool = True) -> SearchSpace:
    cost = AnalyticCost(v100(1).with_device_count(devices))
    return SearchSpace(graph, cost, reuse=reuse)


def _configurations(space: SearchSpace, frontier: Frontier, point: int = 0) -> dict[str, str]:
    chosen = frontier.assignments[point].tolist()
    return {op.name: str(space.choices(op.name)[k]) for op, k in zip(space.operators, chosen, strict=True)}


@pytest.mark.parametrize("name", _GENERAL)
@pytest.mark.parametrize("graph", _GRAPHS, ids=["mlp", "tied", "embedding", "remembering"])
def test_no_baseline_beats_the_frontier(graph: Graph, name: str) -> None:
    space = _space(graph)
    frontier = track_frontier(space.problem, threads=1)
    assert frontier.exact
    found = apply_baseline(name, space)
    for point in range(len(found)):
        best = frontier.best(float(found.memory_bytes[point]))
        assert best.time_s <= found.time_s[point]
    time_s, memory_bytes = space.problem.costs(found.assignments, found.alternatives)
    assert time_s.tolist() == found.time_s.tolist()
    assert memory_bytes.tolist() == found.memory_bytes.tolist()


@pytest.mark.parametrize("graph", [mlp(), tied(), embedding()], ids=["mlp", "tied", "embedding"])
def test_optcnn_is_the_fastest_point_of_the_frontier(graph: Graph) -> None:
    space = _space(graph)
    best = track_frontier(space.problem, threads=1).best()
    (found,) = apply_baseline("optcnn", space).time_s.tolist()
    assert found == pytest.approx(best.time_s, rel=1e-8)


def _least_time_of_an_integer_program(problem: Problem) -> float:
    """Seconds of the fastest strategy, by a solver that shares nothing with our searches (HiGHS, through SciPy).

    One variable of 0 or 1 per configuration and per pair of an edge's ends: each node takes one configuration, and the
    pairs of an edge add up to what its ends take.
    """
    sizes = [problem.configurations(node) for node in range(problem.nodes)]
    starts = np.cumsum([0, *sizes])
    costs = [problem.node_tables(node)[0].min(axis=-1) for node in range(problem.nodes)]
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    wanted: list[float] = []

    def equal(terms: list[tuple[np.ndarray, float]], right: float) -> None:
        for which, value in terms:
            rows.append(np.full(len(which), len(wanted)))
            columns.append(which)
            values.append(np.full(len(which), value))
        wanted.append(right)

    for node, start in enumerate(starts[:-1].tolist()):
        equal([(np.arange(start, start + sizes[node]), 1.0)], 1.0)
    count = int(starts[-1])
    for edge, ends in enumerate(problem.edges.tolist()):
        table = problem.edge_tables(edge)[0].min(axis=-1)
        pairs = count + np.arange(table.size).reshape(table.shape)
        for axis, node in enumerate(ends):
            for k in range(sizes[node]):
                equal([(pairs.take(k, axis=axis), 1.0), (np.array([starts[node] + k]), -1.0)], 0.0)
        costs.append(table.reshape(-1))
        count += table.size
    cost = np.concatenate(costs)
    possible = np.isfinite(cost)
    sums = coo_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), (len(wanted), count))
    scale = 1.0 / float(np.median(cost[possible & (cost > 0)]))
    found = milp(
        np.where(possible, cost, 0.0) * scale,
        constraints=LinearConstraint(sums.tocsr(), wanted, wanted),
        integrality=np.ones(count),
        bounds=Bounds(0, possible.astype(float)),
        options={"mip_rel_gap": 0.0},
    )
    assert found.status == 0, found.message
    return float(found.fun / scale)


@pytest.mark.parametrize(
    ("graph", "devices"),
    [(mlp(), 4), (tied(), 4), (embedding(), 4), (convolutions(), 2)],
    ids=["mlp", "tied", "embedding", "convolutions"],
)
def test_optcnn_finds_what_an_integer_program_finds(graph: Graph, devices: int) -> None:
    """Over its own space, the operators that decide; and over all strategies none is faster in these graphs."""
    space = _space(graph, devices)
    (found,) = apply_baseline("optcnn", space).time_s.tolist()
    assert found == pytest.approx(_least_time_of_an_integer_program(contracted(space).problem), rel=1e-6)
    assert found == pytest.approx(_least_time_of_an_integer_program(space.problem), rel=1e-6)


def test_of_equally_fast_strategies_the_smallest_is_taken() -> None:
    problem = Problem(["a", "b"], [[1.0, 1.0, 2.0], [3.0, 3.0]], [[5.0, 4.0, 1.0], [2.0, 7.0]])
    found = fastest(problem)
    assert found.assignments.tolist() == [[1, 0]]


def test_fastest_says_that_nothing_is_possible() -> None:
    with pytest.raises(InfeasibleError, match="has only infinite time"):
        fastest(Problem(["a"], [[np.inf]], [[1.0]]))


def test_tofu_splits_every_tensor_that_sizes_allow() -> None:
    graph = mlp(batch=8, width=16, classes=4)
    space = _space(graph)
    found = apply_baseline("tofu", space)
    chosen = _configurations(space, found)
    for name, configuration in chosen.items():
        op = graph[name]
        if op.outputs and op.outputs[0].elements >= 4 and op.type not in ("Sink", "Mean"):
            assert "*" not in configuration.split(","), (name, configuration)
    data_parallel = apply_baseline("data_parallel", space)
    assert found.memory_bytes[0] < data_parallel.memory_bytes[0]


def test_tofu_keeps_the_copy_before_a_move() -> None:
    space = _space(mlp(batch=8, width=16, classes=4))
    found = apply_baseline("tofu", space)
    both = space.problem.costs(found.assignments)[1]
    assert found.memory_bytes[0] <= both[0]


def test_mesh_tensorflow_has_data_parallelism_among_its_layouts() -> None:
    space = _space(mlp(), reuse=False)
    data_parallel = apply_baseline("data_parallel", space)
    found = mesh_tensorflow(space)
    assert found.best(float(data_parallel.memory_bytes[0])).time_s <= data_parallel.time_s[0]


def test_mesh_tensorflow_splits_a_name_alike_everywhere() -> None:
    space = _space(mlp(batch=8, width=12))
    dimensions = logical_dimensions(space.graph, space.operators, space.rules)
    found = mesh_tensorflow(space)
    for point in range(len(found)):
        split: dict[str, set[tuple[int, ...]]] = {}
        for op, k in zip(space.operators, found.assignments[point].tolist(), strict=True):
            configuration: Configuration = space.choices(op.name)[k]
            for axis in space.rules[op.name].split:
                if (op.name, axis) in dimensions.of_axis:
                    split.setdefault(dimensions.of_axis[op.name, axis], set()).add(configuration.mesh_axes(axis))
        assert all(len(ways) == 1 for ways in split.values()), split


def test_names_follow_dimensions_through_the_graph() -> None:
    space = _space(mlp(batch=8, width=12, classes=4))
    dimensions = logical_dimensions(space.graph, space.operators, space.rules)
    of_axis = dimensions.of_axis
    assert of_axis["x", "d0"] == of_axis["h", "m"] == of_axis["a", "d0"]
    assert of_axis["w1", "d1"] == of_axis["h", "n"] == of_axis["b1", "d0"] == of_axis["w2", "d0"]
    assert dimensions.sizes[of_axis["h", "n"]] == 12
    batch, width = sorted([of_axis["h", "m"], of_axis["h", "n"]])
    assert (batch, width) in dimensions.together


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(
        PlanError,
        match="'horovod': must be one of 'columns', 'ft', 'pase', 'pipeline', 'data_parallel', 'gnmt', 'megatron', ",
    ):
        apply_baseline("horovod", _space(mlp()))


def test_data_parallelism_does_not_apply_to_a_batch_that_devices_do_not_divide() -> None:
    with pytest.raises(PlanError, match=r"'data_parallel': does not apply because .*has a batch of 6, which 4 devices"):
        apply_baseline("data_parallel", _space(mlp(batch=6)))


def test_mesh_tensorflow_does_not_apply_where_nothing_divides() -> None:
    space = SearchSpace(mlp(batch=5, width=11, classes=9), AnalyticCost(v100(1).with_device_count(7)))
    with pytest.raises(PlanError, match="does not apply because no named dimension is divisible by a mesh of 7"):
        mesh_tensorflow(space)


def test_mesh_tensorflow_leaves_out_ranks_of_too_many_layouts_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    space = _space(mlp())
    whole, lines = mesh_tensorflow(space), mesh_tensorflow(space, max_mesh_rank=1)
    assert whole.exact and whole.searched is None
    assert len(whole) > len(lines)
    monkeypatch.setattr(sys.modules["tensoropt.baselines.mesh_tensorflow"], "MAX_LAYOUTS", 4)
    found = mesh_tensorflow(space)
    assert found.assignments.tolist() == lines.assignments.tolist()
    assert not found.exact
    assert found.searched == "meshes were left out: 4 names have more than 4 layouts on 2 x 2 devices"
    monkeypatch.setattr(sys.modules["tensoropt.baselines.mesh_tensorflow"], "MAX_LAYOUTS", 2)
    with pytest.raises(
        PlanError, match=r"does not apply because 4 names have more than 2 layouts on 4 devices\. Use few"
    ):
        mesh_tensorflow(space)


def test_mesh_tensorflow_keeps_to_fewer_names_where_only_more_have_too_many_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    space = _space(mlp(width=6))  # as wide as the input: the two may have one name
    monkeypatch.setattr(sys.modules["tensoropt.baselines.mesh_tensorflow"], "MAX_LAYOUTS", 10)
    found, lines = mesh_tensorflow(space), mesh_tensorflow(space, max_mesh_rank=1)
    assert len(found) > len(lines)
    assert lines.exact and not found.exact
    assert found.searched == (
        "dimensions of one size have one name on some meshes: 4 names have more than 10 layouts on 2 x 2 devices"
    )


def test_a_restricted_problem_has_the_costs_of_what_it_keeps() -> None:
    rng = np.random.default_rng(0)
    problem = Problem(
        ["a", "b"], [rng.random(3), rng.random(4)], [rng.random(3), rng.random(4)], [(0, 1)], [rng.random((3, 4))]
    )
    smaller, kept = restricted(problem, [[0, 2], [1, 3]])
    for assignment in brute_force(smaller).assignments:
        whole = [int(indices[k]) for indices, k in zip(kept, assignment, strict=True)]
        assert smaller.costs(assignment) == problem.costs(whole)


def test_a_fixed_alternative_that_does_not_exist_is_the_first() -> None:
    time_s = np.array([[[1.0, 5.0, 9.0], [2.0, np.inf, 9.0]]])
    problem = Problem(["a", "b"], [[0.0], [0.0, 0.0]], [[0.0], [0.0, 0.0]], [(0, 1)], [time_s], [time_s])
    fixed = fixed_alternatives(problem, 1)
    assert fixed.edge_time_s[0].tolist() == [[5.0, 2.0]]
    assert alternatives_of(problem, [0, 0], 1).tolist() == [0, 0, 1]
    assert alternatives_of(problem, [0, 1], 1).tolist() == [0, 0, 0]


def test_names_of_one_size_may_be_one_where_they_meet() -> None:
    space = _space(mlp(batch=8, width=6))  # as wide as the input: two dimensions of one variable
    apart, renamed = (
        logical_dimensions(space.graph, space.operators, space.rules, renamed=renamed) for renamed in (False, True)
    )
    assert apart.of_axis["w1", "d0"] != apart.of_axis["w1", "d1"]
    assert renamed.of_axis["w1", "d0"] == renamed.of_axis["w1", "d1"]
    assert renamed.of_axis["h", "m"] != renamed.of_axis["h", "n"]
