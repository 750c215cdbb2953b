"""Functions, branches, loops and custom gradients, as they are imported."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.frontend.rewriting import loops
from tensoropt.api.mirror.model import Model, current_model
from tensoropt.cluster import preset
from tensoropt.cost import AnalyticCost
from tensoropt.errors import GraphError
from tensoropt.graph.graph import Graph
from tensoropt.plan.plan import rules_of
from tensoropt.space.repeated_cells import repeated_cells
from tensoropt.space.space import SearchSpace

pytestmark = pytest.mark.tf


def _recorded(y: Any) -> Model:
    loss = to.reduce_mean(to.square(y), name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    return current_model()


def _graph(y: Any) -> Graph:
    return import_model(_recorded(y)).graph


def _types(graph: Graph) -> Counter[str]:
    return Counter(op.type for op in graph.operators if op.name in graph.training)


def _input() -> Any:
    w = to.get_variable("w", [4, 4])
    return to.matmul(to.placeholder(to.float32, [8, 4], name="x"), w), w


def test_gradient_that_is_computed_point_by_point_is_split(model: Any) -> None:
    graph = _graph(tf.nn.silu(_input()[0]))
    assert _types(graph)["IdentityN"] == 1
    assert rules_of(graph)["IdentityN"].split == ("d0", "d1")


def test_any_other_gradient_of_ones_own_is_replicated(model: Any) -> None:
    @to.custom_gradient
    def centred(y: Any) -> Any:
        return tf.identity(y), lambda dy: dy - tf.reduce_mean(dy)

    graph = _graph(centred(_input()[0]))
    assert rules_of(graph)["IdentityN"].split == ()


def test_block_that_is_to_be_computed_again_is_written_out(model: Any) -> None:
    x, w = _input()
    inner = tf.recompute_grad(lambda h: to.tanh(to.matmul(h, w)))
    types = _types(_graph(tf.recompute_grad(lambda h: inner(h) + h)(x)))
    assert types["IdentityN"] == 0 and types["MatMul"] == 2


@pytest.mark.parametrize("captures", ["the argument", "another tensor"])
def test_block_that_takes_what_has_a_gradient_from_outside_is_not(model: Any, captures: str) -> None:
    x, w = _input()
    outside = x if captures == "the argument" else to.tanh(x)
    graph = _graph(tf.recompute_grad(lambda h: to.matmul(h, w) + outside)(x))
    assert _types(graph)["IdentityN"] == 1


def test_gradient_function_that_fails_is_tensorflows_error_where_gradients_are_made(model: Any) -> None:
    @to.custom_gradient
    def broken(y: Any) -> Any:
        return tf.identity(y), lambda dy: tf.matmul(dy, dy)

    with pytest.raises(ValueError, match="Dimensions must be equal"):
        _graph(broken(_input()[0]))


@tf.RegisterGradient("TensoroptTestOfOutputs")
def _of_outputs(op: Any, dy: Any) -> Any:
    return dy * tf.cast(op.outputs[0] > 0.0, dy.dtype)


def test_overridden_gradient_may_read_what_its_op_gives(model: Any) -> None:
    x, _ = _input()
    with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": "TensoroptTestOfOutputs"}):
        y = tf.nn.relu(x, name="guided")
    types = _types(_graph(y))
    assert types["Relu"] == 1 and types["IdentityN"] == 1


@tf.RegisterGradient("TensoroptTestOfWhatFollows")
def _of_what_follows(op: Any, dy: Any) -> Any:
    return dy * tf.reduce_sum(op.graph.get_tensor_by_name("later:0"))


def test_overridden_gradient_that_reads_what_follows_its_op_is_refused(model: Any) -> None:
    x, _ = _input()
    with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": "TensoroptTestOfWhatFollows"}):
        y = tf.nn.relu(x, name="guided")
    later = tf.exp(y, name="later")
    with pytest.raises(GraphError, match=r"Relu 'guided'.*gradient function reads 'later:0', which is computed from"):
        _graph(later)


def test_branches_that_compute_are_chosen_by_a_select(model: Any) -> None:
    y, _ = _input()
    graph = _graph(to.cond(to.reduce_sum(y) > 0, lambda: y * 2, lambda: to.tanh(y)))
    types = _types(graph)
    assert types["Select"] == 1 and not any("If" in kind or kind == "Subgraph" for kind in types)


def test_branches_of_a_learning_rate_are_imported(model: Any) -> None:
    step = to.train.get_or_create_global_step()
    rate = tf.compat.v1.train.piecewise_constant(step, [10], [0.1, 0.01])
    loss = to.reduce_mean(_input()[0])
    to.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    assert any(op.type == "Select" for op in import_model(current_model()).graph.operators)


def test_loop_of_known_turns_is_unrolled_and_its_turns_share_configurations(model: Any) -> None:
    y, w = _input()
    graph = _graph(to.while_loop(lambda i, z: i < 6, lambda i, z: (i + 1, to.tanh(to.matmul(z, w))), [0, y])[1])
    assert _types(graph)["Tanh"] == 6
    assert (graph["while/turn_3/Tanh"].source or "").startswith("test_custom_gradients.py:")
    space = SearchSpace(graph, AnalyticCost(preset("v100", hosts=1)))
    groups = dict(zip(space.problem.names, repeated_cells(space).tolist(), strict=True))
    assert len({groups[f"while/turn_{turn}/Tanh"] for turn in range(1, 6)}) == 1


def test_turns_of_a_loop_draw_behind_one_another(model: Any) -> None:
    y, _ = _input()
    drawn = to.while_loop(
        lambda i, z: i < 3, lambda i, z: (i + 1, z + to.random.uniform([8, 4], seed=3)), [0, to.zeros_like(y)]
    )
    graph = _graph(drawn[1] + y)
    drawing = [op for op in graph.operators if op.type == "RandomUniform"]
    assert len({op.attrs["generator"] for op in drawing}) == 1 and {op.attrs["seed2"] for op in drawing} == {3}
    counts = [graph[op.inputs[-1].op].attrs["value"].tolist() for op in drawing]
    assert counts == [[0, 32], [32, 64], [64, 96]]


def test_loop_of_unknown_turns_is_one_operator(model: Any) -> None:
    y, w = _input()
    turns = to.while_loop(lambda z: to.reduce_sum(z) < 9.0, lambda z: z + to.square(to.matmul(z, w)), [y])
    graph = _graph(turns[0] if isinstance(turns, list) else turns)
    assert _types(graph)["Subgraph"] == 1
    (loop,) = (op for op in graph.operators if op.type == "Subgraph" and op.name in graph.training)
    assert rules_of(graph)[loop.name].split == ()
    assert any(edge.consumer == loop.name for edge in graph.differentiable)


def test_loop_of_unknown_turns_in_turns_of_another_one_has_its_functions_made_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, w = _input()
    looked_at = []
    turns_from = loops._turns_from

    def noted(*args: Any) -> Any:
        looked_at.append(args)
        return turns_from(*args)

    monkeypatch.setattr(loops, "_turns_from", noted)

    def turn(i: Any, z: Any) -> Any:
        return i + 1, to.nn.softmax(
            to.while_loop(lambda z: to.reduce_sum(z) < 9.0, lambda z: z + to.square(z @ w), [z])
        )

    imported = import_model(_recorded(to.while_loop(lambda i, z: i < 3, turn, [0, y])[1]))
    kept = [op for op in imported.tf_graph.get_operations() if op.type == "StatelessWhile"]
    assert len(kept) == 3 and len({op.get_attr("body").name for op in kept}) == 1
    assert len(looked_at) == 2


def test_loop_of_unknown_turns_that_assigns_is_refused(model: Any) -> None:
    y, _ = _input()
    count = to.get_variable("count", [], initializer=to.zeros_initializer(), trainable=False)

    def turn(z: Any) -> Any:
        with tf.control_dependencies([to.assign_add(count, 1.0)]):
            return z * 2.0

    with pytest.raises(GraphError, match=r"While 'while': .* depends on data.* Let a loop carry"):
        _graph(to.while_loop(lambda z: to.reduce_sum(z) < 9.0, turn, [y]))


def test_tensors_of_unknown_shapes_are_in_one_operator_with_what_reads_them(model: Any) -> None:
    y, _ = _input()
    chosen = to.boolean_mask(y, to.reduce_sum(y, 1) > 0)
    graph = _graph(to.reduce_sum(chosen) / to.cast(to.shape(chosen)[0], to.float32))
    assert _types(graph)["Subgraph"] == 1


def test_what_is_constant_amid_unknown_shapes_is_so_for_all_gradients(model: Any) -> None:
    y, w = _input()
    kept = to.boolean_mask(y, y[:, 0] > 0)
    beside = kept * 3.0
    to.group(w.assign_sub(to.gradients(to.reduce_sum(kept * beside), w, stop_gradients=[beside])[0]), name="one")
    graph = import_model(current_model()).graph
    bodies = [op.body for op in graph.operators if op.body is not None and op.name in graph.training]
    assert [node.op for body in bodies for node in body.node].count("StopGradient") == 1
    to.group(w.assign_sub(to.gradients(to.reduce_sum(beside), w)[0]), name="other")
    with pytest.raises(GraphError, match="constant for one gradient and not for another one"):
        import_model(current_model())


def test_silu_has_tensorflows_values_and_imports(model: Any) -> None:
    values = np.linspace(-3.0, 3.0, 8).astype(np.float32)
    x = to.placeholder(to.float32, [8], name="x")
    y = to.nn.silu(x, beta=1.5)
    with tf.compat.v1.Session(graph=y.graph) as session:
        found = session.run(y, {x: values})
    np.testing.assert_allclose(found, values / (1 + np.exp(-1.5 * values)), rtol=1e-6)
