"""What scripts take most of TensorFlow's removed ``tf.contrib.metrics``: predictions come before labels there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["STREAMING", "accuracy"]


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
    """``tf.contrib.metrics.accuracy``: how many of a batch's predictions are its labels, from 0 to 1.

    Args:
        predictions: of any shape.
        labels: of that shape and dtype.
        weights: of that shape, or one that is broadcast to it.
        name: of the ops.

    Raises:
        GraphError: for other shapes or dtypes.
    """
    with current_model().enter(), tf.name_scope(name or "accuracy"):
        predictions, labels = tf.convert_to_tensor(predictions), tf.convert_to_tensor(labels)
        if not predictions.shape.is_compatible_with(labels.shape) or predictions.dtype != labels.dtype:
            raise GraphError(
                "contrib.metrics.accuracy: predictions and labels must be alike. Got "
                f"{predictions.dtype.name}{predictions.shape} and {labels.dtype.name}{labels.shape}."
            )
        right = tf.cast(tf.equal(predictions, labels), tf.float32)
        if weights is None:
            return tf.reduce_mean(right)
        weights = tf.cast(weights, tf.float32) * tf.ones_like(right)
        return tf.reduce_sum(right * weights) / tf.reduce_sum(weights)


def _streaming(kind: str) -> Callable[..., Any]:
    def metric(predictions: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        with current_model().enter():
            return getattr(tf.compat.v1.metrics, kind)(labels, predictions, *args, **kwargs)

    metric.__name__ = metric.__qualname__ = f"streaming_{kind}"
    metric.__doc__ = f"``tf.metrics.{kind}`` of ``(predictions, labels)``; what else it takes comes after these."
    return metric


#: Metrics that go on from batch to batch, by name.
STREAMING = {
    f"streaming_{kind}": _streaming(kind)
    for kind in (
        "accuracy", "auc", "false_negatives", "false_positives", "mean_absolute_error", "mean_iou",
        "mean_relative_error", "mean_squared_error", "precision", "recall", "root_mean_squared_error",
        "true_negatives", "true_positives",
    )
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in STREAMING:
        return STREAMING[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
