"""Steps split in time: which operators run for each micro-batch, on which pieces, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError, MicroBatchError, PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Step, StepKind
from tensoropt.plan.adapt import adapted
from tensoropt.plan.in_time import InTime, in_time
from tensoropt.plan.plan import EdgePlan, Plan, row_edges, rules_of
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace

pytestmark = pytest.mark.tf


def _split(loss: Any, times: int = 4) -> InTime:
    graph = _graph(loss)
    found = in_time(graph, rules_of(graph), times)
    assert found is not None
    return found


def _graph(loss: Any) -> Graph:
    to.train.GradientDescentOptimizer(0.1).minimize(to.identity(loss, name="loss"), name="train")
    return import_model(current_model()).graph


def _batch(rows: int = 8) -> Any:
    return to.placeholder(to.float32, [rows, 6], name="x")


def _weight(name: str = "w") -> Any:
    return to.get_variable(name, [6, 6], initializer=to.ones_initializer())


def test_the_batch_is_cut_and_weights_are_not() -> None:
    steps = _split(to.reduce_mean(to.square(to.matmul(_batch(), _weight(), name="y"))))
    assert [steps.graph[name].outputs[0].shape for name in ("x", "y", "w")] == [(2, 6), (2, 6), (6, 6)]
    assert steps.is_each("y")
    assert not steps.is_each("w")
    assert str(steps.layouts[TensorId("y")]) == "{0}{}"
    assert str(steps.layouts[TensorId("loss")]) == " partial{0}"
    assert steps.rules["y"].flops * 4 == rules_of(steps.whole)["y"].flops


def test_a_regularizer_enters_the_sum_once() -> None:
    w = _weight()
    loss = to.add(to.reduce_mean(to.matmul(_batch(), w)), to.nn.l2_loss(w, name="decay"), name="total")
    steps = _split(loss)
    assert not steps.is_each("decay")
    addend = next(edge for edge in steps.whole.consumers(TensorId("decay")) if edge.consumer == "total")
    assert steps.is_part(addend)
    assert steps.takes_piece(addend)


def test_what_all_micro_batches_divide_by_is_computed_from_the_whole_batch() -> None:
    mask = to.placeholder(to.float32, [8], name="mask")
    each = to.reduce_sum(to.matmul(_batch(), _weight()), axis=1) * mask
    steps = _split(to.reduce_sum(each, name="summed") / to.reduce_sum(mask, name="count"))
    assert steps.is_each("summed")
    assert not steps.is_each("count")
    assert not steps.is_each("mask")
    (reader,) = (edge for edge in steps.whole.edges() if edge.tensor.op.startswith("mask") and steps.is_border(edge))
    assert steps.split_dim(reader) == 0


def test_weights_of_open_size_may_be_of_a_loss_in_micro_batches() -> None:
    """That they fit is checked by branches of shapes, which are known once sizes are.

    They are counted by a tensor of the shape of what gradients flow through: nothing of samples is needed for that.
    """
    x, weights = (to.placeholder(to.float32, [None, size]) for size in (6, 1))
    y = to.matmul(x, _weight(), name="y")
    to.train.GradientDescentOptimizer(0.1).minimize(to.losses.mean_squared_error(y, to.tanh(y), weights=weights))
    graph = import_model(current_model(), 8).graph
    assert not [op for op in graph.operators if op.name in graph.training and op.type in ("If", "Assert")]
    steps = in_time(graph, rules_of(graph), 4)
    assert steps is not None
    assert steps.is_each("y")


def test_a_shape_is_that_of_the_whole_batch() -> None:
    y = to.matmul(_batch(), _weight())
    steps = _split(to.reduce_sum(y) / to.cast(to.shape(y, name="shape")[0], to.float32))
    assert not steps.is_each("shape")


def test_what_reads_all_samples_after_training_waits_for_the_last_micro_batch() -> None:
    y = to.matmul(_batch(), _weight())
    to.exp(to.reduce_mean(y), name="metric")
    steps = _split(to.reduce_mean(to.square(y)))
    assert "metric" in steps.after


def test_one_micro_batch_is_no_split() -> None:
    graph = _graph(to.reduce_mean(to.matmul(_batch(), _weight())))
    assert in_time(graph, rules_of(graph), 1) is None


def test_statistics_of_a_batch_are_refused_by_name() -> None:
    y = to.matmul(_batch(), _weight())
    mean = to.reduce_mean(y, axis=0, name="batch_mean")
    with pytest.raises(MicroBatchError, match=r"needs the whole sum over the batch of Mean 'batch_mean' \("):
        _split(to.reduce_mean(to.square(y - mean)))


def test_lookups_in_the_whole_batch_are_refused_by_name() -> None:
    y = to.gather(to.tanh(to.matmul(_batch(), _weight())), [7, 6, 5, 4, 3, 2, 1, 0], name="turned")
    with pytest.raises(MicroBatchError, match=r"reads what GatherV2 'turned' \(.*looks up in the whole batch"):
        _split(to.reduce_mean(to.square(y)))


def test_a_step_that_takes_its_samples_apart_first_is_refused_as_nothing_would_be_saved() -> None:
    x, w = _batch(), _weight()
    parts = [to.reduce_sum(to.square(to.matmul(rows, w))) for rows in (x[:4], x[4:])]
    with pytest.raises(MicroBatchError, match=r"StridedSlice 'strided_slice'.*computed from the whole batch then"):
        _split(to.add_n(parts))


def test_a_softmax_over_the_batch_is_refused() -> None:
    y = to.transpose(to.matmul(_batch(), _weight()))
    with pytest.raises(MicroBatchError, match=r"Softmax 'over'.*over all samples of the batch together .*of 8\)"):
        _split(to.reduce_mean(to.square(to.nn.softmax(y, name="over"))))


def test_padding_among_samples_is_refused_as_it_moves_them_from_one_micro_batch_to_another() -> None:
    y = to.pad(to.matmul(_batch(), _weight()), [[2, 2], [0, 0]], name="padded")
    with pytest.raises(MicroBatchError, match=r"Pad 'padded'.*cannot be computed from a part of the batch's samples"):
        _split(to.reduce_mean(to.square(y)))


def test_operations_that_are_one_operator_are_refused_by_the_first_of_them() -> None:
    x = _batch()
    kept = to.boolean_mask(x, x[:, 0] > 0.0, name="positive")
    with pytest.raises(MicroBatchError, match=r"samples: it is \d+ operations, from \w+ 'positive/.*only a run knows"):
        _split(to.reduce_sum(to.matmul(kept, _weight())))


def test_a_gradient_of_a_gradient_is_refused_by_who_reads_it() -> None:
    w = _weight()
    (gradient,) = to.gradients(to.reduce_mean(to.square(to.matmul(_batch(), w))), [w])
    with pytest.raises(MicroBatchError, match=r"Square 'norm'.* reads a gradient of the whole batch"):
        _split(to.reduce_sum(to.square(gradient, name="norm")))


def test_a_step_without_a_batch_is_refused() -> None:
    with pytest.raises(MicroBatchError, match=r"the step is fed none.*Leave out micro_batches"):
        _split(to.reduce_sum(to.square(_weight())))


def test_a_batch_that_micro_batches_do_not_divide_is_refused() -> None:
    with pytest.raises(MicroBatchError, match="4 of them must divide the batch, which has 6 samples"):
        _split(to.reduce_mean(to.matmul(_batch(6), _weight())))


def _plan(graph: Graph, times: int) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(2)), micro_batches=times)
    return space.plan(space.assignment(data_parallel(space)), "data_parallel")


def test_a_plan_says_how_many_there_are_and_is_checked_for_them() -> None:
    graph = _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    plan = _plan(graph, 4)
    read = Plan.from_json(plan.to_json())
    assert read.micro_batches == plan.to_json()["micro_batches"] == 4
    read.check(graph)
    assert "micro_batches" not in _plan(graph, 1).to_json()
    split_further = Plan.from_json({**plan.to_json(), "micro_batches": 8})
    with pytest.raises(PlanError, match=r"size 1.*cannot be split"):
        split_further.check(graph)


def test_gradients_are_moved_once_a_step_and_activations_for_each() -> None:
    graph = _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    whole, split = _plan(graph, 1), _plan(graph, 4)
    (weight,) = (edge for edge in split.edges if edge.tensor.op == "w" and split.edge(edge).backward)
    moved = [move for move in split.edge(weight).moves if move.kind == "all_reduce"]
    assert [move.sent_bytes for move in moved] == [
        move.sent_bytes for move in whole.edge(weight).moves if move.kind == "all_reduce"
    ]
    for entry in split.edges.values():
        if entry.moves:
            assert sum(move.seconds for move in entry.moves) == pytest.approx(entry.time_s)


def _zero(graph: Graph, name: str, times: int = 4) -> Plan:
    space = SearchSpace(graph, AnalyticCost(cpu(2)), reuse=True, micro_batches=times)
    point = get_finder(name).find(space).frontier.point(0)
    return space.plan(point.assignment, name, alternatives=point.alternatives)


def test_a_plan_says_where_gradients_go_back_in_each_micro_batch() -> None:
    graph = _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    plan = _zero(graph, "zero2")
    (weight,) = (edge for edge, entry in plan.edges.items() if entry.back_each)
    assert weight.tensor.op == "w"
    written = plan.to_json()
    assert [entry.get("back_each") for entry in written["edges"]].count(True) == 1
    read = Plan.from_json(written)
    assert read == plan and read.to_json() == written
    read.check(graph)
    assert "back_each" not in str(_zero(graph, "zero1").to_json())
    (row,) = (row for row in to.strategy_rows(plan) if "back_each" in row)
    assert (row["operator"], row["back_each"]) == (weight.consumer, [1])
    times = {move.kind: move.sent_bytes for move in plan.edge(weight).moves}
    assert times["reduce_scatter"] == 4 * times["all_gather"]
    assert sum(move.seconds for move in plan.edge(weight).moves) == pytest.approx(plan.edge(weight).time_s)


def _going_back(plan: Plan, edge: Edge) -> Plan:
    entry = dataclasses.replace(plan.edge(edge), back_each=True)
    return dataclasses.replace(plan, edges={**plan.edges, edge: entry})


def test_a_gradient_goes_back_in_each_micro_batch_only_where_it_is_summed() -> None:
    table, w = to.get_variable("table", [10, 6], initializer=to.ones_initializer()), _weight()
    words = to.placeholder(to.int32, [8], name="words")
    x = _batch() + to.nn.embedding_lookup(table, words, name="found")
    graph = _graph(
        to.add(to.reduce_mean(to.square(2.0 * to.matmul(x, w))), to.nn.l2_loss(w, name="decay"), name="total")
    )
    plan = _zero(graph, "zero1")
    for edge in (edge for edge, entry in plan.edges.items() if edge.tensor.op == "table" and not entry.backward):
        with pytest.raises(PlanError, match="back_each says how often a gradient takes"):
            _going_back(plan, edge)
    turn = Step(StepKind.ALL_REDUCE, (0,))
    steps = in_time(graph, rules_of(graph), 4)
    assert steps is not None
    addend = next(edge for edge in graph.edges() if edge.tensor.op == "decay" and edge.consumer == "total")
    inside = next(edge for edge in graph.edges() if edge in graph.differentiable and steps.is_each(edge.tensor.op))
    lookup = next(edge for edge in row_edges(graph, rules_of(graph)) if steps.is_border(edge))
    labels = next(edge for edge in graph.edges() if steps.is_border(edge) and edge not in graph.differentiable)
    for edge, reason in (
        (inside, "it does not lead from what runs once into micro-batches"),
        (addend, "each micro-batch reads a part of its own"),
        (lookup, "its gradient is rows, which are put together and not summed"),
        (labels, "no gradient comes back on it"),
    ):
        entry = EdgePlan(plan.edge(edge).forward, (turn,), back_each=True)
        with pytest.raises(PlanError, match=rf"goes back in each micro-batch, but {reason}.*Leave out 'back_each'"):
            dataclasses.replace(plan, edges={**plan.edges, edge: entry}).check(graph)
    (weight,) = (edge for edge, entry in _zero(graph, "zero2").edges.items() if entry.back_each)
    _going_back(plan, weight).check(graph)
    whole = dataclasses.replace(_going_back(plan, weight), micro_batches=1)
    with pytest.raises(PlanError, match="it does not lead from what runs once into micro-batches"):
        whole.check(graph)


def test_a_batch_of_another_size_goes_back_in_each_micro_batch_if_it_has_any() -> None:
    plan = _zero(_graph(to.reduce_mean(to.square(to.matmul(_batch(8), _weight())))), "zero3")
    for rows, times in ((24, 4), (5, 1)):
        to.reset_default_graph()
        other = _graph(to.reduce_mean(to.square(to.matmul(_batch(rows), _weight()))))
        found = adapted(plan, other)
        found.check(other)
        assert found.micro_batches == times
        assert sum(entry.back_each for entry in found.edges.values()) == (times > 1)


def test_zero_gathers_what_was_cast_where_it_is_stored() -> None:
    x, w = to.placeholder(to.bfloat16, [8, 6], name="x"), _weight()
    graph = _graph(to.cast(to.reduce_mean(to.square(to.matmul(x, to.cast(w, to.bfloat16)))), to.float32))
    for name in ("zero1", "zero2", "zero3"):
        plan = _zero(graph, name)
        plan.check(graph)
        sent = {
            (edge.tensor.op, move.kind): move.size_bytes for edge, entry in plan.edges.items() for move in entry.moves
        }
        assert {key for key in sent if key[1] != "all_reduce" and key[1] != "add"} == {
            ("Cast", "all_gather"),
            ("Cast", "reduce_scatter"),
        }
        assert sent["Cast", "all_gather"] == 6 * 6 * 2 / 2  # half of it, in 16 bits


def test_a_batch_of_another_size_has_as_many_as_divide_it() -> None:
    graph = _graph(to.reduce_mean(to.square(to.matmul(_batch(8), _weight()))))
    plan = _plan(graph, 4)
    to.reset_default_graph()
    other = _graph(to.reduce_mean(to.square(to.matmul(_batch(12), _weight()))))
    assert adapted(plan, other).micro_batches == 4
    to.reset_default_graph()
    odd = _graph(to.reduce_mean(to.square(to.matmul(_batch(6), _weight()))))
    plan_for_odd = adapted(plan, odd)
    plan_for_odd.check(odd)
    assert plan_for_odd.micro_batches == 2


def test_one_micro_batch_prices_as_none() -> None:
    graph = _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    assert SearchSpace(graph, AnalyticCost(cpu(2)), micro_batches=1).steps is None
    edge = Edge(TensorId("x"), "MatMul", 0)
    assert SearchSpace(graph, AnalyticCost(cpu(2)), micro_batches=2).moves_per_step(edge, EdgePlan()) == (2, 2)


def test_a_search_by_simulated_steps_says_that_it_has_no_micro_batches() -> None:
    _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    with pytest.raises(PlanError, match=r"search 'mcmc': .*micro_batches=2.*Leave search out"):
        to.find_strategy(topology=cpu(2), search="mcmc", micro_batches=2)


def test_auto_splits_only_where_nothing_fits_and_says_what_would() -> None:
    rows = to.matmul(_batch(8192), _weight())
    _graph(to.reduce_mean(to.square(to.tanh(to.square(to.tanh(rows))))))
    least = to.find_frontier(cpu(2), feed="global").memory_bytes[0]
    assert to.find_strategy(topology=cpu(2), feed="global", micro_batches="auto").micro_batches == 1
    with pytest.raises(InfeasibleError, match=r"split each step into 2 micro-batches \(micro_batches=2"):
        to.find_strategy(topology=cpu(2), feed="global", memory_bytes=0.7 * least)
    plan = to.find_strategy(topology=cpu(2), feed="global", memory_bytes=0.7 * least, micro_batches="auto")
    assert plan.micro_batches > 1
    assert plan.memory_bytes <= 0.7 * least


@pytest.mark.parametrize("given", [0, -1, 2.5, "many", True])
def test_a_number_of_micro_batches_is_checked(given: Any) -> None:
    _graph(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))))
    with pytest.raises(PlanError, match="micro_batches must be a whole number of at least 1, or 'auto'"):
        to.find_strategy(topology=cpu(2), micro_batches=given)


def test_samples_in_another_order_and_random_numbers_are_whole_and_cut_afterwards() -> None:
    """As mixed samples have them, and a generator whose only input is drawn."""
    x, w = _batch(), _weight()
    share = to.random_uniform([8, 1], name="share")
    mixed = to.add(share * x, (1.0 - share) * to.reverse(x, [0], name="reversed"), name="mixed")
    drawn = to.random_normal([8, 4], name="drawn")
    made = to.matmul(drawn, to.get_variable("v", [4, 4]), name="made")
    steps = _split(to.reduce_mean(to.square(to.matmul(mixed, w))) + to.reduce_mean(to.square(made - 1.0)))
    assert {"mixed", "made"} <= steps.actions.keys()
    whole = {op.name for op in steps.whole.of_type("ReverseV2", "RandomUniform", "RandomStandardNormal")}
    assert len(whole) == 3 and not whole & steps.actions.keys() and not whole & steps.after


def test_what_is_whole_stays_so_where_no_piece_of_it_will_do() -> None:
    """Random numbers that are as many as samples by chance."""
    drawn = to.random_normal([8, 4], name="drawn")
    noise = to.reduce_sum(to.square(to.cumsum(drawn, name="in_order")))
    steps = _split(to.reduce_mean(to.square(to.matmul(_batch(), _weight()))) + noise * to.reduce_sum(_weight("v")))
    assert "in_order" not in steps.actions and "MatMul" in steps.actions


def test_a_loss_by_weights_after_their_update_is_refused_as_its_gradient_would_come_too_late() -> None:
    """As a generator's is, which the discriminator judges that has just learned."""
    x, w, v = _batch(), _weight(), _weight("v")
    optimizer = to.train.GradientDescentOptimizer(0.1)
    learned = optimizer.minimize(to.reduce_mean(to.square(to.matmul(x, w))), var_list=[w])
    made = to.matmul(to.placeholder(to.float32, [8, 6], name="z"), v, name="made")
    with to.control_dependencies([learned]):
        judged = to.matmul(made, w.read_value(), name="judged")
    optimizer.minimize(to.reduce_mean(to.square(judged)), var_list=[v])
    with pytest.raises(MicroBatchError, match=r"MatMul 'judged' .*its own flow back to 'made:0', of which each"):
        graph = import_model(current_model()).graph
        in_time(graph, rules_of(graph), 2)
