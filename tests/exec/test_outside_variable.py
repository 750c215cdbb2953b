"""One storage for a variable of eager code and of a local graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.exec.program.outside_variable import OutsideVariable

pytestmark = pytest.mark.tf


class _Both:
    """A variable of eager code, and its twin in a graph with a session."""

    def __init__(self, value: Any, dtype: str) -> None:
        self.eager = tf.Variable(value, dtype=dtype)
        graph = tf.Graph()
        with graph.as_default():
            self.inside = OutsideVariable(self.eager.handle, tuple(self.eager.shape), dtype, "scope/variable")
            self.fed = tf.compat.v1.placeholder(dtype, self.eager.shape)
            self.assign = self.inside.assign(self.fed, read_value=False)
            numeric = self.eager.dtype != tf.bool
            self.add = self.inside.assign_add(self.fed, read_value=False) if numeric else None
        self.session = tf.compat.v1.Session(graph=graph)
        self.session.run(self.inside.link)

    def run(self, what: Any, value: Any = None) -> Any:
        return self.session.run(what, {} if value is None else {self.fed: value})


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_what_one_side_writes_the_other_reads(dtype: str, shape: tuple[int, ...]) -> None:
    both = _Both(np.zeros(shape), dtype)
    one = np.ones(shape)
    both.run(both.assign, one)
    np.testing.assert_array_equal(both.eager.numpy(), one)
    both.eager.assign(tf.zeros(shape, dtype))
    np.testing.assert_array_equal(both.run(both.inside), np.zeros(shape))
    if both.add is not None:
        both.run(both.add, one)
        both.eager.assign_add(tf.ones(shape, dtype))
        np.testing.assert_array_equal(both.run(both.inside), 2 * one)
    both.inside.load(one)
    np.testing.assert_array_equal(both.run(both.inside), one)


def test_functions_that_were_traced_before_and_datasets_read_it() -> None:
    kept = tf.Variable([1.0, 2.0])
    doubled = tf.function(lambda: kept * 2.0)
    rows = tf.data.Dataset.range(1).map(lambda _: kept + 1.0)
    doubled()
    graph = tf.Graph()
    with graph.as_default():
        inside = OutsideVariable(kept.handle, (2,), "float32", "kept")
        add = inside.assign_add([1.0, 1.0], read_value=False)
    session = tf.compat.v1.Session(graph=graph)
    session.run(inside.link)
    for steps in range(1, 4):
        session.run(add)
        np.testing.assert_array_equal(doubled(), [2.0 + 2 * steps, 4.0 + 2 * steps])
        np.testing.assert_array_equal(next(iter(rows)), [2.0 + steps, 3.0 + steps])


def test_it_may_have_no_value_before() -> None:
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    unmade = UninitializedVariable(shape=(3,), dtype=tf.float32)
    graph = tf.Graph()
    with graph.as_default():
        inside = OutsideVariable(unmade.handle, (3,), "float32", "unmade")
        known = inside.is_initialized()
    session = tf.compat.v1.Session(graph=graph)
    session.run(inside.link)
    assert not session.run(known)
    inside.load(np.arange(3, dtype=np.float32))
    assert session.run(known)
    np.testing.assert_array_equal(unmade.numpy(), [0, 1, 2])


def test_a_step_writes_in_place_and_leaves_alone_what_was_read() -> None:
    both = _Both(np.zeros(1000), "float32")

    def place() -> int:
        return int(np.asarray(memoryview(both.eager.read_value())).__array_interface__["data"][0])

    before, read = place(), both.eager.read_value()
    both.run(both.add, np.ones(1000))
    assert place() != before  # it was still read
    np.testing.assert_array_equal(read, np.zeros(1000))
    del read
    now = place()
    for _ in range(3):
        both.run(both.add, np.ones(1000))
    assert place() == now


def test_ops_know_its_shape() -> None:
    both = _Both(np.zeros((2, 3)), "float32")
    with both.session.graph.as_default():
        assert both.inside.read_value().shape == (2, 3)
        applied = tf.raw_ops.ResourceGather(resource=both.inside.handle, indices=[0, 1, 1], dtype=tf.float32)
    assert applied.shape == (3, 3)
