"""The states of random operators: where each goes on in its numbers, kept where it can be saved and set.

TensorFlow's own ops keep it out of reach, in their kernels. Of those that have no twin which is given its state, one op
draws for all programs, so that none of them begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as tf_ops

from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import draws_by_state, generator_of, is_counted, numbers_skipped, seeds_of
from tensoropt.graph.registry import declaration, has_rule

__all__ = ["Draws", "Generator", "Kernel", "is_drawn_by_kernel", "set_states"]


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


class Kernel:
    """The op of TensorFlow's that draws for a random operator in all programs: its kernel has the state.

    Each program hands over what the op reads through a queue, as the op cannot read tensors of all programs.
    """

    def __init__(self, operands: Sequence[Any], create: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Adds the op to the default graph.

        Args:
            operands: tensors of the dtypes and ranks that all programs hand over.
            create: makes the op, given what it reads.
        """
        with tf.control_dependencies(None), tf.device("/CPU:0"):
            self._queue = tf.queue.FIFOQueue(1, [x.dtype for x in operands])
            taken = self._queue.dequeue()
            self._taken = list(taken) if len(operands) > 1 else [taken]
            self._waiting = self._queue.size()
            for tensor, operand in zip(self._taken, operands, strict=True):
                tensor.set_shape(None if operand.shape.rank is None else [None] * operand.shape.rank)
        with tf.control_dependencies(None):
            self._outputs = create(self._taken)

    def draw(self, operands: Sequence[Any]) -> list[Any]:
        """The outputs for one program, which is to ask for them once."""
        with tf.control_dependencies([self._queue.enqueue(operands)]):
            return [tf.identity(x) for x in self._outputs]

    def forget(self, session: Any) -> None:
        """Drops what a run that failed has handed over, which the next run would take for its own."""
        if session.run(self._waiting):
            session.run(self._taken)


def is_drawn_by_kernel(op: Operator) -> bool:
    """Tells whether an operator draws by a state within TensorFlow's kernel.

    An op without a rule does if TensorFlow's definition declares it stateful and gives it a seed. One that has a
    gradient reads what its gradient is for, and no copy that was handed over.
    """
    if has_rule(op.type):
        return declaration(op.type).shared and not is_counted(op) and not draws_by_state(op)
    definition, gradients = op_def_registry.get(op.type), tf_ops.gradient_registry
    is_seeded = definition is not None and definition.is_stateful and "seed2" in op.attrs
    return is_seeded and (op.type not in gradients.list() or gradients.lookup(op.type) is None)


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
        kernels: the ops that draw for all programs, by names of operators; gets more. None where this is no program.
        drawn: the numbers drawn for ops in subgraphs, by name. Each is drawn once, however many subgraphs have the op.
    """

    generators: Mapping[str, Generator] = field(default_factory=lambda: MappingProxyType({}))
    kernels: MutableMapping[str, Kernel] | None = None
    drawn: dict[str, Any] = field(default_factory=dict)
    _by_kernel: dict[str, list[Any]] = field(default_factory=dict)
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

    def by_kernel(
        self, op: Operator, operands: Sequence[Any], create: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> Sequence[Any]:
        """The outputs of a random operator, drawn once in a program; see :class:`Kernel`."""
        if self.kernels is None or not is_drawn_by_kernel(op) or not operands:
            return create(operands)
        if op.name not in self._by_kernel:
            if op.name not in self.kernels:
                self.kernels[op.name] = Kernel(operands, create)
            self._by_kernel[op.name] = self.kernels[op.name].draw(operands)
        return self._by_kernel[op.name]

    def go_on(self) -> list[Any]:
        """The operations that move the states of counted draws on, once for all draws of a run."""
        with tf.device("/CPU:0"):
            return [
                self.generators[name].variable.assign(
                    begun + tf.stack([0, tf.reduce_max(self._moved[name]), 0]), read_value=False
                )
                for name, begun in self._begun.items()
            ]
