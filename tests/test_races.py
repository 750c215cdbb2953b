"""The look-out for races finds them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.races import races

pytestmark = pytest.mark.tf


def test_two_ops_that_touch_a_variable_in_no_order_are_found() -> None:
    with tf.Graph().as_default():
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], name="v")

        def read(name: str) -> tf.Operation:
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name=name).op

        first, at_any_time = read("first"), read("at_any_time")
        with tf.control_dependencies([first]):
            write = tf.raw_ops.AssignVariableOp(resource=handle, value=[1.0, 1.0], name="write")
        other = tf.raw_ops.AssignAddVariableOp(resource=handle, value=[1.0, 1.0], name="other")
        with tf.control_dependencies([write]):
            last = read("last")
        assert races([last]) == []
        assert races([last, at_any_time]) == [("v", "write", "at_any_time")]
        assert races([first, at_any_time]) == []
        assert set(races([write, other])) == {("v", "other", "first"), ("v", "other", "write")}
