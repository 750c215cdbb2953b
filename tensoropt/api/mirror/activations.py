"""Activations that TensorFlow writes with a custom gradient, which a device's local graph could not follow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model

__all__ = ["silu", "swish"]


def silu(features: Any, beta: Any = 1.0) -> Any:
    """``features * sigmoid(beta * features)``, with TensorFlow's signature and values.

    TensorFlow's own keeps less for the backward pass by a custom gradient; here the product keeps both factors.

    Args:
        features: a floating-point tensor.
        beta: scalar.
    """
    with current_model().enter():
        features = tf.convert_to_tensor(features, name="features")
        scale = tf.cast(tf.convert_to_tensor(beta, name="beta"), features.dtype)
        return features * tf.sigmoid(scale * features)


swish = silu
