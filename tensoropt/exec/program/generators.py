"""The states of random operators: where each goes on in its numbers, kept where it can be saved and set.

TensorFlow's own ops keep it out of reach, in their kernels.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import seeds_of

__all__ = ["Generator"]


class Generator:
    """The state of one random operator, which all programs share; the same on all devices.

    Attributes:
        variable: the state, int64 of (seed, position, seed2).
    """

    def __init__(self, op: Operator) -> None:
        """Adds the state to the default graph."""
        seed, seed2 = seeds_of(op)
        with tf.device("/CPU:0"):
            self._feed = tf.compat.v1.placeholder_with_default(tf.constant([seed, 0, seed2], tf.int64), [3])
            self.variable = tf.compat.v1.Variable(
                self._feed,
                use_resource=True,
                trainable=False,
                name=f"{op.name}/generator",
                collections=["tensoropt_generators"],
            )

    def next_state(self, step: int) -> Any:
        """The state for one draw, as a tensor; the next draw's is further by ``step``."""
        with tf.device("/CPU:0"):
            moved = tf.constant([0, step, 0], tf.int64)
            return self.variable.assign_add(moved) - moved

    def set(self, session: Any, state: Any = None) -> None:
        """Sets the state; to its beginning, by default."""
        session.run(self.variable.initializer, {} if state is None else {self._feed: state})
