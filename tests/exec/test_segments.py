"""Heavy ops of the backward pass stay between the collectives that were made before and after them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.program.calling import callable_of
from tensoropt.exec.schedule.segments import keep_segments

pytestmark = pytest.mark.tf


class _Program:
    """Products of a fed matrix, between ops that stand for collectives."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        self.collectives: list[Any] = []
        with self.graph.as_default():
            self.x = tf.compat.v1.placeholder(tf.float32, [4, 4])

    def meet(self, x: Any) -> Any:
        with self.graph.as_default(), tf.control_dependencies(self.collectives[-1:]):
            y = tf.negative(x)
        self.collectives.append(y.op)
        return y

    def product(self, x: Any) -> Any:
        with self.graph.as_default():
            return tf.linalg.matmul(x, x)

    def reshaped(self, x: Any) -> Any:
        with self.graph.as_default():
            return tf.reshape(x, [16])

    def keep(self, *tensors: Any, first: int = 0, backward: int = 0) -> int:
        names = {op.name for op in self.collectives}
        return keep_segments([tensor.op for tensor in tensors], names, first, backward)


def test_what_was_made_before_a_collective_runs_before_it() -> None:
    program = _Program()
    product = program.product(program.x)
    met = program.meet(program.x)
    assert program.keep(program.reshaped(product), met) == 1
    assert list(met.op.control_inputs) == [product.op]


def test_what_was_made_after_a_collective_runs_after_it() -> None:
    program = _Program()
    first, second = program.meet(program.x), program.meet(program.x)
    product = program.product(program.x)
    assert program.keep(program.reshaped(product), second) == 1
    assert list(product.op.control_inputs) == [second.op]
    assert not first.op.control_inputs


def test_gradients_of_volumes_filters_are_kept_as_those_of_images_are() -> None:
    program = _Program()
    with program.graph.as_default():
        volume = tf.reshape(program.x, [1, 2, 2, 2, 2])
        gradient = tf.raw_ops.Conv3DBackpropFilterV2(
            input=volume, filter_sizes=[1, 1, 1, 2, 2], out_backprop=volume, strides=[1] * 5, padding="SAME"
        )
        read = tf.reshape(gradient, [4])
    met = program.meet(program.x)
    assert program.keep(read, met) == 1
    assert list(met.op.control_inputs) == [gradient.op]


def test_what_waits_anyway_waits_for_nothing_else() -> None:
    program = _Program()
    product = program.product(program.meet(program.x))
    assert program.keep(program.meet(program.reshaped(product))) == 0


def test_what_may_be_computed_with_its_reader_is_left_alone() -> None:
    program = _Program()
    product = program.product(program.x)
    met = program.meet(program.x)
    with program.graph.as_default():
        biased = tf.nn.bias_add(product, tf.ones([4]))
    assert program.keep(biased, met) == 0


def test_what_is_not_needed_is_left_alone() -> None:
    program = _Program()
    program.product(program.x)  # nobody reads it
    assert program.keep(program.meet(program.x)) == 0


def test_a_collective_waits_for_the_forward_pass_before_it() -> None:
    program = _Program()
    first = program.product(program.x)
    second = program.product(first)
    with program.graph.as_default():
        end = tf.nn.relu(tf.nn.bias_add(second, tf.ones([4])))
    met = program.meet(program.x)
    backward = len(program.graph.get_operations())
    # Products that the last one needs are waited for with it, and what may be computed with it is left together.
    assert program.keep(end, met, backward=backward) == 1
    (seen,) = met.op.control_inputs
    assert seen.type == "Slice" and seen.inputs[0] is end
    assert not any(op.control_inputs for op in (first.op, second.op, end.op))
    with tf.compat.v1.Session(graph=program.graph) as session:
        np.testing.assert_array_equal(session.run(met, {program.x: np.ones([4, 4], np.float32)}), -np.ones([4, 4]))


def test_the_forward_pass_after_a_collective_is_not_held_back() -> None:
    program = _Program()
    met = program.meet(program.x)
    product = program.product(program.x)
    backward = len(program.graph.get_operations())
    assert program.keep(program.reshaped(product), met, backward=backward) == 0


def test_an_op_that_was_made_late_and_is_waited_for_early_closes_no_circle() -> None:
    program = _Program()
    gradient = program.product(program.x)
    early = program.product(program.x)
    met = program.meet(program.reshaped(early))
    update = program.reshaped(program.product(gradient))
    early.op._add_control_input(update.op)
    end = program.meet(met)
    program.keep(end, update)
    with tf.compat.v1.Session(graph=program.graph) as session:
        x = np.eye(4, dtype=np.float32)
        np.testing.assert_array_equal(session.run(end, {program.x: x}), x.reshape(-1))


def test_operations_that_wait_for_each_other_are_an_error() -> None:
    with tf.Graph().as_default() as graph:
        first, second = tf.no_op(), tf.no_op()
        first._add_control_input(second)
        second._add_control_input(first)
        with tf.compat.v1.Session(graph=graph) as session, pytest.raises(tf.errors.OpError):
            callable_of(session, [first], [])()
