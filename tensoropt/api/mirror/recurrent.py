"""Recurrent networks with TensorFlow 1's signatures, names of variables and numbers, one step after another.

TensorFlow skips a step, or its copies, by a branch of the graph where that saves work. Here each step is computed, and
what lies past the end of a sequence is selected away, which gives the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["STEPS", "bidirectional_dynamic_rnn", "dynamic_rnn", "raw_rnn", "static_bidirectional_rnn", "static_rnn"]

STEPS = "_tensoropt_steps"
"""The attribute of a loop whose turns are steps over sequences: past the ends of all, turns would change nothing."""

_map = tf.nest.map_structure


def static_rnn(
    cell: Any,
    inputs: Sequence[Any],
    initial_state: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """A recurrent network over a list of inputs; ``tf.nn.static_rnn``.

    Args:
        cell: an ``RNNCell``.
        inputs: one tensor, or nest of tensors, ``(batch, ...)`` for each step.
        initial_state: the state before the first step; zeros of ``dtype`` by default.
        dtype: of states and outputs.
        sequence_length: ``(batch,)``: past the end of a sequence outputs are 0, and the state stays.
        scope: name of the variable scope; default ``rnn``.

    Returns:
        The outputs of all steps, and the last state.

    Raises:
        GraphError: without inputs, or with neither an initial state nor a dtype.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise GraphError(f"static_rnn: inputs must be a list with a tensor for each step. Got {inputs!r}.")
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "rnn") as entered:
        return _steps(cell, list(inputs), initial_state, dtype, sequence_length, entered)


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Sequence[Any],
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any, Any]:
    """Two networks, one of which goes backwards; ``tf.nn.static_bidirectional_rnn``. See :func:`static_rnn`.

    Returns:
        For each step both outputs, concatenated; the last state of each network.
    """
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "bidirectional_rnn"):
        with tf.compat.v1.variable_scope("fw") as fw:
            forward, state_fw = static_rnn(cell_fw, inputs, initial_state_fw, dtype, sequence_length, fw)
        with tf.compat.v1.variable_scope("bw") as bw:
            given = _reversed_list(inputs, sequence_length)
            made, state_bw = static_rnn(cell_bw, given, initial_state_bw, dtype, sequence_length, bw)
        backward = _reversed_list(made, sequence_length)
        outputs = [_map(lambda a, b: tf.concat([a, b], 1), *pair) for pair in zip(forward, backward, strict=True)]
        return outputs, state_fw, state_bw


def dynamic_rnn(
    cell: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[Any, Any]:
    """A recurrent network over one tensor of all steps; ``tf.nn.dynamic_rnn``.

    TensorFlow's loop, which is planned as its turns: up to 256 of a number that is known.

    Args:
        cell: an ``RNNCell``.
        inputs: ``(batch, steps, ...)``, or a nest of such tensors.
        sequence_length: see :func:`static_rnn`, as ``initial_state`` and ``dtype``.
        parallel_iterations: without effect.
        swap_memory: without effect.
        time_major: whether inputs and outputs are ``(steps, batch, ...)``.
        scope: name of the variable scope; default ``rnn``.

    Returns:
        The outputs, laid out as the inputs, and the last state.
    """
    with current_model().enter():
        if initial_state is None and dtype is None:
            raise _without_dtype(getattr(scope, "name", scope) or "rnn")
        inputs = _map(tf.convert_to_tensor, inputs)
        graph = tf.compat.v1.get_default_graph()
        known = len(graph.get_operations())
        made: tuple[Any, Any] = tf.compat.v1.nn.dynamic_rnn(
            cell, inputs, sequence_length, initial_state, dtype, parallel_iterations, swap_memory, time_major, scope
        )
        for op in graph.get_operations()[known:]:
            if "body" in op.node_def.attr:
                op._set_attr(STEPS, tf.compat.v1.AttrValue(b=True))
        return made


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: Any = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Two networks, one of which goes backwards; ``tf.nn.bidirectional_dynamic_rnn``. See :func:`dynamic_rnn`.

    Returns:
        The outputs of each network, and the last state of each.
    """
    time = 0 if time_major else 1

    def backwards(tensor: Any) -> Any:
        if sequence_length is None:
            return tf.reverse(tensor, [time])
        return tf.reverse_sequence(tensor, sequence_length, seq_axis=time, batch_axis=1 - time)

    options = (parallel_iterations, swap_memory, time_major)
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "bidirectional_rnn"):
        with tf.compat.v1.variable_scope("fw") as fw:
            forward, state_fw = dynamic_rnn(cell_fw, inputs, sequence_length, initial_state_fw, dtype, *options, fw)
        with tf.compat.v1.variable_scope("bw") as bw:
            given = _map(backwards, inputs)
            made, state_bw = dynamic_rnn(cell_bw, given, sequence_length, initial_state_bw, dtype, *options, bw)
        return (forward, _map(backwards, made)), (state_fw, state_bw)


def raw_rnn(
    cell: Any, loop_fn: Any, parallel_iterations: Any = None, swap_memory: bool = False, scope: Any = None
) -> Any:
    """``tf.nn.raw_rnn``, whose number of steps its ``loop_fn`` decides: TensorFlow's own, a loop of the graph."""
    with current_model().enter():
        return tf.compat.v1.nn.raw_rnn(cell, loop_fn, parallel_iterations, swap_memory, scope)


def _steps(
    cell: Any, inputs: list[Any], state: Any, dtype: Any, sequence_length: Any, scope: Any
) -> tuple[list[Any], Any]:
    """The outputs of all steps, and the last state."""
    first = tf.convert_to_tensor(tf.nest.flatten(inputs)[0])
    if state is None:
        if dtype is None:
            raise _without_dtype(scope.name)
        static = first.shape.as_list()[0]
        batch = tf.shape(first)[0] if static is None else static
        if getattr(cell, "get_initial_state", None) is not None:
            state = cell.get_initial_state(inputs=None, batch_size=batch, dtype=dtype)
        else:
            state = cell.zero_state(batch, dtype)
    ends = None
    if sequence_length is not None:
        ends = tf.cast(tf.convert_to_tensor(sequence_length, name="sequence_length"), tf.int32)
        if ends.shape.rank not in (None, 1):
            raise GraphError(
                f"RNN '{scope.name}': sequence_length must have one number for each of the batch. Got shape "
                f"{ends.shape}."
            )
    outputs = []
    for number, given in enumerate(inputs):
        if number:
            scope.reuse_variables()
        output, next_state = cell(given, state)
        if ends is not None:
            is_over = ends <= number
            output = _map(lambda new, over=is_over: _selected(over, tf.zeros_like(new), new), output)
            next_state = _map(lambda old, new, over=is_over: _selected(over, old, new), state, next_state)
        outputs.append(output)
        state = next_state
    return outputs, state


def _without_dtype(name: str) -> GraphError:
    return GraphError(f"RNN '{name}': needs a dtype where it has no initial_state. Give one of them.")


def _selected(is_over: Any, old: Any, new: Any) -> Any:
    """``old`` for what of the batch is over; scalars are of no batch."""
    if new.shape.rank == 0:
        return new
    old = tf.convert_to_tensor(old)
    return tf.where(tf.reshape(is_over, [-1] + [1] * (new.shape.rank - 1)), old, new)


def _reversed_list(inputs: Sequence[Any], sequence_length: Any) -> list[Any]:
    """Steps backwards; those past the end of a sequence stay where they are."""
    if sequence_length is None:
        return list(reversed(inputs))

    def turned(*steps: Any) -> list[Any]:
        return tf.unstack(tf.reverse_sequence(tf.stack(steps), sequence_length, seq_axis=0, batch_axis=1))

    columns = [turned(*steps) for steps in zip(*map(tf.nest.flatten, inputs), strict=True)]
    return [
        tf.nest.pack_sequence_as(each, list(step))
        for each, step in zip(inputs, zip(*columns, strict=True), strict=True)
    ]
