"""The order of what accesses variables: what must come after what, and what need not."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tensoropt.api.frontend.effects import Accesses, accesses_before

pytestmark = pytest.mark.tf


def test_reads_come_after_writes_of_their_variable_and_writes_after_reads_and_checks_alone() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [])
        one, other = (tf.Variable(0.0, name=name) for name in ("one", "other"))
        written = one.assign_add(1.0, read_value=False)
        again = one.assign_add(1.0, read_value=False)
        again._add_control_input(written)
        with tf.control_dependencies([again]):
            read = one.read_value().op.inputs[0].op
        with tf.control_dependencies([read]):
            sample = tf.identity(x)
        with tf.control_dependencies([other.assign(sample, read_value=False)]):
            later = tf.identity(x)
        with tf.control_dependencies([tf.compat.v1.Assert(later > 0.0, [later])]):
            checked = tf.identity(x)
        check = checked.op.control_inputs[0].inputs[0].op  # what branches on the condition
    memo: Accesses = {}

    def before(variable: tf.Variable, op: tf.Operation) -> tuple[set[str], set[str]]:
        ways = [accesses_before([variable.handle], [op], memo, writes=writes) for writes in (True, False)]
        return {each.name for each in ways[0]}, {each.name for each in ways[1]}

    assert read.type == "ReadVariableOp"
    assert before(one, sample.op) == ({again.name}, {read.name})
    assert before(other, sample.op) == (set(), set())
    assert before(one, later.op) == ({again.name}, {read.name})
    assert before(one, checked.op) == ({again.name}, {check.name})
    assert before(other, checked.op)[1] == {check.name}
