"""The loss of the paper's Listing 1. TensorFlow's own losses are mirrored in ``tensoropt.losses``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["softmax_cross_entropy"]


def softmax_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> Any:
    """Mean softmax cross-entropy over all examples (TensorOpt, Listing 1).

    No gradient flows into the labels. 16-bit logits are raised to float32 for the computation.

    Args:
        labels: Either the logits' shape, one-hot or any probabilities; or integer class ids of one dimension
            less.
        logits: Unscaled scores, floating point, at least 2 dimensions, classes last.
        name: Name scope of the ops made; default ``softmax_cross_entropy``.

    Returns:
        A scalar of the logits' dtype.

    Raises:
        GraphError: If the shapes or dtypes do not fit.
    """
    with current_model().enter(), tf.name_scope(name or "softmax_cross_entropy") as scope:
        logits = tf.convert_to_tensor(logits, name="logits")
        labels = tf.convert_to_tensor(labels, name="labels")
        _check(labels, logits, scope)
        dtype = logits.dtype
        precise = tf.cast(logits, tf.float32) if dtype in (tf.float16, tf.bfloat16) else logits
        classes = logits.shape.as_list()[-1]
        flat = precise if precise.shape.rank == 2 else tf.reshape(precise, [-1, classes])
        if labels.shape.rank == logits.shape.rank:
            targets = tf.cast(tf.stop_gradient(labels), flat.dtype)
            targets = targets if targets.shape.rank == 2 else tf.reshape(targets, [-1, classes])
            losses, _ = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=flat, labels=targets)
        else:
            ids = labels if labels.dtype in (tf.int32, tf.int64) else tf.cast(labels, tf.int64)
            ids = ids if ids.shape.rank == 1 else tf.reshape(ids, [-1])
            losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=flat, labels=ids)
        return tf.cast(tf.reduce_mean(losses), dtype)


def _check(labels: Any, logits: Any, scope: str) -> None:
    subject = f"softmax_cross_entropy {scope.rstrip('/')!r}"
    got = f"Got labels {labels.dtype.name}{labels.shape}, logits {logits.dtype.name}{logits.shape}."
    rank = logits.shape.rank
    if not logits.dtype.is_floating:
        raise GraphError(f"{subject}: logits must be floating point. {got} Cast them.")
    if rank is None or rank < 2 or logits.shape.as_list()[-1] is None:
        raise GraphError(
            f"{subject}: logits need 2 or more dimensions and a known number of classes. {got} "
            "Give the placeholder or variable behind them a shape."
        )
    if labels.shape.rank == rank:
        if not labels.shape.is_compatible_with(logits.shape):
            raise GraphError(f"{subject}: labels of the logits' rank must have the logits' shape. {got}")
    elif labels.shape.rank == rank - 1 and labels.dtype.is_integer:
        if not labels.shape.is_compatible_with(logits.shape[:-1]):
            raise GraphError(f"{subject}: class ids must have the logits' shape without its last dimension. {got}")
    else:
        raise GraphError(
            f"{subject}: labels must be probabilities of the logits' shape, or integer class ids of one "
            "dimension "
            f"less. {got}"
        )
