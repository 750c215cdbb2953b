"""Cells of TensorFlow's removed ``tf.contrib.rnn``: its names of variables and its numbers.

What TensorFlow computes by one op ("block", "fused") is ordinary ops here, which devices split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import rnn_cell_impl

from tensoropt.api.mirror.cells import GRUCell, LSTMStateTuple, RNNCell
from tensoropt.api.mirror.layer import layer_class
from tensoropt.errors import GraphError

__all__ = [
    "AttentionCellWrapper",
    "BlockStep",
    "EmbeddingWrapper",
    "GRUBlockCell",
    "GRUBlockCellV2",
    "InputProjectionWrapper",
    "LSTMBlockCell",
    "LayerNormBasicLSTMCell",
    "NASCell",
    "OutputProjectionWrapper",
    "known_depth",
]

_ZEROS = tf.compat.v1.zeros_initializer()
_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm

#: A cell whose variables are made when it is first called.
_Cell: Any = layer_class(rnn_cell_impl.LayerRNNCell, RNNCell, module="tensoropt.contrib.rnn")


def known_depth(shape: Any, cell: Any) -> int:
    """The last dimension of what a cell reads.

    Raises:
        GraphError: it is open.
    """
    depth = tf.TensorShape(shape)[-1]
    if depth is None:
        raise GraphError(f"Cell {cell.name!r}: the last dimension of its inputs must be known. Got {shape}.")
    return int(depth)


class BlockStep:
    """One step of an LSTM (Zaremba et al., 2014), whose gates lie as input, new value, forget, output."""

    def __init__(self, cell: Any, units: int, forget_bias: float, clip: float | None, use_peephole: bool) -> None:
        self.cell, self.units, self.forget_bias, self.use_peephole = cell, units, forget_bias, use_peephole
        self.clip = clip if clip is not None and clip > 0 else None
        self.state_size, self.output_size = LSTMStateTuple(units, units), units

    def build(self, depth: int) -> None:
        """Makes the variables, as the cell's."""
        weight = self.cell.add_weight
        self.kernel = weight("kernel", [depth + self.units, 4 * self.units])
        self.bias = weight("bias", [4 * self.units], initializer=_ZEROS)
        if self.use_peephole:
            self.peepholes = [weight(f"w_{gate}_diag", [self.units]) for gate in "ifo"]

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The state of zeros."""
        return LSTMStateTuple(*(tf.zeros(tf.stack([batch_size, self.units]), dtype) for _ in range(2)))

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """The output, and the next state."""
        del scope
        c, h = state
        gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, h], 1), self.kernel), self.bias)
        i, new, f, o = tf.split(gates, 4, axis=1)
        f += tf.cast(self.forget_bias, f.dtype)
        if self.use_peephole:
            i, f = i + c * self.peepholes[0], f + c * self.peepholes[1]
        c = tf.tanh(new) * tf.sigmoid(i) + c * tf.sigmoid(f)
        if self.clip is not None:
            # TensorFlow's kernel has no gradient of it.
            c = tf.grad_pass_through(lambda x: tf.clip_by_value(x, -self.clip, self.clip))(c)
        if self.use_peephole:
            o += c * self.peepholes[2]
        h = tf.tanh(c) * tf.sigmoid(o)
        return h, LSTMStateTuple(c, h)


class LSTMBlockCell(_Cell):
    """An LSTM with the numbers of ``tf.contrib.rnn.LSTMBlockCell``."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: Any = None,
        name: str = "lstm_cell",
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            num_units: of the state and the output.
            forget_bias: added to the forget gate.
            cell_clip: the cell's value is held between minus this and this; None for no limit.
            use_peephole: whether gates see the cell's value.
            dtype: of the variables.
            reuse: whether variables of an earlier cell are taken.
            name: of the scope of the variables.
        """
        super().__init__(_reuse=reuse, dtype=dtype, name=name)
        self._block = BlockStep(self, num_units, forget_bias, cell_clip, use_peephole)

    @property
    def state_size(self) -> Any:
        """Sizes of the cell's value and of the output."""
        return self._block.state_size

    @property
    def output_size(self) -> int:
        """Size of the output."""
        return self._block.output_size

    def build(self, inputs_shape: Any) -> None:
        """Makes the variables."""
        self._block.build(known_depth(inputs_shape, self))
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step."""
        return self._block(inputs, state)


class GRUBlockCellV2(GRUCell):
    """A GRU with the numbers of ``tf.contrib.rnn.GRUBlockCellV2``."""

    def __init__(
        self, num_units: int | None = None, cell_size: int | None = None, reuse: Any = None, name: str = "gru_cell"
    ) -> None:
        """Takes the number of units, by either name."""
        units = num_units if num_units is not None else cell_size
        if units is None:
            raise GraphError("contrib.rnn.GRUBlockCell: needs num_units.")
        super().__init__(units, reuse=reuse, name=name)


GRUBlockCell = GRUBlockCellV2


class LayerNormBasicLSTMCell(_Cell):
    """An LSTM with normalized gates (Ba et al., 2016) and recurrent dropout (Semeniuta et al., 2016)."""

    _NORMALIZED = ("input", "transform", "forget", "output", "state")

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: int | None = None,
        activation: Callable[[Any], Any] = tf.tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: Any = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            num_units: of the state and the output.
            forget_bias: added to the forget gate.
            input_size: without effect.
            activation: of new values.
            layer_norm: whether there is normalization, and not a bias.
            norm_gain: what ``gamma`` begins with.
            norm_shift: what ``beta`` begins with.
            dropout_keep_prob: which share of new values is kept, a number or a scalar tensor.
            dropout_prob_seed: of the dropout.
            reuse: whether variables of an earlier cell are taken.
        """
        super().__init__(_reuse=reuse)
        del input_size
        self._units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._normalizes, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Any:
        """Sizes of the cell's value and of the output."""
        return LSTMStateTuple(self._units, self._units)

    @property
    def output_size(self) -> int:
        """Size of the output."""
        return self._units

    def build(self, inputs_shape: Any) -> None:
        """Makes the variables."""
        self._kernel = self.add_weight("kernel", [known_depth(inputs_shape, self) + self._units, 4 * self._units])
        if self._normalizes:
            first = {"gamma": self._gain, "beta": self._shift}
            self._norms = {
                gate: {
                    name: self.add_weight(
                        f"{gate}/{name}", [self._units], initializer=tf.compat.v1.constant_initializer(value)
                    )
                    for name, value in first.items()
                }
                for gate in self._NORMALIZED
            }
        else:
            self._bias = self.add_weight("bias", [4 * self._units], initializer=_ZEROS)
        self.built = True

    def _norm(self, gate: str, values: Any) -> Any:
        if not self._normalizes:
            return values
        mean, variance = tf.nn.moments(values, [1], keepdims=True)
        norm = self._norms[gate]
        return tf.nn.batch_normalization(values, mean, variance, norm["beta"], norm["gamma"], _EPSILON)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step."""
        c, h = state
        gates = tf.matmul(tf.concat([inputs, h], 1), self._kernel)
        if not self._normalizes:
            gates = tf.nn.bias_add(gates, self._bias)
        parts = zip(self._NORMALIZED, tf.split(gates, 4, axis=1), strict=False)
        i, new, f, o = (self._norm(gate, part) for gate, part in parts)
        new = self._activation(new)
        if not isinstance(self._keep, float | int) or self._keep < 1:
            new = tf.compat.v1.nn.dropout(new, rate=1 - self._keep, seed=self._seed)
        c = self._norm("state", c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * new)
        h = self._activation(c) * tf.sigmoid(o)
        return h, LSTMStateTuple(c, h)


class NASCell(_Cell):
    """The recurrent cell that a search found (Zoph and Le, 2017)."""

    def __init__(
        self,
        num_units: int,
        num_proj: int | None = None,
        use_bias: bool = False,
        reuse: Any = None,
        use_biases: bool = False,
        **kwargs: Any,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            num_units: of the cell's value, and of the output without a projection.
            num_proj: what the output is projected to.
            use_bias: whether there is a bias.
            reuse: whether variables of an earlier cell are taken.
            use_biases: ``use_bias``, by its older name.
            **kwargs: of a layer.
        """
        super().__init__(_reuse=reuse, **kwargs)
        self._units, self._projection, self._has_bias = num_units, num_proj, use_bias or use_biases

    @property
    def state_size(self) -> Any:
        """Sizes of the cell's value and of the output."""
        return LSTMStateTuple(self._units, self.output_size)

    @property
    def output_size(self) -> int:
        """Size of the output."""
        return self._projection or self._units

    def build(self, inputs_shape: Any) -> None:
        """Makes the variables."""
        self._recurrent = self.add_weight("recurrent_kernel", [self.output_size, 8 * self._units])
        self._kernel = self.add_weight("kernel", [known_depth(inputs_shape, self), 8 * self._units])
        if self._has_bias:
            self._bias = self.add_weight("bias", [8 * self._units], initializer=_ZEROS)
        if self._projection:
            self._projected = self.add_weight("projection_weights", [self._units, self._projection])
        self.built = True

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step."""
        c, m = state
        recurrent = tf.matmul(m, self._recurrent)
        if self._has_bias:
            recurrent = tf.nn.bias_add(recurrent, self._bias)
        a = tf.split(tf.matmul(inputs, self._kernel), 8, axis=1)
        b = tf.split(recurrent, 8, axis=1)
        first = [
            tf.sigmoid(a[0] + b[0]), tf.nn.relu(a[1] + b[1]), tf.sigmoid(a[2] + b[2]), tf.nn.relu(a[3] * b[3]),
            tf.tanh(a[4] + b[4]), tf.sigmoid(a[5] + b[5]), tf.tanh(a[6] + b[6]), tf.sigmoid(a[7] + b[7]),
        ]  # fmt: skip
        left = tf.tanh(tf.tanh(first[0] * first[1]) + c)
        c = left * tf.tanh(first[2] + first[3])
        m = tf.tanh(c * tf.tanh(tf.tanh(first[4] * first[5]) + tf.sigmoid(first[6] + first[7])))
        if self._projection:
            m = tf.matmul(m, self._projected)
        return m, LSTMStateTuple(c, m)


class _Wrapper(RNNCell):
    """A cell around another one, with variables of its own in its scope."""

    def __init__(self, cell: Any, reuse: Any = None) -> None:
        super().__init__(_reuse=reuse)
        self._cell = cell

    @property
    def state_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        """That of the cell inside."""
        return self._cell.output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """That of the cell inside."""
        return self._cell.zero_state(batch_size, dtype)


def _linear(parts: Sequence[Any], size: int) -> Any:
    """The product of concatenated tensors and ``kernel``, with a ``bias``, in the current scope."""
    values = tf.concat(list(parts), 1) if len(parts) > 1 else parts[0]
    kernel = tf.compat.v1.get_variable("kernel", [values.shape[1], size], values.dtype)
    bias = tf.compat.v1.get_variable("bias", [size], values.dtype, _ZEROS)
    return tf.nn.bias_add(tf.matmul(values, kernel), bias)


class InputProjectionWrapper(_Wrapper):
    """A cell whose inputs are projected."""

    def __init__(
        self, cell: Any, num_proj: int, activation: Any = None, input_size: int | None = None, reuse: Any = None
    ) -> None:
        """Takes the cell, the size of the projection and its activation."""
        super().__init__(cell, reuse)
        del input_size
        self._size, self._activation = num_proj, activation

    def call(self, inputs: Any, state: Any) -> Any:
        """One step."""
        projected = _linear([inputs], self._size)
        return self._cell(projected if self._activation is None else self._activation(projected), state)


class OutputProjectionWrapper(_Wrapper):
    """A cell whose outputs are projected."""

    def __init__(self, cell: Any, output_size: int, activation: Any = None, reuse: Any = None) -> None:
        """Takes the cell, the size of the projection and its activation."""
        super().__init__(cell, reuse)
        self._size, self._activation = output_size, activation

    @property
    def output_size(self) -> int:
        """That of the projection."""
        return self._size

    def call(self, inputs: Any, state: Any) -> Any:
        """One step."""
        output, state = self._cell(inputs, state)
        projected = _linear([output], self._size)
        return projected if self._activation is None else self._activation(projected), state


class EmbeddingWrapper(_Wrapper):
    """A cell that reads ids, whose rows of ``embedding`` are looked up."""

    def __init__(
        self, cell: Any, embedding_classes: int, embedding_size: int, initializer: Any = None, reuse: Any = None
    ) -> None:
        """Takes the cell and the table's sizes and initial values: by default evenly, of a variance of 1."""
        super().__init__(cell, reuse)
        self._shape = (embedding_classes, embedding_size)
        self._initializer = initializer

    def call(self, inputs: Any, state: Any) -> Any:
        """One step."""
        given = self._initializer or tf.compat.v1.get_variable_scope().initializer
        given = given or tf.compat.v1.random_uniform_initializer(-(3**0.5), 3**0.5)
        dtype = tf.nest.flatten(state)[0].dtype
        table = tf.compat.v1.get_variable("embedding", self._shape, dtype, given)
        return self._cell(tf.nn.embedding_lookup(table, tf.reshape(inputs, [-1])), state)


class AttentionCellWrapper(_Wrapper):
    """A cell that attends to its last outputs (``tf.contrib.rnn.AttentionCellWrapper``)."""

    def __init__(
        self,
        cell: Any,
        attn_length: int,
        attn_size: int | None = None,
        attn_vec_size: int | None = None,
        input_size: int | None = None,
        state_is_tuple: bool = True,
        reuse: Any = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            cell: inside.
            attn_length: how many outputs it attends to.
            attn_size: size of what is attended to; the cell's output by default.
            attn_vec_size: size of queries; ``attn_size`` by default.
            input_size: what inputs are projected to; their own size by default.
            state_is_tuple: always.
            reuse: whether variables of an earlier cell are taken.

        Raises:
            GraphError: for states that are no tuples, or no length.
        """
        super().__init__(cell, reuse)
        if not state_is_tuple or attn_length <= 0:
            raise GraphError(
                "contrib.rnn.AttentionCellWrapper: needs state_is_tuple=True and an attn_length of at least 1. Got "
                f"{state_is_tuple} and {attn_length}."
            )
        self._length, self._input_size = attn_length, input_size
        self._size = attn_size or cell.output_size
        self._query_size = attn_vec_size or self._size

    @property
    def state_size(self) -> Any:
        """The cell's, that of what was attended to, and those of the outputs."""
        return self._cell.state_size, self._size, self._size * self._length

    @property
    def output_size(self) -> int:
        """Size of what is attended to."""
        return self._size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The state of zeros."""
        sizes = (self._size, self._size * self._length)
        return self._cell.zero_state(batch_size, dtype), *(
            tf.zeros(tf.stack([batch_size, size]), dtype) for size in sizes
        )

    def call(self, inputs: Any, state: Any) -> Any:
        """One step."""
        state, attended, kept = state
        given = _linear([inputs, attended], self._input_size or inputs.shape[1])
        output, state = self._cell(given, state)
        kept = tf.reshape(kept, [-1, self._length, self._size])
        with tf.compat.v1.variable_scope("attention"):
            w = tf.compat.v1.get_variable("attn_w", [1, 1, self._size, self._query_size], kept.dtype)
            v = tf.compat.v1.get_variable("attn_v", [self._query_size], kept.dtype)
            query = _linear(tf.nest.flatten(state), self._query_size)
            features = tf.einsum("bld,dq->blq", kept, w[0, 0])
            shares = tf.nn.softmax(tf.reduce_sum(v * tf.tanh(features + query[:, None]), 2))
            attended = tf.reduce_sum(shares[:, :, None] * kept, 1)
        with tf.compat.v1.variable_scope("attn_output_projection"):
            output = _linear([output, attended], self._size)
        kept = tf.reshape(tf.concat([kept[:, 1:], output[:, None]], 1), [-1, self._length * self._size])
        return output, (state, attended, kept)
