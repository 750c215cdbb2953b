"""Networks of TensorFlow's removed ``tf.contrib.rnn`` over all steps of a sequence, and layers of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.cells import LSTMStateTuple
from tensoropt.api.mirror.layer import Layer
from tensoropt.api.mirror.model import current_model
from tensoropt.api.mirror.recurrent import bidirectional_dynamic_rnn, dynamic_rnn, static_bidirectional_rnn, static_rnn
from tensoropt.contrib.rnn_cells import BlockStep, known_depth
from tensoropt.errors import GraphError

__all__ = [
    "FusedRNNCell",
    "FusedRNNCellAdaptor",
    "LSTMBlockFusedCell",
    "TimeReversedFusedRNN",
    "stack_bidirectional_dynamic_rnn",
    "stack_bidirectional_rnn",
]


class FusedRNNCell:
    """A network over all steps: called with ``(time, batch, depth)``, or a list of ``(batch, depth)``."""


class FusedRNNCellAdaptor(FusedRNNCell):
    """A cell as a :class:`FusedRNNCell`."""

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False) -> None:
        """Takes the cell, and whether ``dynamic_rnn`` runs it."""
        self._cell, self._is_dynamic = cell, use_dynamic_rnn

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """The outputs, laid out as the inputs, and the last state."""
        is_list = isinstance(inputs, list)
        with current_model().enter():
            if self._is_dynamic:
                given = tf.stack(inputs) if is_list else inputs
                outputs, state = dynamic_rnn(
                    self._cell, given, sequence_length, initial_state, dtype, time_major=True, scope=scope
                )
                return tf.unstack(outputs) if is_list else outputs, state
            given = inputs if is_list else tf.unstack(inputs)
            outputs, state = static_rnn(self._cell, given, initial_state, dtype, sequence_length, scope)
            return outputs if is_list else tf.stack(outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """A :class:`FusedRNNCell` that goes backwards."""

    def __init__(self, cell: Any) -> None:
        """Takes the network that goes forwards."""
        self._cell = cell

    def __call__(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None, scope: Any = None
    ) -> tuple[Any, Any]:
        """The outputs, laid out as the inputs, and the last state, which is of the first step."""

        def turned(steps: Any) -> Any:
            if isinstance(steps, list):
                return list(reversed(steps))
            if sequence_length is None:
                return tf.reverse(steps, [0])
            return tf.reverse_sequence(steps, sequence_length, seq_axis=0, batch_axis=1)

        with current_model().enter():
            options = {} if scope is None else {"scope": scope}
            outputs, state = self._cell(
                turned(inputs), initial_state=initial_state, dtype=dtype, sequence_length=sequence_length, **options
            )
            return turned(outputs), state


class LSTMBlockFusedCell(Layer, FusedRNNCell):
    """A network of :class:`LSTMBlockCell`."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: Any = None,
        dtype: Any = None,
        name: str = "lstm_fused_cell",
    ) -> None:
        """Takes the arguments of :class:`LSTMBlockCell`, in another order."""
        super().__init__(_reuse=reuse, name=name, dtype=dtype)
        self._block = BlockStep(self, num_units, forget_bias, cell_clip, use_peephole)

    @property
    def num_units(self) -> int:
        """Size of the output."""
        return self._block.units

    def build(self, input_shape: Any) -> None:
        """Makes the variables."""
        self._block.build(known_depth(input_shape[0] if isinstance(input_shape, list) else input_shape, self))
        self.built = True

    def call(
        self, inputs: Any, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None
    ) -> tuple[Any, Any]:
        """The outputs, laid out as the inputs, and the last state.

        Raises:
            GraphError: with neither an initial state nor a dtype.
        """
        if initial_state is None and dtype is None:
            raise GraphError(f"Cell {self.name!r}: needs a dtype where it has no initial_state. Give one of them.")
        is_list = isinstance(inputs, list)
        if initial_state is not None:
            initial_state = LSTMStateTuple(*initial_state)
        outputs, state = dynamic_rnn(
            self._block, tf.stack(inputs) if is_list else inputs, sequence_length, initial_state, dtype, time_major=True
        )
        return tf.unstack(outputs) if is_list else outputs, state


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: Any = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """Layers of bidirectional networks, each over both outputs of the one below; arguments are TensorFlow's.

    Returns:
        Both outputs of the last layer, concatenated; the last states of each layer, forwards and backwards.
    """
    del parallel_iterations, swap_memory
    states: list[tuple[Any, Any]] = []
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, cells in enumerate(_pairs("stack_bidirectional_dynamic_rnn", cells_fw, cells_bw)):
            with tf.compat.v1.variable_scope(f"cell_{number}"):
                outputs, state = bidirectional_dynamic_rnn(
                    *cells,
                    inputs,
                    sequence_length,
                    initial_states_fw and initial_states_fw[number],
                    initial_states_bw and initial_states_bw[number],
                    dtype,
                    time_major=time_major,
                )
            inputs = tf.concat(outputs, 2)
            states.append(state)
    forward, backward = zip(*states, strict=True)
    return inputs, forward, backward


def stack_bidirectional_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Sequence[Any],
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """:func:`stack_bidirectional_dynamic_rnn` over a list of inputs, which gives a list of outputs."""
    states: list[tuple[Any, Any]] = []
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "stack_bidirectional_rnn"):
        for number, cells in enumerate(_pairs("stack_bidirectional_rnn", cells_fw, cells_bw)):
            with tf.compat.v1.variable_scope(f"cell_{number}"):
                inputs, state_fw, state_bw = static_bidirectional_rnn(
                    *cells,
                    inputs,
                    initial_states_fw and initial_states_fw[number],
                    initial_states_bw and initial_states_bw[number],
                    dtype,
                    sequence_length,
                )
            states.append((state_fw, state_bw))
    forward, backward = zip(*states, strict=True)
    return inputs, forward, backward


def _pairs(name: str, forward: Sequence[Any], backward: Sequence[Any]) -> list[tuple[Any, Any]]:
    if not forward or len(forward) != len(backward):
        raise GraphError(
            f"contrib.rnn.{name}: needs as many cells forwards as backwards, and at least one. Got {len(forward)} and "
            f"{len(backward)}."
        )
    return list(zip(forward, backward, strict=True))
