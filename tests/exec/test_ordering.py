"""The order of a training step: variables are updated in place, and weights' gradients are not put off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.schedule.ordering import Backward, ancestors, readers

pytestmark = pytest.mark.tf


class _Chain:
    """Two dense layers with their gradients, as the executor builds them."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf.compat.v1.placeholder(tf.float32, [4, 8])
            self.variables = [
                tf.compat.v1.Variable(tf.ones(shape), use_resource=True) for shape in ([8, 8], [8, 8], [8, 2])
            ]
            self.reads = [variable.read_value() for variable in self.variables]
            hidden = self.x
            self.products = []
            for read in self.reads:
                self.products.append(tf.linalg.matmul(hidden, tf.identity(read)))
                hidden = tf.tanh(self.products[-1])
            self.loss = tf.reduce_sum(hidden)
            self.built = len(self.graph.get_operations())
            self.gradients = tf.gradients(self.loss, self.reads)

    def updates(self) -> list[Any]:
        """Adds the ops that update the variables, as the executor does."""
        live = ancestors([*self.gradients, self.loss])
        made = []
        with self.graph.as_default():
            rate = tf.constant(0.5)
        with self.graph.as_default():
            for variable, read, gradient in zip(self.variables, self.reads, self.gradients, strict=True):
                with tf.control_dependencies(readers(read, live)):
                    made.append(
                        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
                    )
        return made

    def of_weight(self, layer: int) -> Any:
        """The op that makes the gradient of a layer's weight."""
        return self.gradients[layer].op

    def of_input(self, layer: int) -> Any:
        """The op that makes the gradient of a layer's input."""
        name = f"gradients/{self.products[layer].op.name}_grad/MatMul"
        return self.graph.get_operation_by_name(name)


def test_an_update_waits_for_all_that_read_the_variable_and_are_needed() -> None:
    chain = _Chain()
    for layer, update in enumerate(chain.updates()):
        expected = {chain.products[layer].op} | ({chain.of_input(layer)} if layer else set())
        # Nobody needs the gradient of the first layer's input: waiting would compute it.
        assert set(update.control_inputs) == expected


def test_variables_are_updated_in_place() -> None:
    chain = _Chain()
    with chain.graph.as_default():
        update = tf.group(*chain.updates())
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
            metadata = tf.compat.v1.RunMetadata()
            feed = {chain.x: np.ones((4, 8), np.float32)}
            session.run(update, feed)  # now the variables no longer share memory with their initial values
            session.run(update, feed, options, metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    updates = [node for node in nodes if "= ResourceApplyGradientDescent(" in node.timeline_label]
    assert len(updates) == 3
    # A copy of the variable would be allocated here.
    assert [sum(memory.total_bytes for memory in node.memory) for node in updates] == [0, 0, 0]


def test_the_backward_pass_goes_on_after_the_gradient_of_the_weight() -> None:
    chain = _Chain()
    assert Backward(chain.gradients, chain.built).wait_for_gradients() == 2
    for layer in (1, 2):
        before = next(op for op in chain.graph.get_operations() if chain.of_weight(layer) in op.control_inputs)
        # The next op of the backward pass that reads a tensor of the forward pass.
        assert before.type == "TanhGrad" and before.inputs[0] is chain.products[layer].op.inputs[0]
    assert not any(chain.of_weight(0) in op.control_inputs for op in chain.graph.get_operations())


def test_an_order_changes_no_number() -> None:
    found = []
    for ordered in (False, True):
        chain = _Chain()
        with chain.graph.as_default():
            if ordered:
                Backward(chain.gradients, chain.built).wait_for_gradients()
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32) / 100
                found.append(session.run(chain.gradients, {chain.x: x}))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_readers_of_a_table_are_found_and_rows_stay_rows() -> None:
    with tf.Graph().as_default() as graph:
        table = tf.compat.v1.Variable(tf.ones([16, 4]), use_resource=True).read_value()
        rows = tf.gather(tf.identity(table), tf.constant([3, 5, 3]))
        unused = tf.reduce_max(table)
        loss = tf.reduce_sum(tf.square(rows))
        built = len(graph.get_operations())
        gradients = tf.gradients(loss, [table])
        Backward(gradients, built).wait_for_gradients()
        found = readers(table, ancestors([loss, *gradients]))
        assert rows.op in found and unused.op not in found
        assert isinstance(gradients[0], tf.IndexedSlices)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_array_equal(session.run(gradients[0].indices), [3, 5, 3])
            np.testing.assert_array_equal(session.run(gradients[0].values), 2 * np.ones((3, 4)))


def _with_updates(collectives: frozenset[str]) -> tuple[_Chain, list[Any], int]:
    """A chain with its updates: the ops that update, and how many ops wait for them."""
    chain = _Chain()
    backward = Backward(chain.gradients, chain.built)
    updates = chain.updates()
    return chain, updates, backward.wait_for_updates([[update] for update in updates], collectives)


def test_the_backward_pass_goes_on_after_the_update() -> None:
    chain, updates, added = _with_updates(frozenset())
    assert added == 2
    waiting = [[op for op in chain.graph.get_operations() if update in op.control_inputs] for update in updates]
    ops = [[op.type for op in found if op.type == "TanhGrad"] for found in waiting]
    assert ops == [[], ["TanhGrad"], ["TanhGrad"]]


def test_nothing_waits_for_an_update_that_waits_for_a_collective() -> None:
    made = _Chain().of_weight(1).name
    _, _, added = _with_updates(frozenset({made}))
    assert added == 1


def test_an_update_that_needs_all_gradients_is_not_waited_for() -> None:
    chain = _Chain()
    backward = Backward(chain.gradients, chain.built)
    with chain.graph.as_default():
        chain.gradients, _ = tf.clip_by_global_norm(chain.gradients, 1.0)
    assert backward.wait_for_updates([[update] for update in chain.updates()], ()) == 0
