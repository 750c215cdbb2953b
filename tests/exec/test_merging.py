"""TensorFlow makes one op of two; it must not where that one would wait for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.errors import EngineError
from tensoropt.exec.program.calling import callable_of
from tensoropt.exec.schedule.merging import prevent_merging

pytestmark = pytest.mark.tf

_IMAGES, _FILTER = [2, 6, 6, 4], [3, 3, 4, 4]


_After = Callable[[Any, Any], Any]


def _late(op: Any, tensor: Any) -> Any:
    """As a collective on a copy that is not made before another op has run."""
    with tf.control_dependencies([op]):
        return tf.tanh(tf.identity(tensor))


def _at_once(op: Any, tensor: Any) -> Any:
    del op
    return tf.tanh(tensor)


def _bias(after: _After, x: Any, dy: Any, w: Any, b: Any) -> list[Any]:
    y = tf.nn.conv2d(x, w, 1, "SAME")
    return [tf.nn.relu(tf.nn.bias_add(tf.identity(y), after(y.op, b)))]


def _padding(after: _After, x: Any, dy: Any, w: Any, b: Any) -> list[Any]:
    padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    return [tf.nn.conv2d(padded, after(padded.op, w), 1, "VALID")]


def _gradient(x: Any, dy: Any) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=_FILTER, out_backprop=dy, strides=[1, 1, 1, 1], padding="SAME"
    )


def _gradients(after: _After, x: Any, dy: Any, w: Any, b: Any) -> list[Any]:
    dy = tf.nn.relu(dy)
    summed = tf.tanh(tf.raw_ops.BiasAddGrad(out_backprop=tf.identity(dy)))
    return [summed, _gradient(after(summed.op, x), dy)]


def _two_layers(after: _After, x: Any, dy: Any, w: Any, b: Any) -> list[Any]:
    """Neither pair waits for itself, but each for the other one."""
    layers = [tf.nn.relu(dy), tf.nn.relu(dy + 1.0)]
    one, other = (tf.tanh(tf.raw_ops.BiasAddGrad(out_backprop=layer)) for layer in layers)
    return [one, other, _gradient(after(other.op, x), layers[0]), _gradient(after(one.op, x), layers[1])]


@pytest.mark.parametrize("build", [_bias, _padding, _gradients, _two_layers])
def test_ops_that_would_wait_for_themselves_are_kept_apart(build: Callable[..., list[Any]]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (_IMAGES, _IMAGES, _FILTER, [4])]
    found = []
    for after, apart in ((_late, 1), (_at_once, 0)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            feeds = [tf.compat.v1.placeholder(tf.float32, array.shape) for array in arrays]
            fetches = build(after, *feeds)
            assert prevent_merging([tensor.op for tensor in fetches], 0) == apart
            found.append(callable_of(session, fetches, feeds)(*arrays))
    for value, expected in zip(*found, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copies", [1, 2])
def test_ops_that_wait_for_one_op_are_kept_apart(copies: int) -> None:
    """TensorFlow removes copies of weights, whose readers wait then; of two merged ones that end the process."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (_IMAGES, _FILTER, [4])]

    def copied(tensor: Any) -> Any:
        for _ in range(copies):
            tensor = tf.identity(tensor)
        return tensor

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, w, b = (tf.compat.v1.placeholder(tf.float32, array.shape) for array in arrays)
        first = tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b)
        with tf.control_dependencies([tf.group(first)]):
            weights = copied(w), copied(b)
        second = tf.nn.bias_add(tf.nn.conv2d(x, weights[0], 1, "SAME"), weights[1])
        fetches = [tf.nn.relu(first), tf.nn.relu(second)]
        assert prevent_merging([tensor.op for tensor in fetches], 0) == 1  # the first pair may be merged
        found = callable_of(session, fetches, [x, w, b])(*arrays)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_ops_that_may_be_merged_are_left_alone() -> None:
    with tf.Graph().as_default():
        x, dy = (tf.compat.v1.placeholder(tf.float32, _IMAGES) for _ in range(2))
        w, b = (tf.compat.v1.placeholder(tf.float32, shape) for shape in (_FILTER, [4]))
        # What only passes a tensor on may be taken away, and is no way around.
        y = tf.nn.bias_add(tf.identity_n([tf.nn.conv2d(x, w, 1, "SAME"), x])[0], b)
        gradients = tf.gradients(y, [w, b], dy)
        # Two gradients of one tensor, each waiting for the one of a layer before, are no circle.
        again = _gradient(_late(y.op, x), dy)
        assert prevent_merging([again.op, *(gradient.op for gradient in gradients)], 0) == 0
        assert prevent_merging([w.op], 0) == 0


def test_a_step_that_ends_before_all_has_run_is_an_error() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [])
        _, never = tf.raw_ops.Switch(data=x, pred=tf.constant(False))
        missing = tf.negative(never)
        for fetches in ([missing.op], [missing], [x + 1.0, tf.group(missing)]):
            with pytest.raises(EngineError, match=r"ended a step before all of its operations ran.* TF_ENABLE_ONEDNN"):
                callable_of(session, fetches, [x])(np.float32(1))
