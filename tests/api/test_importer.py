"""The importer: what becomes of TensorFlow's ops, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.functions import name_functions_by_content
from tensoropt.api.frontend.imported_model import ImportedModel, import_model
from tensoropt.api.frontend.reader import import_operators
from tensoropt.api.mirror.model import Model, current_model
from tensoropt.errors import GraphError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.plan.plan import rules_of

pytestmark = pytest.mark.tf

_ROOT = Path(__file__).resolve().parents[2]


def _imported(batch_size: int | None = None) -> ImportedModel:
    return import_model(current_model(), batch_size)


def _types(graph: Graph) -> dict[str, str]:
    return {op.name: op.type for op in graph.operators if op.name in graph.training}


def _readers(graph: Graph, name: str, index: int = 0) -> list[tuple[str, int]]:
    """The readers of an operator's output, but for its gradient and what takes it where it is stored."""
    edges = graph.consumers(TensorId(name, index))
    return [(edge.consumer, edge.position) for edge in edges if edge.position not in graph[edge.consumer].handles]


def test_a_model_is_read_with_its_variables_and_sinks(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 6], name="x")
    w = to.get_variable("w", [6, 4])
    loss = to.reduce_mean(to.square(to.matmul(x, w, name="h"), name="s"), name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assert _types(graph) == {
        "x": "Placeholder",
        "w": "Variable",
        "h": "MatMul",
        "s": "Square",
        "loss": "Mean",
        "loss:0/sink": "Sink",
        "gradients/0/w": "Gradient",
        "GradientDescent/learning_rate": "Const",
        "GradientDescent/update_w/ResourceApplyGradientDescent": "ResourceApplyGradientDescent",
    }
    update = graph["GradientDescent/update_w/ResourceApplyGradientDescent"]
    assert [str(tensor.op) for tensor in update.inputs] == ["w", "GradientDescent/learning_rate", "gradients/0/w"]
    assert graph["gradients/0/w"].inputs == (TensorId("w"),)
    assert graph["gradients/0/w"].control_inputs == ("loss:0/sink",)
    assert graph["h"].inputs == (TensorId("x"), TensorId("w"))
    assert graph["h"].outputs == (TensorSpec((8, 4), "float32"),)
    assert graph["h"].attrs["transpose_b"] is False
    assert graph["loss"].static[1].tolist() == [0, 1]
    assert (graph["loss"].source or "").startswith("test_importer.py:")


def test_gradients_flow_from_variables_to_losses_only(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 4], name="x")
    w, frozen = to.get_variable("w", [4, 4]), to.get_variable("frozen", [4, 4])
    h = to.matmul(x, frozen, name="h")
    y = to.matmul(h, w, name="y")
    kept = to.stop_gradient(y, name="kept")
    rounded = to.cast(to.cast(y, to.int32, name="whole"), to.float32, name="back")
    loss = to.reduce_mean(y * kept + rounded, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[w])
    graph = _imported().graph
    edges = {str(edge) for edge in graph.differentiable}
    assert "w:0 -> y[1]" in edges
    assert "loss:0 -> loss:0/sink[0]" in edges
    ends = {(edge.tensor.op, edge.consumer) for edge in graph.differentiable}
    for source, target in [("x", "h"), ("frozen", "h"), ("h", "y"), ("y/fanout0", "kept"), ("y/fanout0", "whole")]:
        assert Edge(TensorId(source), target, 0) in graph.edges() or source == "frozen"
        assert (source, target) not in ends
    assert not any(edge.consumer == "back" for edge in graph.differentiable)


def test_every_read_of_a_variable_is_the_variable(model: Model) -> None:
    v = to.get_variable("v", [4])
    with model.enter():
        again = v.read_value()
    loss = to.reduce_sum(again * v, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assert "ReadVariableOp" not in _types(graph).values()
    assert _readers(graph, "v") == [("v/fanout0", 0)]
    assert len(_readers(graph, "v/fanout0")) == 2


def test_a_tensor_that_several_read_gets_one_fan_out(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 4], name="x")
    w = to.get_variable("w", [4, 4])
    h = to.matmul(x, w, name="h")
    loss = to.reduce_mean(to.tanh(h, name="t") * to.sigmoid(h, name="g") + h, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assert _readers(graph, "h") == [("h/fanout0", 0)]
    assert [name for name, _ in _readers(graph, "h/fanout0")][:2] == ["t", "g"]
    assert len(_readers(graph, "h/fanout0")) == 3
    assert graph["h/fanout0"].type == "Fanout"


def test_a_tensor_that_one_operator_reads_twice_gets_a_fan_out(model: Model) -> None:
    w = to.get_variable("w", [4, 4])
    h = to.tanh(w, name="h")
    loss = to.reduce_mean(to.multiply(h, h, name="m"), name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assert _readers(graph, "h/fanout0") == [("m", 0), ("m", 1)]
    assert _readers(graph, "w") == [("h", 0)]


def test_constants_are_copied_for_each_reader(model: Model) -> None:
    w = to.get_variable("w", [4, 4])
    two = to.constant(np.full((4, 4), 2, np.float32), name="two")
    loss = to.reduce_mean(to.multiply(w, two, name="m") + two, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assert _readers(graph, "two") == [("m", 1)]
    assert graph["two/copy1"].type == "Const"
    assert np.array_equal(graph["two/copy1"].attrs["value"], np.full((4, 4), 2))
    assert len(_readers(graph, "two/copy1")) == 1


def test_readers_outside_of_training_change_nothing_in_it(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 4], name="x")
    w = to.get_variable("w", [4, 4])
    h = to.matmul(x, w, name="h")
    loss = to.reduce_mean(h, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    before = _imported().graph
    to.argmax(h, axis=1, name="guess")
    after = _imported().graph
    assert _types(after) == _types(before)
    assert "guess" in after and "guess" not in after.training
    assert after["guess"].inputs == (TensorId("h"),)


def test_control_inputs_that_assign_are_kept(model: Model) -> None:
    w = to.get_variable("w", [4])
    mean = to.get_variable("mean", [4], trainable=False)
    update = to.assign(mean, mean * 0.9 + w * 0.1, name="update")
    with current_model().graph.control_dependencies([update]), current_model().graph.as_default():
        loss = to.reduce_mean(to.square(w, name="s"), name="loss")
        step = to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assigns = [op for op in graph.operators if op.type == "AssignVariableOp" and op.name in graph.training]
    assert [op.inputs[0] for op in assigns] == [TensorId("mean")]
    # The read waits, and so does everything that reads it.
    assert graph["s"].inputs == (TensorId("s/ReadVariableOp"),)
    assert graph["s/ReadVariableOp"].control_inputs == (assigns[0].name,)
    assert step.name in graph


def test_a_step_waits_for_its_updates(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 6], name="x")
    w = to.get_variable("w", [6, 4])
    count = to.get_variable("count", [], to.int32, initializer=to.zeros_initializer(), trainable=False)
    bump = to.assign_add(count, 1)
    loss = to.reduce_mean(to.matmul(x, w), name="loss")
    with to.control_dependencies([bump]):
        to.train.GradientDescentOptimizer(0.1).minimize(loss)
    graph = _imported().graph
    assigns = [op.name for op in graph.operators if op.type == "AssignAddVariableOp"]
    assert assigns and set(assigns) <= graph.training


def test_operands_that_fold_to_constants_are_static(model: Model) -> None:
    x = to.placeholder(to.float32, [8, 6], name="x")
    w = to.get_variable("w", [6, 4])
    logits = to.matmul(x, w)
    labels = to.nn.softmax(logits)
    # Its shapes are slices of shapes, which TensorFlow does not fold by itself.
    loss = to.reduce_mean(to.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits))
    half = to.reshape(x, to.stack([to.shape(x)[0] // 2, -1]), name="half")
    to.train.GradientDescentOptimizer(0.1).minimize(loss + to.reduce_sum(half))
    graph = _imported().graph
    assert graph["half"].static[1].tolist() == [4, -1]
    shapes = [op.static[1] for op in graph.of_type("Reshape") if op.name.startswith("softmax_cross")]
    assert shapes and all(isinstance(shape, np.ndarray) for shape in shapes)


def test_a_batch_size_fills_in_open_shapes(model: Model) -> None:
    x = to.placeholder(to.float32, [None, 6], name="x")
    loss = to.reduce_mean(to.matmul(x, to.get_variable("w", [6, 4]), name="h"))
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert _imported(12).graph["h"].outputs[0].shape == (12, 4)
    copy = import_model(current_model(), shapes={"x": [5, 6]}).tf_graph
    assert copy.get_tensor_by_name("h:0").shape.as_list() == [5, 4]
    assert current_model().graph.get_tensor_by_name("h:0").shape.as_list() == [None, 4]


def test_an_input_that_leaves_sizes_open_has_those_of_its_default(model: Model) -> None:
    x = to.placeholder(to.float32, [None, 6], name="x")
    start = to.placeholder_with_default(to.zeros([to.shape(x)[0], 6]), [None, 6], name="start")
    fixed = to.placeholder_with_default(np.zeros((4, 6), np.float32), [None, None], name="fixed")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_mean((x + start + fixed) @ to.get_variable("w", [6, 4])))
    graph = _imported(4).graph
    assert [graph[name].outputs[0].shape for name in ("start", "fixed")] == [(4, 6), (4, 6)]
    assert (start.shape.as_list(), fixed.shape.as_list()) == ([None, 6], [None, None])


def test_values_of_a_sparse_tensor_are_no_samples(model: Model) -> None:
    """They vote by two placeholders, and are more than there are samples; what the script says counts for more."""
    bags, labels = to.sparse_placeholder(to.float32, [None, 6]), to.placeholder(to.float32, [None], name="labels")
    found = to.sparse.sparse_dense_matmul(bags, to.get_variable("w", [6, 1]))
    loss = to.reduce_mean(to.square(to.squeeze(found, 1) - labels))
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    names = {part.op.name for part in (bags.indices, bags.values)}
    shapes = {bags.indices.op.name: [35, 2], bags.values.op.name: [35], "labels": [12]}
    fingerprints = set()
    for parts, asked, samples in ((set(), None, 35), (set(), 12, 12), (names, None, 12), (names, 35, 35)):
        current_model().parts = parts
        graph = import_model(current_model(), asked, shapes=shapes).graph
        assert graph.batch_size() == samples
        fingerprints.add(graph.fingerprint())
    assert len(fingerprints) == 2  # a plan of one is not one of the other


def test_an_unknown_shape_names_the_op_and_the_line() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        y = tf.reduce_sum(x, name="y")
    with pytest.raises(
        GraphError, match=r"Placeholder 'x' \(test_importer\.py:\d+\): its output has shape \(None, 3\)"
    ):
        import_operators(graph, [y.op])


def test_a_text_that_is_fed_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        text = tf.compat.v1.placeholder(tf.string, [], name="text")
        number = tf.strings.to_number(text, name="number")
    with pytest.raises(GraphError, match=r"Placeholder 'text' .*: its output is a string tensor, which devices cannot"):
        import_operators(graph, [number.op])


def test_what_has_texts_runs_whole_on_every_device() -> None:
    with tf.Graph().as_default() as graph:
        text = tf.constant(["3", "4"], name="text")
        number = tf.strings.to_number(tf.identity(text, name="same"), name="number")
    imported = import_model(Model(graph), only=[number.op.name]).graph
    rules = rules_of(imported)
    assert [rules[name].split for name in ("text", "same", "number")] == [(), (), ()]
    # The fingerprint has the words, not where this process keeps them.
    assert imported.fingerprint() == import_model(Model(graph), only=[number.op.name]).graph.fingerprint()


def test_a_write_without_a_rule_runs_before_what_waits_for_it_on_a_variable_that_is_whole(model: Model) -> None:
    w = to.get_variable("w", [4, 2])
    memory = to.get_variable("memory", [4, 2], trainable=False)
    write = to.scatter_nd_add(memory, [[1]], to.ones([1, 2])).op
    with to.control_dependencies([write]):
        later = memory.read_value()
    looked_up = to.gather(memory, [0, 1], name="at_any_time")
    with to.control_dependencies([write]):
        looked_up += to.gather(memory, [0, 1], name="afterwards")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(w * later) * to.reduce_sum(looked_up))
    graph = _imported().graph
    assert write.name in graph.training and graph[write.name].type == "ResourceScatterNdAdd"
    assert graph[write.name].handles == (0,) and graph[write.name].inputs[0] == TensorId("memory")
    assert graph[graph[later.op.name].inputs[0].op].control_inputs == (write.name,)
    # A lookup reads the variable's value; one that waits reads it when the write is done.
    assert graph["at_any_time"].inputs[0].op == "memory"
    read = graph[graph["afterwards"].inputs[0].op]
    assert read.type == "ReadVariableOp" and read.inputs == (TensorId("memory"),)
    assert len(read.control_inputs) == 1 and graph[read.control_inputs[0]].control_inputs == (write.name,)
    rules = rules_of(graph)
    assert rules["memory"].split == () and rules["w"].split == ("d0", "d1")


def test_a_lookup_waits_for_what_its_indices_wait_for_only_where_that_writes_the_table(model: Model) -> None:
    table, moved = (to.get_variable(name, [4, 2]) for name in ("table", "moved"))
    drawn = to.random_uniform([3], maxval=4, dtype=to.int32)
    with to.control_dependencies([to.scatter_sub(moved, [1], to.ones([1, 2]))]):
        indices = to.identity(drawn)
    found = to.gather(table, indices, name="at_any_time") + to.gather(moved, indices, name="afterwards")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(found))
    graph = _imported().graph
    assert graph["at_any_time"].inputs[0].op == "table"
    read = graph[graph["afterwards"].inputs[0].op]
    assert read.type == "ReadVariableOp" and read.inputs == (TensorId("moved"),) and read.control_inputs


def test_what_waits_for_an_operation_that_cannot_run_is_refused(model: Model) -> None:
    w = to.get_variable("w", [4])
    loss = to.reduce_sum(to.square(w))
    table = tf.raw_ops.HashTableV2(key_dtype=tf.int32, value_dtype=tf.int32, name="table")
    with to.control_dependencies([tf.raw_ops.LookupTableSizeV2(table_handle=table).op]):
        to.train.GradientDescentOptimizer(0.1).minimize(to.identity(loss, name="lookup"))
    with pytest.raises(GraphError, match=r"HashTableV2 'table' .*: its output is a resource tensor, which devices"):
        _imported()


# TensorFlow has none for it; a user may give one.
@tf.RegisterGradient("ReadVariableXlaSplitND")
def _halves_gradient(op: Any, *gradients: Any) -> Any:
    return tf.concat(gradients, 0)


def test_a_gradient_through_an_operator_without_a_rule_that_reads_a_variable_is_refused(model: Model) -> None:
    w = to.get_variable("w", [4])
    with model.enter():
        halves = tf.raw_ops.ReadVariableXlaSplitND(resource=w.handle, T=tf.float32, N=2, num_splits=[2], name="halves")
        for half in halves:
            half.set_shape([2])
    to.train.GradientDescentOptimizer(0.1).minimize(halves[0][0] * w[0])
    with pytest.raises(GraphError, match=r"SplitND 'halves' .*: the loss depends on variable 'w' through it"):
        _imported()


def test_a_check_of_numbers_and_an_assertion_that_a_step_waits_for_run_with_it(model: Model) -> None:
    x = to.placeholder(to.float32, [4], name="x")
    w = to.get_variable("w", [4])
    with to.control_dependencies([to.debugging.assert_greater(x, 0.0), to.debugging.check_numerics(x, "x")]):
        read = w.read_value().op.inputs[0]
    # TensorFlow lets the constant wait, not the operator that has it for a shape.
    with to.control_dependencies([to.debugging.check_numerics(x, "x", name="check")]):
        rows = to.reshape(x, [2, 2], name="rows")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(read * x) + to.reduce_sum(rows))
    graph = _imported().graph
    waits = [graph[name] for name in graph[read.op.name].control_inputs]
    assert sorted(op.type for op in waits) == ["CheckNumerics", "Identity"]
    (branches,) = graph.of_type("If")
    assert len(branches.functions) == 2 and branches.name in graph.training
    assert graph["rows"].control_inputs == ("check",)


def test_an_operand_that_rules_go_by_and_only_a_run_knows_makes_an_operator_that_runs_whole(model: Model) -> None:
    shape = to.placeholder(to.int32, [2], name="shape")
    w = to.get_variable("w", [4, 4])
    y = to.reshape(w, shape, name="y")
    with model.enter():
        y.set_shape([8, 2])
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(y))
    graph = _imported().graph
    (whole,) = graph.of_type("Subgraph")
    assert set(whole.inputs) == {TensorId("w"), TensorId("shape")} and whole.outputs[0].shape == (8, 2)


@pytest.mark.parametrize(
    ("least", "most", "kind"), [(9, 9, "DenseBincount"), (12, 9, "DenseBincount"), (3, 9, "Subgraph")]
)
def test_a_size_that_is_capped_at_its_least_is_known(model: Model, least: int, most: int, kind: str) -> None:
    tags = to.placeholder(to.int32, [8, 3], name="tags")
    w = to.get_variable("w", [9, 4])
    with model.enter():
        counts = tf.math.bincount(tags, minlength=least, maxlength=most, dtype=tf.float32, axis=-1)
        counts.set_shape([8, 9])
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(to.matmul(counts, w)))
    assert kind in _types(_imported().graph).values()


def _masked_lookup(weights: Any) -> Any:
    """The mean of the rows of as many words as a run says, and the words."""
    words = to.placeholder(to.int32, [8], name="words")
    return to.reduce_mean(to.square(to.nn.embedding_lookup(weights, to.boolean_mask(words, words > 2)))), words


def test_what_waits_for_rows_of_a_gradient_waits_for_the_gradient(model: Model) -> None:
    w, steps = to.get_variable("w", [9, 4]), to.get_variable("steps", [], trainable=False)
    loss, words = _masked_lookup(w)
    with to.control_dependencies([steps.assign_add(1.0)]):
        loss = to.identity(loss)
    ((rows, _),) = to.train.GradientDescentOptimizer(0.1).compute_gradients(loss, [w])
    with to.control_dependencies([rows.indices.op]):
        later = w.read_value()
    write = to.scatter_sub(w, to.boolean_mask(words, words < 2), to.boolean_mask(later[:8], words < 2))
    graph = import_model(current_model()).graph
    for op in graph.needed_for([getattr(write, "op", write).name]):
        assert not {name for name in op.control_inputs if name.endswith("/indices")}, op
    assert any("gradients/0/w" in op.control_inputs for op in graph.operators)


def test_rows_of_as_many_as_a_run_says_are_written_where_the_variable_is(model: Model) -> None:
    w = to.get_variable("w", [9, 4])
    loss, _ = _masked_lookup(w)
    to.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    graph = _imported().graph
    (gradient,), (merged,) = graph.of_type("Gradient"), graph.of_type("MergeRows")
    assert [spec.shape for spec in gradient.outputs] == [spec.shape for spec in merged.outputs] == [(0, 4), (0,)]
    (update,) = graph.of_type("ResourceSparseApplyKerasMomentum") or graph.of_type("ResourceSparseApplyMomentum")
    assert TensorId(merged.name) in {
        graph[tensor.op].inputs[0] if graph[tensor.op].type == "Fanout" else tensor for tensor in update.inputs
    }
    assert not graph["w"].attrs.get("whole")


def test_groups_part_where_a_write_stands_between_them(model: Model) -> None:
    w, square = to.get_variable("w", [9, 4]), to.get_variable("square", [9, 4], trainable=False)
    loss, _ = _masked_lookup(w)
    optimizer = to.train.GradientDescentOptimizer(0.1)
    ((rows, _),) = optimizer.compute_gradients(loss, [w])
    clipped = to.clip_by_norm(rows, 0.1)
    written = square.assign(to.convert_to_tensor(to.IndexedSlices(clipped.values**2, clipped.indices, [9, 4])))
    with to.control_dependencies([written.op]):
        scale = to.gather(square.read_value(), clipped.indices)
    optimizer.apply_gradients([(to.IndexedSlices(clipped.values / scale, clipped.indices, clipped.dense_shape), w)])
    graph = _imported().graph
    (assign,) = graph.of_type("AssignVariableOp")
    groups = [op.name for op in graph.of_type("Subgraph") if op.name in graph.training]
    before = {op.name for op in graph.needed_for([assign.name])}
    assert assign.name in graph.training and {name in before for name in groups} == {True, False}
    assert assign.name in {op.name for op in graph.needed_for([groups[-1]])}


def test_a_random_operand_is_not_taken_for_a_constant(model: Model) -> None:
    w = to.get_variable("w", [4, 4])
    drawn = to.cast(to.random_uniform([1], 1, 3, to.int32), to.int32)
    y = to.roll(w, shift=drawn, axis=[0], name="y")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(y * w))
    try:
        graph = _imported().graph
    except GraphError as error:
        assert "which is not known before the graph runs" in str(error)
    else:
        assert TensorId(drawn.op.name) in graph["y"].inputs


def test_a_variable_of_unknown_shape_is_refused() -> None:
    with tf.Graph().as_default() as graph:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=tf.TensorShape(None), shared_name="v", name="v")
        read = tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), [2])
    with pytest.raises(GraphError, match=r"Variable 'v' .*: its shape is unknown"):
        import_operators(graph, [read.op])


def test_what_cannot_be_imported_may_stay_outside_of_training(model: Model) -> None:
    w = to.get_variable("w", [4])
    loss = to.reduce_sum(to.square(w), name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    with model.enter():
        tf.where(w > 0, name="places")  # their number is not known
    graph = _imported().graph
    assert "places" not in graph
    assert "loss" in graph


def test_operators_come_in_the_order_in_which_they_were_built() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        later = tf.tanh(x, name="a_later_name_first")
        y = tf.add(later, x, name="y")
    operators: list[Operator] = import_operators(graph, [y.op])
    assert [op.name for op in operators] == ["x", "a_later_name_first", "y"]
    assert [op.name for op in import_operators(graph, [y.op], known=["x"])] == ["a_later_name_first", "y"]


_PROGRAM = """
import sys
import tensoropt as to
from tensoropt.api.mirror.model import current_model
from tensoropt.api.frontend.imported_model import import_model
to.set_random_seed(int(sys.argv[1]))
x = to.placeholder(to.float32, [8, 6], name="x")
w = to.get_variable("w", [6, 4])
h = to.nn.dropout(to.matmul(x, w), rate=0.5)
to.train.AdamOptimizer().minimize(to.reduce_mean(h * h + to.constant([1.0, 2.0, 3.0, 4.0])))
print("fingerprint", import_model(current_model()).graph.fingerprint())
"""


def test_a_fingerprint_is_the_same_in_every_process_and_for_every_seed() -> None:
    found = []
    for seed, hashing in (("1", "1"), ("2", "77")):
        # Without Keras 3, which nothing here uses, TensorFlow starts in half the time.
        environment = {**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(_ROOT), "TF_USE_LEGACY_KERAS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, seed], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        found += [line for line in done.stdout.splitlines() if line.startswith("fingerprint")]
    assert len(found) == 2 and found[0] == found[1]


def test_a_fingerprint_changes_with_what_a_plan_relies_on(model: Model) -> None:
    def fingerprint(width: int, rate: float, name: str) -> str:
        to.reset_default_graph()
        w = to.get_variable(name, [4, width])
        to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(to.nn.leaky_relu(w, alpha=rate)))
        return _imported().graph.fingerprint()

    first = fingerprint(4, 0.1, "w")
    assert fingerprint(4, 0.1, "w") == first
    assert len({first, fingerprint(8, 0.1, "w"), fingerprint(4, 0.2, "w"), fingerprint(4, 0.1, "v")}) == 4


def test_functions_are_named_by_what_they_do_and_run_as_before() -> None:
    """TensorFlow numbers functions by what a process has made before."""

    def traced(before: int, factor: float) -> Any:
        for _ in range(before):
            tf.function(lambda x: -x).get_concrete_function(tf.TensorSpec([]))
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [], name="x")

            def less(y: Any) -> Any:
                return tf.cond(y > 10.0, lambda: y * 2.0, lambda: y * factor)

            tf.while_loop(lambda y: y < 100.0, less, [x], name="loop")
        definition = graph.as_graph_def()
        name_functions_by_content(definition)
        return definition

    one, same, other = traced(0, 3.0), traced(5, 3.0), traced(0, 4.0)
    assert one.SerializeToString(deterministic=True) == same.SerializeToString(deterministic=True)
    assert {f.signature.name for f in one.library.function} != {f.signature.name for f in other.library.function}
    with tf.Graph().as_default() as graph:
        for name, definition in (("one", one), ("other", other)):  # both, in one graph
            tf.graph_util.import_graph_def(definition, name=name)
        loops = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
        with tf.compat.v1.Session(graph=graph) as session:
            found = session.run([loop.outputs[2] for loop in loops], {"one/x:0": 2.0, "other/x:0": 2.0})
    assert found == [144.0, 128.0]
