"""The states of random operators: where each goes on in its numbers, kept where it can be saved and set.

TensorFlow's own ops keep it out of reach, in their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import generator_of, numbers_skipped, seeds_of

__all__ = ["Draws", "Generator", "set_states"]


class Generator:
    """The state of one random operator, which all programs share; the same on all devices.

    Attributes:
        variable: the state, int64 of (seed, position, seed2).
        given: the state that the variable's initializer sets; by default its beginning.
    """

    def __init__(self, op: Operator) -> None:
        """Adds the state to the default graph."""
        seed, seed2 = seeds_of(op)
        with tf.device("/CPU:0"):
            self.given = tf.compat.v1.placeholder_with_default(tf.constant([seed, 0, seed2], tf.int64), [3])
            self.variable = tf.compat.v1.Variable(
                self.given,
                use_resource=True,
                trainable=False,
                name=f"{generator_of(op)}/generator",
                collections=["tensoropt_generators"],
            )

    def next_state(self, step: Any) -> Any:
        """The state for one draw, as a tensor; the next draw's is further by ``step`` (int64)."""
        with tf.device("/CPU:0"):
            moved = tf.stack([tf.constant(0, tf.int64), step, 0])
            return self.variable.assign_add(moved) - moved


def set_states(session: Any, states: Mapping[Generator, Any]) -> None:
    """Sets states in one run, as TensorFlow prepares each run of others anew; None is a state's beginning."""
    feeds = {generator.given: state for generator, state in states.items() if state is not None}
    if states:
        session.run([generator.variable.initializer for generator in states], feeds)


@dataclass(slots=True, eq=False)
class Draws:
    """The sources of random numbers for the random operators of one program.

    Attributes:
        generators: the states, by the names of operators, and of ops in subgraphs.
        drawn: the numbers drawn for ops in subgraphs, by name. Each is drawn once, however many subgraphs have the op.
    """

    generators: Mapping[str, Generator] = field(default_factory=lambda: MappingProxyType({}))
    drawn: dict[str, Any] = field(default_factory=dict)
    _begun: dict[str, Any] = field(default_factory=dict)  # the states before a run, of those that are counted
    _moved: dict[str, list[Any]] = field(default_factory=dict)  # how far their draws move them

    def next_state(self, op: Operator, step: Any, counts: Any) -> Any:
        """The state for a draw; None if the operator has no generator.

        Args:
            op: the operator.
            step: how far the draw moves the state, if it is the only one of a run.
            counts: see :meth:`tensoropt.graph.lowering.Lowering.next_state`.
        """
        name = generator_of(op)
        generator = self.generators.get(name)
        if generator is None or counts is None:
            return None if generator is None else generator.next_state(step)
        with tf.device("/CPU:0"):
            if name not in self._begun:
                with tf.control_dependencies(None):
                    self._begun[name] = generator.variable.read_value()
            before, after = tf.unstack(numbers_skipped(tf.cast(counts, tf.int64)), num=2)
            self._moved.setdefault(name, []).append(after)
            return self._begun[name] + tf.stack([0, before, 0])

    def go_on(self) -> list[Any]:
        """The operations that move the states of counted draws on, once for all draws of a run."""
        with tf.device("/CPU:0"):
            return [
                self.generators[name].variable.assign(
                    begun + tf.stack([0, tf.reduce_max(self._moved[name]), 0]), read_value=False
                )
                for name, begun in self._begun.items()
            ]
