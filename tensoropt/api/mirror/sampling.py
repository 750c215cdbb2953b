"""Losses over sampled classes, with tensors whose sizes are known: TensorFlow lists the accidental hits of a batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model

__all__ = ["nce_loss", "sampled_softmax_loss"]


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Any:
    """``tf.nn.nce_loss``: noise-contrastive estimation, with TensorFlow's signature, draws and values.

    Args:
        weights: ``(num_classes, dim)``.
        biases: ``(num_classes,)``.
        labels: ``(batch, num_true)`` classes.
        inputs: ``(batch, dim)``.
        num_sampled: how many classes are drawn for a batch.
        num_classes: how many there are.
        num_true: how many each example has.
        sampled_values: what a candidate sampler gave; by default of ``log_uniform_candidate_sampler``.
        remove_accidental_hits: whether a class that was drawn and is an example's own counts for nothing there.
        partition_strategy: where ``weights`` are a list.
        name: of the ops' scope.

    Returns:
        ``(batch,)``.
    """
    with current_model().enter():
        logits, targets = _sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, name, None,
        )  # fmt: skip
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name="sampled_losses")
        return tf.reduce_sum(losses, 1)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Any:
    """``tf.nn.sampled_softmax_loss``: softmax cross-entropy among sampled classes.

    Args and result are those of :func:`nce_loss`; ``seed`` is the sampler's.
    """
    with current_model().enter():
        logits, targets = _sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, name, seed,
        )  # fmt: skip
        targets = tf.stop_gradient(targets, name="labels_stop_gradient")
        return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    partition_strategy: str,
    name: str,
    seed: int | None,
) -> tuple[Any, Any]:
    """Scores of the true and of the sampled classes less the logarithms of how often they are drawn; the targets.

    Both are ``(batch, num_true + num_sampled)``.
    """
    with tf.name_scope(name):
        inputs = tf.convert_to_tensor(inputs)
        labels = tf.cast(tf.convert_to_tensor(labels), tf.int64)
        flat = tf.reshape(labels, [-1])
        if sampled_values is None:
            sampled_values = tf.random.log_uniform_candidate_sampler(
                labels, num_true, num_sampled, True, num_classes, seed=seed
            )
        drawn, true_count, drawn_count = (tf.stop_gradient(each) for each in sampled_values)
        drawn = tf.cast(drawn, tf.int64)
        # One lookup, so that rows of the gradient are those of TensorFlow.
        ids = tf.concat([flat, drawn], 0)
        sizes = [tf.size(flat), num_sampled]
        lookup = tf.compat.v1.nn.embedding_lookup
        rows = tf.cast(lookup(weights, ids, partition_strategy=partition_strategy), inputs.dtype)
        shifts = tf.cast(lookup(biases, ids, partition_strategy=partition_strategy), inputs.dtype)
        true_rows, drawn_rows = tf.split(rows, sizes)
        true_shifts, drawn_shifts = tf.split(shifts, sizes)
        width = inputs.shape.as_list()[-1]
        products = inputs[:, tf.newaxis, :] * tf.reshape(true_rows, [-1, num_true, width])
        true_logits = tf.reduce_sum(products, 2) + tf.reshape(true_shifts, [-1, num_true])
        logits = tf.matmul(inputs, drawn_rows, transpose_b=True) + drawn_shifts
        if remove_accidental_hits:
            is_hit = tf.reduce_any(tf.equal(labels[:, :, tf.newaxis], drawn), 1)
            logits += tf.where(is_hit, tf.constant(inputs.dtype.min, inputs.dtype), tf.zeros([], inputs.dtype))
        true_logits -= tf.math.log(true_count)
        logits -= tf.math.log(drawn_count)
        targets = [tf.ones_like(true_logits) / num_true, tf.zeros_like(logits)]
        return tf.concat([true_logits, logits], 1), tf.concat(targets, 1)
