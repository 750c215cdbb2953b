"""Batch normalization with the signature of ``tf.layers`` of TensorFlow 1.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.layer import Layer, chosen, layer_function, static_bool
from tensoropt.errors import GraphError

__all__ = ["BatchNormalization", "batch_normalization"]

# The default initializers that TensorFlow's signatures show. They have no state.
ZEROS = tf.compat.v1.zeros_initializer()
ONES = tf.compat.v1.ones_initializer()


class BatchNormalization(Layer):
    """``tf.layers.BatchNormalization``; see :func:`batch_normalization`."""

    def __init__(
        self,
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
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Callable[..., Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """The arguments are those of :func:`batch_normalization`.

        Raises:
            GraphError: If one is not supported.
        """
        del renorm_clipping, renorm_momentum
        super().__init__(trainable=trainable, name=name, **kwargs)
        if renorm or virtual_batch_size is not None or adjustment is not None:
            raise GraphError(
                f"Layer {self.name!r}: renorm, virtual_batch_size and adjustment are not supported. Leave them out: "
                "statistics are those of the whole batch."
            )
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = beta_initializer
        self.gamma_initializer = gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer = beta_regularizer
        self.gamma_regularizer = gamma_regularizer
        self.beta_constraint = beta_constraint
        self.gamma_constraint = gamma_constraint
        self.fused = fused

    def build(self, input_shape: Any) -> None:
        """Makes the variables.

        Raises:
            GraphError: If an axis does not fit the inputs, or their number of channels is unknown.
        """
        shape = tf.TensorShape(input_shape)
        if shape.rank is None or shape.rank < 2:
            raise GraphError(f"Layer {self.name!r}: its input must have 2 dimensions or more. Got shape {shape}.")
        self._channel = _channel_axis(self.axis, shape.rank, self.name)
        channels = shape.as_list()[self._channel]
        if channels is None:
            raise GraphError(
                f"Layer {self.name!r}: the size of dimension {self._channel} of its input must be known. Got shape "
                f"{shape}. Give the placeholder a fuller shape."
            )
        given = tf.as_dtype(self.dtype or tf.float32)
        dtype = tf.float32 if given in (tf.float16, tf.bfloat16) else given

        def weight(name: str, initializer: Any, regularizer: Any = None, constraint: Any = None, **kind: Any) -> Any:
            return self.add_weight(
                name,
                (channels,),
                dtype=dtype,
                initializer=initializer,
                regularizer=regularizer,
                constraint=constraint,
                **kind,
            )

        self.gamma = self.beta = None
        if self.scale:
            self.gamma = weight("gamma", self.gamma_initializer, self.gamma_regularizer, self.gamma_constraint)
        if self.center:
            self.beta = weight("beta", self.beta_initializer, self.beta_regularizer, self.beta_constraint)
        self.moving_mean = weight("moving_mean", self.moving_mean_initializer, trainable=False)
        self.moving_variance = weight("moving_variance", self.moving_variance_initializer, trainable=False)
        self.built = True

    def call(self, inputs: Any, training: Any = False) -> Any:
        """The normalized inputs; updates of the moving averages join the layer's updates.

        Raises:
            GraphError: If the fused op is wanted and cannot be used.
        """
        channel, dtype = self._channel, self.moving_mean.dtype.base_dtype
        known = static_bool(training)
        fusible = inputs.shape.rank == 4 and channel in (1, 3) and dtype == tf.float32
        if self.fused and not fusible:
            raise GraphError(
                f"Layer {self.name!r}: the fused op needs 4 dimensions, channels in dimension 1 or 3, and float32 or "
                f"16-bit inputs. Got {inputs.dtype.name}{inputs.shape}, axis {self.axis}. Leave fused out."
            )
        means, variances = self.moving_mean, self.moving_variance
        if fusible and known is not None and self.fused is not False:
            layout = "NHWC" if channel == 3 else "NCHW"
            outputs, mean, variance = _fused_normalization(
                inputs, self.beta, self.gamma, means, variances, self.epsilon, layout, known
            )
        else:
            # TensorFlow 1 would fuse inputs of 4 dimensions, and the fused op's variance is the unbiased one.
            unbiased = fusible and self.fused is not False
            outputs, mean, variance = _plain_normalization(
                inputs, self.beta, self.gamma, means, variances, self.epsilon, channel, training, known, unbiased
            )
        if known is not False:
            share = tf.cast(1.0 - self.momentum, dtype)
            share = chosen(training, share, tf.zeros([], dtype))
            self.add_update(_update(means, mean, share))
            self.add_update(_update(variances, variance, share))
        return outputs


@functools.partial(layer_function, BatchNormalization)
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
        beta_regularizer: Function of the variable whose value joins ``REGULARIZATION_LOSSES``.
        gamma_regularizer: The same.
        beta_constraint: Function whose value the variable takes after each update.
        gamma_constraint: The same.
        training: A bool, or a boolean scalar tensor.
        trainable: Whether optimizers train ``beta`` and ``gamma`` by default, and the moving averages are updated.
        name: Name of the scope; default ``batch_normalization``, numbered.
        reuse: Whether to use the variables of an earlier layer of this name; ``AUTO_REUSE`` if there is one.
        renorm: Not supported, with ``renorm_clipping`` and ``renorm_momentum``.
        fused: Whether to use TensorFlow's fused op, which needs 4 dimensions; default wherever it can be used. Where
            only a run knows ``training``, other ops compute the same. Its moving variance is the unbiased one.
        virtual_batch_size: Not supported.
        adjustment: Not supported.

    Returns:
        The inputs' shape and dtype.

    Raises:
        GraphError: If an argument is not supported or does not fit the inputs.
    """


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
    known: bool | None,
    unbiased: bool,
) -> tuple[Any, Any, Any]:
    """The normalized inputs with the statistics of the batch, by ops of their own."""
    rank = inputs.shape.rank
    wide = tf.cast(inputs, moving_mean.dtype)
    mean, variance = tf.convert_to_tensor(moving_mean), tf.convert_to_tensor(moving_variance)
    batch_mean, batch_variance = mean, variance
    if known is not False:
        axes = [axis for axis in range(rank) if axis != channel]
        batch_mean, batch_variance = tf.nn.moments(wide, axes)
        mean, variance = chosen(training, batch_mean, mean), chosen(training, batch_variance, variance)
        if unbiased:
            count = tf.cast(tf.size(wide) // wide.shape.as_list()[channel], wide.dtype)
            batch_variance = batch_variance * (count / tf.maximum(count - 1, 1))

    def along_channel(vector: Any) -> Any:
        if vector is None or channel == rank - 1:
            return vector
        return tf.reshape(vector, [-1 if axis == channel else 1 for axis in range(rank)])

    outputs = tf.nn.batch_normalization(
        wide, along_channel(mean), along_channel(variance), along_channel(beta), along_channel(gamma), epsilon
    )
    return tf.cast(outputs, inputs.dtype), batch_mean, batch_variance


def _update(average: Any, value: Any, share: Any) -> Any:
    """``average -= (average - value) * share``."""
    with tf.name_scope("AssignMovingAvg"):
        return average.assign_sub((tf.convert_to_tensor(average) - value) * share, read_value=False)


def _channel_axis(axis: Any, rank: int, scope: str) -> int:
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    if len(axes) != 1 or not -rank <= axes[0] < rank:
        raise GraphError(f"Layer {scope!r}: axis must be one dimension of the {rank} of its input. Got {axis!r}.")
    return int(axes[0]) % rank
