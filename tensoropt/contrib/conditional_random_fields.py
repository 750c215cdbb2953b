"""Linear-chain conditional random fields with the numbers of TensorFlow's removed ``tf.contrib.crf``.

Recursions over steps are recurrent networks, which are written out where the number of steps is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.api.mirror.recurrent import dynamic_rnn
from tensoropt.errors import GraphError

__all__ = [
    "crf_binary_score",
    "crf_decode",
    "crf_log_likelihood",
    "crf_log_norm",
    "crf_multitag_sequence_score",
    "crf_sequence_score",
    "crf_unary_score",
    "viterbi_decode",
    "viterbi_score",
]


class _Cell:
    """A cell without variables."""

    state_size = output_size = 1

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The state of zeros."""
        return tf.zeros(tf.stack([batch_size, self.state_size]), dtype)


class _Step(_Cell):
    """A cell whose state is a value for each tag."""

    def __init__(self, transitions: Any, decodes: bool) -> None:
        self._transitions, self._decodes = transitions[None], decodes
        self.state_size = self.output_size = int(transitions.shape[0])

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """The best tags before, or the state; and the next state."""
        del scope
        paths = state[:, :, None] + self._transitions
        if self._decodes:
            return tf.argmax(paths, 1, tf.int32), inputs + tf.reduce_max(paths, 1)
        state = inputs + tf.reduce_logsumexp(paths, 1)
        return state, state


class _Back(_Cell):
    """A cell that follows the best tags backwards."""

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """The tag before, twice."""
        del scope
        tags = tf.gather(inputs, state, batch_dims=1)
        return tags, tags


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> Any:
    """The sum of the potentials of the tags of each sequence, ``(batch,)``."""
    with current_model().enter():
        tag_indices, inputs = tf.convert_to_tensor(tag_indices), tf.convert_to_tensor(inputs)
        scores = tf.gather(inputs, tag_indices, batch_dims=2)
        return tf.reduce_sum(scores * _mask(sequence_lengths, tag_indices, scores.dtype), 1)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """The sum of the transitions of each sequence, ``(batch,)``."""
    with current_model().enter():
        tag_indices, table = tf.convert_to_tensor(tag_indices), tf.convert_to_tensor(transition_params)
        count = tf.cast(tf.shape(table)[1], tag_indices.dtype)
        scores = tf.gather(tf.reshape(table, [-1]), tag_indices[:, :-1] * count + tag_indices[:, 1:])
        return tf.reduce_sum(scores * _mask(sequence_lengths, tag_indices, scores.dtype)[:, 1:], 1)


def crf_sequence_score(inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """The score of each sequence of tags, ``(batch,)``: 0 for one of no steps."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_multitag_sequence_score(inputs: Any, tag_bitmap: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """The score of all sequences of tags that a ``(batch, steps, tags)`` of bools permits, ``(batch,)``."""
    with current_model().enter():
        inputs = tf.convert_to_tensor(inputs)
        permitted = tf.where(tf.cast(tag_bitmap, tf.bool), inputs, tf.fill(tf.shape(inputs), -np.inf))
        return crf_log_norm(permitted, sequence_lengths, transition_params)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> Any:
    """The logarithm of what scores are normalized by, ``(batch,)``: 0 for a sequence of no steps.

    Args:
        inputs: potentials, ``(batch, steps, tags)``.
        sequence_lengths: ``(batch,)``.
        transition_params: ``(tags, tags)``, from one tag to the next.
    """
    with current_model().enter():
        inputs, table = tf.convert_to_tensor(inputs), tf.convert_to_tensor(transition_params)
        first, lengths = inputs[:, 0], tf.convert_to_tensor(sequence_lengths)
        last = first
        if inputs.shape[1] != 1:
            _, last = dynamic_rnn(_Step(table, False), inputs[:, 1:], _but_one(lengths), first, inputs.dtype)
        norm = tf.reduce_logsumexp(last, 1)
        return tf.where(lengths <= 0, tf.zeros_like(norm), norm)


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple[Any, Any]:
    """The logarithm of the probability of each sequence of tags, and the transitions.

    Args:
        inputs: potentials, ``(batch, steps, tags)``.
        tag_indices: ``(batch, steps)``.
        sequence_lengths: ``(batch,)``.
        transition_params: ``(tags, tags)``; by default a variable ``transitions``.

    Raises:
        GraphError: the number of tags is open.
    """
    with current_model().enter():
        inputs = tf.convert_to_tensor(inputs)
        tags = inputs.shape.as_list()[2]
        if transition_params is None:
            if tags is None:
                raise GraphError(
                    f"crf_log_likelihood: the number of tags must be known. Got inputs {inputs.shape}. Give their last "
                    "dimension a size."
                )
            transition_params = tf.compat.v1.get_variable("transitions", [tags, tags])
        table = tf.convert_to_tensor(transition_params)  # read once: an update may come between two reads
        score = crf_sequence_score(inputs, tag_indices, sequence_lengths, table)
        return score - crf_log_norm(inputs, sequence_lengths, table), transition_params


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple[Any, Any]:
    """The most probable tags of each sequence, ``(batch, steps)`` int32, and their score, ``(batch,)``.

    Args:
        potentials: ``(batch, steps, tags)``.
        transition_params: ``(tags, tags)``.
        sequence_length: ``(batch,)``.
    """
    with current_model().enter():
        potentials, table = tf.convert_to_tensor(potentials), tf.convert_to_tensor(transition_params)
        lengths = tf.convert_to_tensor(sequence_length)
        first = potentials[:, 0]
        if potentials.shape[1] == 1:
            return tf.argmax(first, 1, tf.int32)[:, None], tf.reduce_max(first, 1)
        others = _but_one(lengths)
        back, last = dynamic_rnn(_Step(table, True), potentials[:, 1:], others, first, tf.int32)
        back = tf.reverse_sequence(back, others, seq_axis=1)
        end = tf.argmax(last, 1, tf.int32)[:, None]
        tags, _ = dynamic_rnn(_Back(), back, others, end, tf.int32)
        tags = tf.concat([end, tags[:, :, 0]], 1)
        return tf.reverse_sequence(tags, lengths, seq_axis=1), tf.reduce_max(last, 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple[list[int], Any]:
    """The most probable tags of one sequence, by NumPy: ``(steps, tags)`` -> a list, and its score."""
    score, table = np.asarray(score), np.asarray(transition_params)
    best, back = score[0], []
    for step in score[1:]:
        paths = best[:, None] + table
        back.append(paths.argmax(0))
        best = step + paths.max(0)
    tags = [int(best.argmax())]
    for pointers in reversed(back):
        tags.append(int(pointers[tags[-1]]))
    return tags[::-1], best.max()


def viterbi_score(score: Any, transition_params: Any) -> Any:
    """The score of :func:`viterbi_decode`."""
    return viterbi_decode(score, transition_params)[1]


def _mask(lengths: Any, tags: Any, dtype: Any) -> Any:
    return tf.sequence_mask(lengths, tf.shape(tags)[1], dtype)


def _but_one(lengths: Any) -> Any:
    return tf.maximum(lengths - 1, tf.zeros([], lengths.dtype))
