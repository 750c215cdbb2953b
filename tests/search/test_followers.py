"""Who decides for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.cost.cost_model import OpCall
from tensoropt.ft import track_frontier
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.problem.repeated_layers import repeated_layers
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.registry import get_finder
from tensoropt.space import followers, propagation
from tensoropt.space.around_variables import around_variables
from tensoropt.space.followers import contracted, follow
from tensoropt.space.layers import layers_of
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import deep, embedding, mlp, operator, two_lookups

pytestmark = pytest.mark.pure


def _space(graph: object, devices: int = 4) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(cpu(devices)))  # type: ignore[arg-type]


def _leader_of(space: SearchSpace, **options: float) -> dict[str, str]:
    leaders, _ = follow(space, **options)
    names = [op.name for op in space.operators]
    return {name: names[leader] for name, leader in zip(names, leaders.tolist(), strict=True)}


def test_products_variables_and_inputs_decide_for_themselves() -> None:
    space = _space(mlp(256, 256, 256))
    leader = _leader_of(space)
    for op in space.operators:
        if op.type in ("MatMul", "Variable", "Placeholder"):
            assert leader[op.name] == op.name
    assert any(leader[op.name] != op.name for op in space.operators)


def test_what_reads_a_possible_sum_decides_how_it_is_made_whole() -> None:
    space = _space(mlp(256, 256, 256))
    leader = _leader_of(space)
    for op in space.operators:
        if any(space.graph[tensor.op].type == "MatMul" for tensor in op.inputs) and op.type != "MatMul":
            assert leader[op.name] == op.name


def test_a_follower_takes_what_costs_least_beside_the_one_it_follows() -> None:
    space = _space(mlp(256, 256, 256))
    problem = space.problem
    leaders, index = follow(space)
    edges = {(u, v): e for e, (u, v) in enumerate(problem.edges.tolist())}
    seen = 0
    for node, leader in enumerate(leaders.tolist()):
        e = edges.get((leader, node))
        way = index[node]
        if way is None or e is None:
            continue
        seen += 1
        for k, chosen in enumerate(way.tolist()):
            total = problem.edge_time_s[e][k] + problem.node_time_s[node]
            assert total[chosen] <= total.min() * (1 + 1e-12)
    assert seen


def test_variables_too_small_to_tell_apart_follow_their_reader() -> None:
    space = _space(mlp(256, 256, 256))
    sizes = {op.name: op.outputs[0].size_bytes for op in space.operators if op.type == "Variable"}
    smallest = min(sizes, key=lambda name: sizes[name])
    decided = _leader_of(space, small_bytes=2.0 * max(4.0 * size for size in sizes.values()))
    assert decided[smallest] != smallest
    assert _leader_of(space)[smallest] == smallest


def test_two_lookups_in_one_table_are_not_tied() -> None:
    space = _space(two_lookups(), 2)
    lookups = [op.name for op in space.operators if space.rules[op.name].sparse_input is not None]
    leader = _leader_of(space)
    assert len(lookups) == 2
    assert all(leader[name] == name for name in lookups)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_strategies_of_the_contracted_problem_are_the_space_s_own(devices: int) -> None:
    space = _space(mlp(256, 256, 256), devices)
    contraction = contracted(space)
    small = contraction.problem
    assert small.nodes < space.problem.nodes
    rng = np.random.default_rng(devices)
    from tensoropt.problem.frontier import frontier_of

    for _ in range(20):
        row = np.array([[rng.integers(small.configurations(i)) for i in range(small.nodes)]])
        if small.groups is not None:
            leader = [int(np.flatnonzero(small.groups == group)[0]) for group in small.groups]
            row = row[:, leader]
        found = frontier_of(small, row, exact=False, eliminations=(), seconds=0.0)
        whole = contraction.expand(found)
        assert whole.time_s[0] == pytest.approx(found.time_s[0], rel=1e-12)
        assert whole.memory_bytes[0] == pytest.approx(found.memory_bytes[0], rel=1e-12)
        space.plan(whole.assignments[0], "random").check(space.graph)


def test_equal_layers_of_a_deep_model_decide_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    space = _space(deep(40, 256, 256))
    free = contracted(space)
    assert not free.restricts
    monkeypatch.setattr(followers, "_DEEP", 10)
    monkeypatch.setattr(followers, "repeated_layers", lambda problem: repeated_layers(problem, most_nodes=50))
    tied = contracted(space)
    assert tied.restricts
    assert tied.problem.nodes <= 60 < free.problem.nodes
    found = tied.expand(track_frontier(tied.problem, epsilon=0.01))
    assert not found.exact
    best = free.expand(track_frontier(single_cost(free.problem, "time")))
    # All layers alike is the fastest here, and what a run of layers may do.
    assert found.time_s[-1] == pytest.approx(best.time_s[-1], rel=0.01)
    for point in (0, len(found) - 1):
        space.plan(found.assignments[point], "deep", alternatives=found.alternatives[point]).check(space.graph)


def test_a_model_without_equal_layers_is_searched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_DEEP", 1)
    assert not contracted(_space(mlp(256, 256, 256))).restricts


def test_a_small_variable_whose_gradient_s_step_reads_it_again_follows_nobody_that_follows_it() -> None:
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model, leave_graph

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    rate = tensoropt.placeholder_with_default(0.1, [], name="rate")
    b = tensoropt.get_variable("b", [4])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.nn.bias_add(x, b) + b))
    gradients = tensoropt.gradients(loss, [b])
    with tensoropt.control_dependencies(gradients):  # weight decay by itself, as AdamW has it
        decay = tensoropt.assign_sub(b, rate * (0.01 * b))
    step = tensoropt.train.GradientDescentOptimizer(rate).apply_gradients([(gradients[0], b)])
    tensoropt.group(decay, step, name="train")
    graph = import_model(current_model()).graph
    leave_graph()
    space = SearchSpace(graph, AnalyticCost(cpu(2)))
    leaders, _ = follow(space, small_bytes=1e9)
    assert all(leaders[leader] == leader for leader in leaders)
    assert len(track_frontier(contracted(space).problem))


@pytest.mark.tf
@pytest.mark.parametrize("name", ["Adam", "RMSProp", "Momentum", "Ftrl", "Adadelta", "Adagrad"])
def test_slots_of_a_scalar_are_on_the_stage_of_the_variable(name: str) -> None:
    import tensoropt as to
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    y = to.placeholder(to.float32, [8, 4], name="x")
    for layer in range(3):
        w, scale = to.get_variable(f"w{layer}", [4, 4]), to.get_variable(f"scale{layer}", [])
        y = to.tanh(to.matmul(y, w) * scale)
    options = {"momentum": 0.9} if name == "Momentum" else {}
    getattr(to.train, f"{name}Optimizer")(0.1, **options).minimize(to.reduce_mean(to.square(y)))
    graph = import_model(current_model()).graph
    space = SearchSpace(graph, AnalyticCost(cpu(2)), micro_batches=2)
    found = get_finder("pipeline").find(space)
    plan = found.space.plan(found.frontier.point(0).assignment, "")
    slots = [op.name for op in graph.variables() if op.name.startswith("scale")]
    assert len(slots) > 3
    places = {name: plan.configuration(name).at for name in slots}
    assert len({*places.values()}) == 2
    assert all(place == places[name.split("/")[0]] for name, place in places.items())


@pytest.mark.tf
def test_a_moving_copy_of_a_variable_is_of_the_layer_that_reads_the_copy() -> None:
    import tensoropt as to
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    def network(name: str) -> tuple[list[Any], Any]:
        with to.variable_scope(name):
            w, scale = to.get_variable("dense/w", [4, 4]), to.get_variable("norm/scale", [4])
            return [w, scale], to.multiply(to.matmul(x, w, name="product"), scale, name="scaled")

    x = to.placeholder(to.float32, [4, 4], name="x")
    trained, y = network("student")
    copies, aim = network("teacher")
    decay = to.multiply(to.placeholder(to.float32, [], name="rate"), trained[0], name="decay")
    step = to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_mean(to.square(y - aim)), var_list=trained)
    with to.control_dependencies([step]):
        to.assign_sub(trained[0], decay)
    with to.control_dependencies([step]):
        for copy, variable in zip(copies, trained, strict=True):
            to.assign(copy, 0.9 * copy + 0.1 * variable.read_value())
    space = SearchSpace(import_model(current_model()).graph, AnalyticCost(cpu(2)))
    beside = around_variables(space)
    assert "decay" in beside and "teacher/dense/w" in beside
    assert "teacher/product" not in beside and "teacher/scaled" not in beside
    layers = layers_of(space)
    assert layers.layer["teacher/dense/w"] == layers.layer["teacher/product"] == "teacher/dense"
    assert layers.layer["teacher/norm/scale"] == "teacher/norm"
    assert layers.role["teacher/norm/scale"] == "variable"


def test_rows_are_no_variable_though_there_are_as_many() -> None:
    """A slot of a table of as many rows as there are lookups: what adds rows to it goes along with the slot."""
    graph = embedding(batch=16, rows=16, width=8)
    loss, table = "loss:0/sink", graph["table"].outputs[0]
    indices = TensorSpec((16,), "int32")
    more = (
        operator("m", "Variable", (), table.shape),
        Operator(
            "gradients/table",
            "Gradient",
            (TensorId("table"),),
            (table, indices),
            {"call": 0, "losses": (loss,), "stopped": ()},
            control_inputs=(loss,),
            handles=(0,),
        ),
        operator("half", "Const", (), (), {"value": 0.5}),
        operator("scaled", "Mul", ("gradients/table", "half"), table.shape),
        Operator(
            "added",
            "ResourceScatterAdd",
            (TensorId("m"), TensorId("gradients/table", 1), TensorId("scaled")),
            (),
            handles=(0,),
        ),
        operator("read", "ReadVariableOp", ("m",), table.shape, control_inputs=("added",), handles=(0,)),
        Operator("apply", "AssignSubVariableOp", (TensorId("table"), TensorId("read")), (), handles=(0,)),
    )
    whole = Graph((*graph.operators, *more), graph.training | {op.name for op in more}, graph.differentiable)
    space = SearchSpace(whole, AnalyticCost(cpu(2)), reuse=True)
    beside = around_variables(space)
    assert (beside["added"].leader, beside["m"].leader) == ("m", "read")
    split = ("d0",)
    found = propagation.follow(space, lambda op, followed: [split] if op.name == "ids" else [followed])
    time_s, _ = space.problem.costs(space.assignment(found.configurations))
    assert np.isfinite(time_s).all() and found.configurations["added"] == found.configurations["m"]


class _NoisyCost(AnalyticCost):
    """What operators take, times a factor of each configuration, as where few of them were measured well."""

    def __init__(self, seed: int) -> None:
        super().__init__(cpu(2 if seed % 2 else 4))
        self._draws, self._factors = np.random.default_rng(seed), dict[object, float]()

    def op_seconds(self, call: OpCall) -> float:
        key = call.op.name, call.configuration
        return super().op_seconds(call) * self._factors.setdefault(key, 10 ** self._draws.uniform(-2, 2))


@pytest.mark.tf
def test_who_follows_never_makes_a_strategy_impossible() -> None:
    """An optimizer's slot that is read again after it was assigned, as Keras's RMSprop and Adam do."""
    import tensoropt as to
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    x = to.placeholder(to.float32, [16, 6, 16], name="x")
    variables = [to.get_variable("p", [6, 16]), to.get_variable("w", [16, 16])]
    y = to.tensordot(x + variables[0], variables[1], 1)
    gradients = to.gradients(to.reduce_mean(to.square(y)), variables)
    for variable, gradient in zip(variables, gradients, strict=True):
        name = f"{variable.op.name}_velocity"
        velocity = to.get_variable(name, variable.shape, trainable=False, initializer=to.zeros_initializer())
        with to.control_dependencies([to.assign(velocity, 0.9 * velocity + 0.1 * gradient * gradient)]):
            to.assign_sub(variable, 0.01 * gradient / (to.sqrt(to.identity(velocity)) + 1e-7))
    graph = import_model(current_model()).graph
    for seed in range(12):
        space = SearchSpace(graph, _NoisyCost(seed), reuse=True)
        problem = contracted(space).problem
        assert problem.nodes < space.problem.nodes / 4
        possible = [np.isfinite(sum(problem.node_tables(node))).any() for node in range(problem.nodes)]
        assert all(possible), [
            name for name, is_possible in zip(problem.names, possible, strict=True) if not is_possible
        ]
