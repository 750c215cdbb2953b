"""What the cases of functions share: batches, variables, losses, and steps that are compared with TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt

Made = Callable[[], tuple[Callable[..., Any], list[Any]]]
"""Makes a step and its variables."""


def batches(*sizes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of six features and their classes, of four."""
    random = np.random.default_rng(5)
    return [(random.normal(size=(n, 6)).astype(np.float32), random.integers(0, 4, n).astype(np.int32)) for n in sizes]


def new_variables(*shapes: tuple[int, ...]) -> list[Any]:
    """Variables of these shapes, with the same values each time."""
    random = np.random.default_rng(1)
    return [tf.Variable(random.normal(size=shape).astype(np.float32), name=f"w{i}") for i, shape in enumerate(shapes)]


def check_same(made: Any, expected: Any) -> None:
    """Checks that two structures have the same numbers, up to rounding."""
    for one, other in zip(tf.nest.flatten(made), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-6)


def compare(make: Made, sizes: tuple[int, ...] = (8, 8, 8), **options: Any) -> Any:
    """Checks that a step gives what TensorFlow alone does, batch by batch, and so do its variables; returns ours."""
    plain, expected = make()
    step, found = make()
    alone, ours = tf.function(plain), tensoropt.function(step, **options)
    for x, y in batches(*sizes):
        check_same(ours(x, y), alone(x, y))
    check_same(found, expected)
    return ours


def loss_of_layers(w: Any, v: Any, x: Any, y: Any) -> Any:
    """The loss of two dense layers."""
    return loss_of_logits(tf.matmul(tf.nn.relu(tf.matmul(x, w)), v), y)


def loss_of_logits(logits: Any, y: Any) -> Any:
    """The mean cross entropy."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def descend(tape: Any, loss: Any, variables: list[Any]) -> None:
    """A step of gradient descent."""
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        variable.assign_sub(0.1 * gradient)
