"""Attention over a memory with the numbers and names of TensorFlow's removed ``tf.contrib.seq2seq``."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror import layers
from tensoropt.api.mirror.cells import RNNCell
from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "AttentionMechanism",
    "AttentionWrapper",
    "AttentionWrapperState",
    "BahdanauAttention",
    "LuongAttention",
    "hardmax",
]

_map = tf.nest.map_structure
_State = namedtuple("_State", ("cell_state", "attention", "time", "alignments", "alignment_history", "attention_state"))


def _dense(units: int | None, name: str, dtype: Any) -> Any:
    return None if units is None else layers.Dense(units, name=name, use_bias=False, dtype=dtype)


def hardmax(logits: Any, name: str | None = None) -> Any:
    """One where the last dimension is largest, and 0 elsewhere."""
    with current_model().enter(), tf.name_scope(name or "Hardmax"):
        logits = tf.convert_to_tensor(logits)
        return tf.one_hot(tf.argmax(logits, -1), tf.shape(logits)[-1], dtype=logits.dtype)


class AttentionMechanism:
    """Gives how much of each place of a memory a query attends to.

    Attributes:
        values: the memory, ``(batch, places, depth)``, with zeros past the end of a sequence.
        keys: what queries are compared with, ``(batch, places, units)``.
        batch_size: of the memory.
        alignments_size: its places.
        state_size: these, too.
    """

    _scope = "attention"

    def __init__(
        self,
        units: int | None,
        memory: Any,
        memory_sequence_length: Any,
        probability_fn: Callable[[Any], Any] | None,
        score_mask_value: float | None,
        dtype: Any,
        queries: int | None,
    ) -> None:
        dtype = dtype or tf.float32
        self._probability = probability_fn or tf.nn.softmax
        self._masked = -float("inf") if score_mask_value is None else score_mask_value
        self.query_layer = _dense(queries, "query_layer", dtype)
        self.memory_layer = _dense(units, "memory_layer", dtype)
        with current_model().enter():
            memory = tf.convert_to_tensor(memory)
            if memory.shape.rank is None or memory.shape.rank < 3:
                raise GraphError(
                    f"{type(self).__name__}: memory must be (batch, places, depth). Got shape {memory.shape}."
                )
            self._mask = None
            if memory_sequence_length is not None:
                self._mask = tf.sequence_mask(memory_sequence_length, tf.shape(memory)[1])
                wide = tf.reshape(
                    tf.cast(self._mask, memory.dtype),
                    tf.concat([tf.shape(self._mask), [1] * (memory.shape.rank - 2)], 0),
                )
                memory = memory * wide
            self.values = memory
            self.keys = memory if self.memory_layer is None else self.memory_layer(memory)
            self.batch_size = memory.shape.as_list()[0] or tf.shape(memory)[0]
            self.alignments_size = memory.shape.as_list()[1] or tf.shape(memory)[1]
            self.state_size = self.alignments_size

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Any:
        """No attention to anything, ``(batch, places)``."""
        return tf.zeros(tf.stack([batch_size, self.alignments_size]), dtype)

    def initial_state(self, batch_size: Any, dtype: Any) -> Any:
        """Returns the state that :meth:`__call__` takes in the first step."""
        return self.initial_alignments(batch_size, dtype)

    def _score(self, query: Any) -> Any:
        raise NotImplementedError

    def __call__(self, query: Any, state: Any = None, previous_alignments: Any = None) -> tuple[Any, Any]:
        """The alignments to a query, ``(batch, places)``, and the next state."""
        with tf.compat.v1.variable_scope(None, self._scope, [query]):
            score = self._score(query)
        if self._mask is not None:
            score = tf.where(self._mask, score, tf.fill(tf.shape(score), tf.cast(self._masked, score.dtype)))
        alignments = self._probability(score)
        return alignments, alignments


class LuongAttention(AttentionMechanism):
    """Scores are products of queries and keys (Luong et al., 2015)."""

    _scope = "luong_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        scale: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        name: str = "LuongAttention",
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            num_units: of keys, which are those of queries.
            memory: ``(batch, places, depth)``.
            memory_sequence_length: ``(batch,)``: no query attends to what lies behind.
            scale: whether scores are multiplied by a variable.
            probability_fn: makes alignments of scores; softmax by default.
            score_mask_value: the score of what lies past the end.
            dtype: of the layers.
            name: without effect.
        """
        super().__init__(num_units, memory, memory_sequence_length, probability_fn, score_mask_value, dtype, None)
        self._scales = scale

    def _score(self, query: Any) -> Any:
        if query.shape[-1] != self.keys.shape[-1]:
            raise GraphError(
                f"LuongAttention: num_units must be the depth of queries, {query.shape[-1]}. Got {self.keys.shape[-1]}."
            )
        score = tf.einsum("bd,bpd->bp", query, self.keys)
        if self._scales:
            ones = tf.compat.v1.ones_initializer()
            score = tf.compat.v1.get_variable("attention_g", (), query.dtype, ones) * score
        return score


class BahdanauAttention(AttentionMechanism):
    """Scores are those of a layer over sums of queries and keys (Bahdanau et al., 2015)."""

    _scope = "bahdanau_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        normalize: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        name: str = "BahdanauAttention",
    ) -> None:
        """Takes the arguments of :class:`LuongAttention`, and whether weights are normalized."""
        super().__init__(num_units, memory, memory_sequence_length, probability_fn, score_mask_value, dtype, num_units)
        self._units, self._normalizes = num_units, normalize

    def _score(self, query: Any) -> Any:
        hidden = self.keys + self.query_layer(query)[:, None]
        dtype = hidden.dtype
        v = tf.compat.v1.get_variable("attention_v", [self._units], dtype)
        if self._normalizes:
            first = tf.compat.v1.constant_initializer((1.0 / self._units) ** 0.5)
            g = tf.compat.v1.get_variable("attention_g", (), dtype, first)
            zeros = tf.compat.v1.zeros_initializer()
            hidden += tf.compat.v1.get_variable("attention_b", [self._units], dtype, zeros)
            v = g * v * tf.math.rsqrt(tf.reduce_sum(tf.square(v)))
        return tf.reduce_sum(v * tf.tanh(hidden), 2)


class AttentionWrapperState(_State):
    """The state of an :class:`AttentionWrapper`."""

    __slots__ = ()

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """A state with other parts, such as the ``cell_state`` of an encoder."""
        return self._replace(**kwargs)


class AttentionWrapper(RNNCell):
    """A cell that reads what it attends to."""

    def __init__(
        self,
        cell: Any,
        attention_mechanism: Any,
        attention_layer_size: Any = None,
        alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None,
        output_attention: bool = True,
        initial_cell_state: Any = None,
        name: str | None = None,
        attention_layer: Any = None,
        attention_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            cell: inside.
            attention_mechanism: one or several.
            attention_layer_size: of the layer over outputs and what is attended to, one for each mechanism; None for
                no layer.
            alignment_history: whether states have the alignments of all steps, in a ``TensorArray``.
            cell_input_fn: makes of inputs and attention what the cell reads; concatenates them by default.
            output_attention: whether the output is the attention, and not the cell's.
            initial_cell_state: what :meth:`zero_state` gives for the cell.
            name: of the scope of the variables.
            attention_layer: in the place of ``attention_layer_size``.
            attention_fn: makes of a mechanism, the cell's output, the state and the layer what is attended to, the
                alignments, and the next state.

        Raises:
            GraphError: there are not as many layers as mechanisms.
        """
        super().__init__(name=name)
        self._is_multi = isinstance(attention_mechanism, list | tuple)
        self._mechanisms = list(attention_mechanism) if self._is_multi else [attention_mechanism]
        if attention_layer_size is not None and attention_layer is not None:
            raise GraphError("AttentionWrapper: give attention_layer_size or attention_layer, and not both.")
        several = isinstance(attention_layer_size, list | tuple) or isinstance(attention_layer, list | tuple)
        given = attention_layer if attention_layer_size is None else attention_layer_size
        made = list(given) if several else [given] * len(self._mechanisms)
        if len(made) != len(self._mechanisms):
            raise GraphError(
                f"AttentionWrapper: needs a layer for each of {len(self._mechanisms)} mechanisms. Got {len(made)}."
            )
        self._sizes = [None if callable(each) else each for each in made]
        self._layers = [each if callable(each) else _dense(each, "attention_layer", None) for each in made]
        self._cell, self._history, self._outputs_attention = cell, alignment_history, output_attention
        self._input = cell_input_fn or (lambda inputs, attention: tf.concat([inputs, attention], -1))
        self._attention_fn, self._first = attention_fn or _attend, initial_cell_state

    @property
    def _attention_size(self) -> int:
        sizes = []
        for mechanism, size, layer in zip(self._mechanisms, self._sizes, self._layers, strict=True):
            depth = mechanism.values.shape[-1]
            if size is None and layer is not None:
                depth = layer.compute_output_shape([None, self._cell.output_size + depth])[-1]
            sizes.append(int(depth if size is None else size))
        return sum(sizes)

    def _item_or_tuple(self, parts: Sequence[Any]) -> Any:
        return tuple(parts) if self._is_multi else parts[0]

    @property
    def output_size(self) -> Any:
        """Size of the output."""
        return self._attention_size if self._outputs_attention else self._cell.output_size

    @property
    def state_size(self) -> Any:
        """Sizes of the state."""
        places = [mechanism.alignments_size for mechanism in self._mechanisms]
        return AttentionWrapperState(
            self._cell.state_size,
            self._attention_size,
            tf.TensorShape([]),
            self._item_or_tuple(places),
            self._item_or_tuple([each if self._history else () for each in places]),
            self._item_or_tuple([mechanism.state_size for mechanism in self._mechanisms]),
        )

    def zero_state(self, batch_size: Any, dtype: Any) -> AttentionWrapperState:
        """The state before the first step."""
        with current_model().enter(), tf.name_scope("AttentionWrapperZeroState"):
            first = self._cell.zero_state(batch_size, dtype) if self._first is None else self._first
            alignments = [mechanism.initial_alignments(batch_size, dtype) for mechanism in self._mechanisms]
            return AttentionWrapperState(
                _map(tf.identity, first),
                tf.zeros(tf.stack([batch_size, self._attention_size]), dtype),
                tf.zeros([], tf.int32),
                self._item_or_tuple(alignments),
                self._item_or_tuple(
                    [
                        tf.TensorArray(dtype, 0, dynamic_size=True, element_shape=each.shape) if self._history else ()
                        for each in alignments
                    ]
                ),
                self._item_or_tuple([each.initial_state(batch_size, dtype) for each in self._mechanisms]),
            )

    def call(self, inputs: Any, state: AttentionWrapperState) -> tuple[Any, AttentionWrapperState]:
        """One step."""
        if not isinstance(state, AttentionWrapperState):
            raise GraphError(
                f"AttentionWrapper: the state must be what zero_state gives, or a clone. Got {type(state).__name__}. "
                "Give an encoder's state by zero_state(…).clone(cell_state=…)."
            )
        output, cell_state = self._cell(self._input(inputs, state.attention), state.cell_state)
        before = state.attention_state if self._is_multi else [state.attention_state]
        histories = state.alignment_history if self._is_multi else [state.alignment_history]
        found = [
            self._attention_fn(mechanism, output, each, layer)
            for mechanism, each, layer in zip(self._mechanisms, before, self._layers, strict=True)
        ]
        attention = tf.concat([each[0] for each in found], 1)
        kept = [
            rows.write(state.time, each[1]) if self._history else ()
            for rows, each in zip(histories, found, strict=True)
        ]
        following = AttentionWrapperState(
            cell_state,
            attention,
            state.time + 1,
            self._item_or_tuple([each[1] for each in found]),
            self._item_or_tuple(kept),
            self._item_or_tuple([each[2] for each in found]),
        )
        return (attention if self._outputs_attention else output), following


def _attend(mechanism: Any, output: Any, state: Any, layer: Any) -> tuple[Any, Any, Any]:
    """Returns the attention, the alignments, and the next state."""
    alignments, following = mechanism(output, state=state)
    attention = tf.einsum("bp,bpd->bd", alignments, mechanism.values)
    if layer is not None:
        attention = layer(tf.concat([output, attention], 1))
    return attention, alignments, following
