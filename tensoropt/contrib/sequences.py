"""Sequences in TensorFlow's removed ``tf.contrib``: their embeddings, an old decoder, and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["embed_sequence", "rnn_decoder", "sequence_loss", "sequence_loss_by_example", "sequence_loss_of_steps"]

# What keeps a sum of weights that are all 0 from dividing by 0; TensorFlow's.
_NOT_ZERO = 1e-12


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """``tf.contrib.layers.embed_sequence``: a row of ``embeddings`` for each id.

    Args:
        ids: ``(batch, length)``.
        vocab_size: rows of the table, which with ``reuse`` need not be given.
        embed_dim: their length.
        unique: without effect.
        initializer: of the table.
        regularizer: of the table.
        trainable: whether optimizers train the table by default.
        scope: name of the variable scope; default ``EmbedSequence``, numbered.
        reuse: whether an earlier table is taken.

    Raises:
        GraphError: without sizes, where no table is reused.
    """
    del unique
    if not reuse and (vocab_size is None or embed_dim is None):
        raise GraphError("contrib.layers.embed_sequence: needs vocab_size and embed_dim for a new table. Give both.")
    shape = None if vocab_size is None or embed_dim is None else [vocab_size, embed_dim]
    with current_model().enter(), tf.compat.v1.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        table = tf.compat.v1.get_variable(
            "embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return tf.nn.embedding_lookup(table, ids)


def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Callable[[Any, int], Any] | None = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """``tf.contrib.legacy_seq2seq.rnn_decoder``: a cell, step by step.

    Args:
        decoder_inputs: what the cell reads in each step, ``(batch, depth)``.
        initial_state: the cell's state before the first step.
        cell: of ``tensoropt.nn.rnn_cell``.
        loop_function: ``(the last output, the step)`` -> what the cell reads instead, from the second step on.
        scope: of the cell's variables; default ``rnn_decoder``.

    Returns:
        The outputs, and the last state.
    """
    with current_model().enter(), tf.compat.v1.variable_scope(scope or "rnn_decoder"):
        outputs: list[Any] = []
        state = initial_state
        for step, given in enumerate(decoder_inputs):
            if loop_function is not None and outputs:
                with tf.compat.v1.variable_scope("loop_function", reuse=True):
                    given = loop_function(outputs[-1], step)
            if step:
                tf.compat.v1.get_variable_scope().reuse_variables()
            output, state = cell(given, state)
            outputs.append(output)
        return outputs, state


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """``tf.contrib.legacy_seq2seq.sequence_loss_by_example``: cross-entropies of steps, weighted and added up.

    Args:
        logits: of each step, ``(batch, classes)``.
        targets: of each step the classes, ``(batch,)``.
        weights: of each step, ``(batch,)``.
        average_across_timesteps: whether the sum is divided by that of the weights.
        softmax_loss_function: ``(labels=, logits=)`` -> losses ``(batch,)``, instead of the cross-entropy.
        name: of the ops.

    Returns:
        ``(batch,)``.

    Raises:
        GraphError: there are not as many of each.
    """
    if not len(logits) == len(targets) == len(weights):
        raise GraphError(
            "legacy_seq2seq.sequence_loss_by_example: there must be logits, targets and weights for each step. Got "
            f"{len(logits)}, {len(targets)} and {len(weights)}."
        )
    with current_model().enter(), tf.name_scope(name or "sequence_loss_by_example"):
        losses = [
            _losses(scores, classes, softmax_loss_function) * weight
            for scores, classes, weight in zip(logits, targets, weights, strict=True)
        ]
        total = tf.add_n(losses)
        return total / (tf.add_n(list(weights)) + _NOT_ZERO) if average_across_timesteps else total


def sequence_loss_of_steps(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """``tf.contrib.legacy_seq2seq.sequence_loss``: the sum of :func:`sequence_loss_by_example`, a scalar.

    Args:
        logits: see there, as ``targets``, ``weights``, ``average_across_timesteps`` and ``softmax_loss_function``.
        targets: of each step.
        weights: of each step.
        average_across_timesteps: whether it is divided by the sum of weights.
        average_across_batch: whether it is divided by the batch's size.
        softmax_loss_function: instead of the cross-entropy.
        name: of the ops.
    """
    with current_model().enter(), tf.name_scope(name or "sequence_loss"):
        total = tf.reduce_sum(
            sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        )
        return total / tf.cast(tf.shape(targets[0])[0], total.dtype) if average_across_batch else total


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """``tf.contrib.seq2seq.sequence_loss``: weighted cross-entropies of sequences.

    Args:
        logits: ``(batch, steps, classes)``.
        targets: the classes, ``(batch, steps)``.
        weights: ``(batch, steps)``.
        average_across_timesteps: whether steps are added up and divided by their weights.
        average_across_batch: whether sequences are.
        softmax_loss_function: ``(labels=, logits=)`` -> losses, instead of the cross-entropy.
        name: of the ops.

    Returns:
        A scalar, or what is not averaged over.

    Raises:
        GraphError: for other numbers of dimensions.
    """
    with current_model().enter(), tf.name_scope(name or "sequence_loss"):
        logits, targets, weights = map(tf.convert_to_tensor, (logits, targets, weights))
        if (logits.shape.rank, targets.shape.rank, weights.shape.rank) != (3, 2, 2):
            raise GraphError(
                "seq2seq.sequence_loss: needs logits (batch, steps, classes), and targets and weights (batch, steps). "
                f"Got {logits.shape}, {targets.shape} and {weights.shape}."
            )
        losses = _losses(tf.reshape(logits, [-1, logits.shape.as_list()[2]]), targets, softmax_loss_function)
        losses = tf.reshape(losses, tf.shape(targets)) * weights
        axes = [axis for axis, averaged in enumerate((average_across_batch, average_across_timesteps)) if averaged]
        if not axes:
            return losses
        return tf.reduce_sum(losses, axes) / (tf.reduce_sum(weights, axes) + _NOT_ZERO)


def _losses(logits: Any, targets: Any, loss: Callable[..., Any] | None) -> Any:
    targets = tf.reshape(targets, [-1])
    return (loss or tf.nn.sparse_softmax_cross_entropy_with_logits)(labels=targets, logits=logits)
