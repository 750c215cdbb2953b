"""Beam search with the numbers of TensorFlow's removed ``tf.contrib.seq2seq``."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.contrib.seq2seq_decoder import Decoder
from tensoropt.errors import GraphError

__all__ = [
    "BeamSearchDecoder",
    "BeamSearchDecoderOutput",
    "BeamSearchDecoderState",
    "FinalBeamSearchDecoderOutput",
    "gather_tree",
    "tile_batch",
]

_map = tf.nest.map_structure

BeamSearchDecoderState = namedtuple("BeamSearchDecoderState", ("cell_state", "log_probs", "finished", "lengths"))
BeamSearchDecoderOutput = namedtuple("BeamSearchDecoderOutput", ("scores", "predicted_ids", "parent_ids"))
FinalBeamSearchDecoderOutput = namedtuple(
    "FinalBeamSearchDecoderOutput", ("predicted_ids", "beam_search_decoder_output")
)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Each of a batch so many times, one after another.

    Args:
        t: ``(batch, ...)``, or a nest of such tensors.
        multiplier: how many times.
        name: of the ops' scope.
    """
    with current_model().enter(), tf.name_scope(name or "tile_batch"):
        return _map(lambda each: tf.repeat(tf.convert_to_tensor(each), multiplier, axis=0), t)


def gather_tree(step_ids: Any, parent_ids: Any, max_sequence_lengths: Any, end_token: Any) -> Any:
    """The sequences that beams end with, ``(steps, batch, beams)``.

    Args:
        step_ids: of each step, ``(steps, batch, beams)``.
        parent_ids: the beams of the step before that they go on from.
        max_sequence_lengths: ``(batch,)``: steps past it are ``end_token``, as all behind a first one are.
        end_token: a scalar.
    """
    with current_model().enter(), tf.name_scope("GatherTree"):
        step_ids, parent_ids = tf.convert_to_tensor(step_ids), tf.convert_to_tensor(parent_ids)
        steps = tf.shape(step_ids)[0]
        lengths = tf.minimum(tf.cast(max_sequence_lengths, tf.int32), steps)[:, None]
        end = tf.cast(end_token, step_ids.dtype)
        beams = tf.zeros_like(step_ids[0]) + tf.range(tf.shape(step_ids)[2])

        def back(beam_and_ids: Any, given: Any) -> Any:
            beam, _ = beam_and_ids
            time, ids, parents = given
            inside = time < lengths
            found = tf.where(inside, tf.gather(ids, beam, batch_dims=1), end)
            return tf.where(inside, tf.gather(parents, beam, batch_dims=1), beam), found

        _, ids = tf.scan(back, (tf.range(steps), step_ids, parent_ids), (beams, beams), reverse=True)
        ended = tf.cumsum(tf.cast(tf.equal(ids, end), tf.int32), 0, exclusive=True) > 0
        return tf.where(ended, tf.zeros_like(ids) + end, ids)


class BeamSearchDecoder(Decoder):
    """Goes on with the best sequences of each example."""

    tracks_own_finished = True

    def __init__(
        self,
        cell: Any,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        initial_state: Any,
        beam_width: int,
        output_layer: Any = None,
        length_penalty_weight: float = 0.0,
        coverage_penalty_weight: float = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            cell: what gives logits.
            embedding: a table, or a function of ids.
            start_tokens: the first ids, ``(batch,)``.
            end_token: the id that ends a sequence.
            initial_state: of the cell, of a batch that :func:`tile_batch` made.
            beam_width: how many sequences.
            output_layer: over the cell's outputs.
            length_penalty_weight: how much longer sequences are preferred.
            coverage_penalty_weight: not supported.
            reorder_tensor_arrays: without effect.

        Raises:
            GraphError: for a penalty of coverage, a ``TensorArray`` in the state, or other numbers of dimensions.
        """
        del reorder_tensor_arrays
        if coverage_penalty_weight:
            raise GraphError("BeamSearchDecoder: coverage_penalty_weight is not supported. Leave it out.")
        with current_model().enter():
            self._cell, self._layer = cell, output_layer
            self._embedding = embedding if callable(embedding) else lambda ids: tf.nn.embedding_lookup(embedding, ids)
            start = tf.convert_to_tensor(start_tokens, tf.int32)
            self._end = tf.convert_to_tensor(end_token, tf.int32)
            if (start.shape.rank, self._end.shape.rank) != (1, 0):
                raise GraphError(
                    "BeamSearchDecoder: needs start_tokens (batch,) and a scalar end_token. Got "
                    f"{start.shape} and {self._end.shape}."
                )
            self._beams, self._penalty = int(beam_width), length_penalty_weight
            self._static = start.shape.as_list()[0]
            self._batch = tf.size(start)
            self._first = _map(self._split, initial_state)
            self._start = tf.tile(start[:, None], [1, self._beams])

    def _split(self, tensor: Any) -> Any:
        """Splits the first dimension into batch and beams: ``(batch, beams, ...)``."""
        if isinstance(tensor, tf.TensorArray):
            raise GraphError(
                "BeamSearchDecoder: a state with a TensorArray cannot follow beams. Leave out alignment_history."
            )
        if tensor.shape.rank == 0:
            return tensor
        static, shape = tensor.shape.as_list(), tf.shape(tensor)
        made = tf.reshape(tensor, tf.concat([[self._batch, self._beams], shape[1:]], 0))
        made.set_shape([self._static, self._beams, *static[1:]])
        return made

    def _merge(self, tensor: Any) -> Any:
        if tensor.shape.rank < 2:
            return tensor
        static, shape = tensor.shape.as_list(), tf.shape(tensor)
        made = tf.reshape(tensor, tf.concat([[self._batch * self._beams], shape[2:]], 0))
        made.set_shape([None if self._static is None else self._static * self._beams, *static[2:]])
        return made

    @property
    def batch_size(self) -> Any:
        """How many examples."""
        return self._batch

    @property
    def output_size(self) -> BeamSearchDecoderOutput:
        """Sizes of the outputs of a step, without the batch's."""
        return BeamSearchDecoderOutput(*(tf.TensorShape([self._beams]) for _ in range(3)))

    @property
    def output_dtype(self) -> BeamSearchDecoderOutput:
        """Their dtypes."""
        return BeamSearchDecoderOutput(tf.nest.flatten(self._first)[0].dtype, tf.int32, tf.int32)

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Only the first beam counts, as all are the same."""
        dtype = tf.nest.flatten(self._first)[0].dtype
        others = tf.tile(tf.range(self._beams)[None] > 0, [self._batch, 1])
        others.set_shape([self._static, self._beams])
        scores = tf.where(others, tf.fill(tf.shape(others), tf.constant(-float("inf"), dtype)), tf.cast(0, dtype))
        state = BeamSearchDecoderState(self._first, scores, others, tf.zeros_like(others, tf.int64))
        return others, self._embedding(self._start), state

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """See :class:`Decoder`."""
        with tf.name_scope(name or "BeamSearchDecoderStep"):
            outputs, cell_state = self._cell(_map(self._merge, inputs), _map(self._merge, state.cell_state))
            logits, cell_state = self._split(outputs), _map(self._split, cell_state)
            if self._layer is not None:
                logits = self._layer(logits)
            words = logits.shape.as_list()[-1] or tf.shape(logits)[-1]
            # What has ended goes on with end tokens, at no cost.
            only_end = tf.one_hot(self._end, words, tf.cast(0, logits.dtype), logits.dtype.min, dtype=logits.dtype)
            ended = state.finished[:, :, None]
            total = state.log_probs[:, :, None] + tf.where(ended, only_end, tf.nn.log_softmax(logits))
            is_end = tf.cast(tf.equal(tf.range(words), self._end), tf.int64)
            grows = tf.cast(tf.logical_not(ended), tf.int64) * (1 - is_end)
            scores = total / self._length_penalty(state.lengths[:, :, None] + grows, total.dtype)
            best, places = tf.math.top_k(tf.reshape(scores, [self._batch, self._beams * words]), self._beams)
            ids, parents = places % words, places // words
            finished, lengths = (tf.gather(each, parents, batch_dims=1) for each in (state.finished, state.lengths))
            following = BeamSearchDecoderState(
                _map(lambda each: tf.gather(each, parents, batch_dims=1) if each.shape.rank >= 2 else each, cell_state),
                tf.gather(tf.reshape(total, [self._batch, self._beams * words]), places, batch_dims=1),
                tf.logical_or(finished, tf.equal(ids, self._end)),
                lengths + tf.cast(tf.logical_not(finished), tf.int64),
            )
            output = BeamSearchDecoderOutput(best, ids, parents)
            return output, following, self._embedding(ids), following.finished

    def _length_penalty(self, lengths: Any, dtype: Any) -> Any:
        if tf.get_static_value(self._penalty) == 0:
            return tf.ones([], dtype)
        return ((5.0 + tf.cast(lengths, dtype)) / 6.0) ** self._penalty

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """The sequences of all beams."""
        longest = tf.reduce_max(final_state.lengths, 1)
        ids = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end)
        return FinalBeamSearchDecoderOutput(ids, outputs), final_state
