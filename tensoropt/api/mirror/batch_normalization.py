"""Batch normalization with the signature of ``tf.layers`` of TensorFlow 1.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.layer import (
    ONES,
    ZEROS,
    checked_rank,
    known_size,
    layer_scope,
    layer_variable,
    static_bool,
)
from tensoropt.errors import GraphError

__all__ = ["batch_normalization"]


def batch_normalization(
    inputs: Any,
    axis: Any = -1,
    momentum: Any = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = ZEROS,
    gamma_initializer: Any = ONES,
    moving_mean_initializer: Any = ZEROS,
    moving_variance_initializer: Any = ONES,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Callable[..., Any] | None = None,
) -> Any:
    """Normalize each channel by its mean and variance: the batch's in training, the moving ones otherwise.

    The batch is the whole batch, however many devices share it. The updates of the moving averages are in the
    collection ``UPDATE_OPS``; run them with the step by making it under ``tensoropt.control_dependencies``.

    Args:
        inputs: Floating point, 2 or more dimensions; the number of channels known.
        axis: The dimension of the channels.
        momentum: Weight of the old moving average.
        epsilon: Added to the variance.
        center: Whether there is an offset ``beta``.
        scale: Whether there is a factor ``gamma``.
        beta_initializer: For ``beta``; the next three for ``gamma`` and the moving averages.
        beta_regularizer: See :func:`dense`, as the next three and ``trainable``, ``name`` and ``reuse``.
        training: A bool, or a boolean scalar tensor.
        renorm: Not supported, with ``renorm_clipping`` and ``renorm_momentum``.
        fused: Whether to use TensorFlow's fused op, which needs 4 dimensions and a ``training`` known now;
            default wherever it can be used. Its moving variance is the unbiased one, as in TensorFlow 1.
        virtual_batch_size: Not supported.
        adjustment: Not supported.

    Returns:
        The inputs' shape and dtype.

    Raises:
        GraphError: If an argument is not supported or does not fit the inputs.
    """
    del renorm_clipping, renorm_momentum
    with layer_scope("batch_normalization", name, reuse) as scope:
        if renorm or virtual_batch_size is not None or adjustment is not None:
            raise GraphError(
                f"Layer {scope!r}: renorm, virtual_batch_size and adjustment are not supported. Leave them "
                "out: "
                "statistics are those of the whole batch."
            )
        inputs = tf.convert_to_tensor(inputs)
        rank = checked_rank(inputs, scope, range(2, 9))
        channel = _channel_axis(axis, rank, scope)
        dtype = tf.float32 if inputs.dtype in (tf.float16, tf.bfloat16) else inputs.dtype
        shape = (known_size(inputs, channel, scope),)
        beta = gamma = None
        if scale:
            gamma = layer_variable(
                "gamma", shape, dtype, gamma_initializer, gamma_regularizer, gamma_constraint, trainable
            )
        if center:
            beta = layer_variable("beta", shape, dtype, beta_initializer, beta_regularizer, beta_constraint, trainable)
        moving_mean = layer_variable("moving_mean", shape, dtype, moving_mean_initializer, None, None, False)
        moving_variance = layer_variable(
            "moving_variance", shape, dtype, moving_variance_initializer, None, None, False
        )
        fixed = static_bool(training)
        fusible = rank == 4 and channel in (1, 3) and dtype == tf.float32
        if fused and not (fusible and fixed is not None):
            raise GraphError(
                f"Layer {scope!r}: the fused op needs 4 dimensions, channels in dimension 1 or 3, float32 "
                "or 16-bit "
                f"inputs and a training flag known now. Got {inputs.dtype.name}{inputs.shape}, axis {axis}, "
                "training "
                f"{training!r}. Leave fused out."
            )
        if fusible and fixed is not None and fused is not False:
            layout = "NHWC" if channel == 3 else "NCHW"
            outputs, mean, variance = _fused_normalization(
                inputs, beta, gamma, moving_mean, moving_variance, epsilon, layout, fixed
            )
        else:
            # TensorFlow 1 would fuse inputs of 4 dimensions, and the fused op's variance is the unbiased one.
            unbiased = fusible and fused is not False
            outputs, mean, variance = _plain_normalization(
                inputs, beta, gamma, moving_mean, moving_variance, epsilon, channel, training, fixed, unbiased
            )
        if fixed is not False:
            share = tf.cast(1.0 - momentum, dtype)
            if fixed is None:
                share = tf.where(training, share, tf.zeros([], dtype))
            _add_update(moving_mean, mean, share)
            _add_update(moving_variance, variance, share)
        return outputs


def _fused_normalization(
    inputs: Any, beta: Any, gamma: Any, mean: Any, variance: Any, epsilon: float, layout: str, training: bool
) -> tuple[Any, Any, Any]:
    """The normalized inputs with the statistics of the batch, by ``FusedBatchNormV3``."""
    outputs, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(
        inputs,
        tf.ones_like(mean) if gamma is None else gamma,
        tf.zeros_like(mean) if beta is None else beta,
        mean=None if training else mean,
        variance=None if training else variance,
        epsilon=epsilon,
        data_format=layout,
        is_training=training,
    )
    return outputs, batch_mean, batch_variance


def _plain_normalization(
    inputs: Any,
    beta: Any,
    gamma: Any,
    moving_mean: Any,
    moving_variance: Any,
    epsilon: float,
    channel: int,
    training: Any,
    fixed: bool | None,
    unbiased: bool,
) -> tuple[Any, Any, Any]:
    """The normalized inputs with the statistics of the batch, by ops of their own."""
    rank = inputs.shape.rank
    wide = tf.cast(inputs, moving_mean.dtype)
    mean, variance = tf.convert_to_tensor(moving_mean), tf.convert_to_tensor(moving_variance)
    batch_mean, batch_variance = mean, variance
    if fixed is not False:
        axes = [axis for axis in range(rank) if axis != channel]
        batch_mean, batch_variance = tf.nn.moments(wide, axes)
        if fixed is None:
            mean = tf.where(training, batch_mean, mean)
            variance = tf.where(training, batch_variance, variance)
        else:
            mean, variance = batch_mean, batch_variance
        if unbiased:
            count = tf.cast(tf.size(wide) // wide.shape[channel], wide.dtype)
            batch_variance = batch_variance * (count / tf.maximum(count - 1, 1))

    def along_channel(vector: Any) -> Any:
        if vector is None or channel == rank - 1:
            return vector
        return tf.reshape(vector, [-1 if axis == channel else 1 for axis in range(rank)])

    outputs = tf.nn.batch_normalization(
        wide, along_channel(mean), along_channel(variance), along_channel(beta), along_channel(gamma), epsilon
    )
    return tf.cast(outputs, inputs.dtype), batch_mean, batch_variance


def _add_update(average: Any, value: Any, share: Any) -> None:
    """Add ``average -= (average - value) * share`` to the updates that go with a step."""
    with tf.name_scope("AssignMovingAvg"):
        update = average.assign_sub((tf.convert_to_tensor(average) - value) * share, read_value=False)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)


def _channel_axis(axis: Any, rank: int, scope: str) -> int:
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    if len(axes) != 1 or not -rank <= axes[0] < rank:
        raise GraphError(f"Layer {scope!r}: axis must be one dimension of the {rank} of its input. Got {axis!r}.")
    return int(axes[0]) % rank
