"""The normalizations of ``tensoropt.contrib.layers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror import layers
from tensoropt.api.mirror.contrib_scopes import CHANNELS, finished, layer_scope
from tensoropt.errors import GraphError

__all__ = ["batch_norm", "instance_norm", "layer_norm"]

_HALVES_EPSILON = 1e-3  # 1e-12 is none in float16


def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Any = None,
    param_initializers: Mapping[str, Any] | None = None,
    param_regularizers: Mapping[str, Any] | None = None,
    updates_collections: Any = tf.compat.v1.GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
) -> Any:
    """Normalizes each channel by its mean and variance: the batch's in training, the moving ones otherwise.

    Args:
        inputs: 2 or more dimensions.
        decay: of the moving averages.
        center: whether there is a ``beta``.
        scale: whether there is a ``gamma``.
        epsilon: added to the variance.
        activation_fn: None for none.
        param_initializers: by name of variable.
        param_regularizers: by name of variable.
        updates_collections: what the updates of the averages join; None makes the result wait for them.
        is_training: a bool, or a boolean scalar tensor.
        reuse: see :func:`~tensoropt.api.mirror.contrib.fully_connected`, as ``variables_collections``,
            ``outputs_collections`` and ``trainable``.
        batch_weights: not supported, like ``zero_debias_moving_mean`` and ``renorm``.
        fused: see :func:`tensoropt.layers.batch_normalization`. Unless it is False, two dimensions are normalized by
            that function, too, whose moving variance is of one sample less.
        data_format: ``NHWC`` or ``NCHW``.
        scope: name of the variable scope; default ``BatchNorm``, numbered.

    Raises:
        GraphError: for what is not supported.
    """
    if batch_weights is not None or zero_debias_moving_mean or renorm:
        raise GraphError(
            "contrib.layers.batch_norm: batch_weights, zero_debias_moving_mean and renorm are not supported. Leave "
            "them out: statistics are those of the whole batch."
        )
    first, regular = param_initializers or {}, param_regularizers or {}
    with layer_scope(scope, "BatchNorm", reuse, variables_collections) as entered:
        inputs = tf.convert_to_tensor(inputs)
        flat = inputs.shape if fused is not False and inputs.shape.rank == 2 else None
        if flat is not None:  # tf.contrib fuses it as images of one pixel
            pixel = (-1, 1, 1, flat[1]) if CHANNELS[data_format] == "channels_last" else (-1, flat[1], 1, 1)
            inputs = tf.reshape(inputs, pixel)
        layer = layers.BatchNormalization(
            axis=-1 if CHANNELS[data_format] == "channels_last" else 1,
            momentum=decay,
            epsilon=epsilon,
            center=center,
            scale=scale,
            **{f"{name}_initializer": first[name] for name in first},
            **{f"{name}_regularizer": regular[name] for name in regular},
            fused=fused,
            trainable=trainable,
            name=entered.name,
            _scope=entered,
            _reuse=reuse,
        )
        kept = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.UPDATE_OPS)
        before = list(kept)
        outputs = layer(inputs, training=is_training)
        if flat is not None:
            outputs = tf.reshape(outputs, (-1, flat[1]))
            outputs.set_shape(flat)
        if updates_collections != tf.compat.v1.GraphKeys.UPDATE_OPS:
            kept[:] = before
            for update in layer.updates:
                tf.compat.v1.add_to_collections(updates_collections or (), update)
            if updates_collections is None:
                with tf.control_dependencies(layer.updates):
                    outputs = tf.identity(outputs)
        return finished(outputs, None, None, activation_fn, outputs_collections)


def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Normalizes each example by the mean and variance of its own values (Ba, Kiros and Hinton, 2016).

    Args:
        inputs: 2 or more dimensions, of which those from ``begin_params_axis`` on have known sizes.
        center: whether there is a ``beta``.
        scale: whether there is a ``gamma``.
        activation_fn: None for none.
        reuse: see :func:`~tensoropt.api.mirror.contrib.fully_connected`, as ``variables_collections``,
            ``outputs_collections`` and ``trainable``.
        begin_norm_axis: the first dimension that the mean goes over.
        begin_params_axis: the first dimension that ``beta`` and ``gamma`` have.
        scope: name of the variable scope; default ``LayerNorm``, numbered.

    Raises:
        GraphError: there is no such dimension.
    """
    with layer_scope(scope, "LayerNorm", reuse, variables_collections):
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        first, params = (axis + rank if axis < 0 else axis for axis in (begin_norm_axis, begin_params_axis))
        if not 0 <= first < rank or not 0 <= params < rank:
            raise GraphError(
                f"contrib.layers.layer_norm: begin_norm_axis and begin_params_axis must be dimensions of "
                f"{inputs.shape}. Got {begin_norm_axis} and {begin_params_axis}."
            )
        epsilon = _HALVES_EPSILON if inputs.dtype.base_dtype == tf.float16 else 1e-12
        made = _normalized(inputs, range(first, rank), inputs.shape[params:], None, center, scale, epsilon, trainable)
        return finished(made, None, None, activation_fn, outputs_collections)


def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Any:
    """Normalizes each channel of each example by the mean and variance of its own values (Ulyanov et al., 2016).

    Args:
        inputs: ``(batch, …, channels)``, or ``(batch, channels, …)``.
        center: see :func:`layer_norm`, as ``scale``, ``activation_fn`` and the arguments from ``reuse`` on; the
            default scope is ``InstanceNorm``.
        epsilon: added to the variance.
        param_initializers: by name of variable.
        data_format: ``NHWC`` or ``NCHW``.
    """
    with layer_scope(scope, "InstanceNorm", reuse, variables_collections):
        inputs = tf.convert_to_tensor(inputs)
        rank = inputs.shape.rank
        channels = rank - 1 if CHANNELS[data_format] == "channels_last" else 1
        axes = [axis for axis in range(1, rank) if axis != channels]
        shape = inputs.shape[channels : channels + 1]
        spread = None if channels == rank - 1 else [1, shape[0], *[1] * (rank - 2)]
        made = _normalized(inputs, axes, shape, spread, center, scale, epsilon, trainable, param_initializers)
        return finished(made, None, None, activation_fn, outputs_collections)


def _normalized(
    inputs: Any,
    axes: Sequence[int],
    shape: Any,
    spread: Sequence[int] | None,
    center: bool,
    scale: bool,
    epsilon: float,
    trainable: bool,
    initializers: Mapping[str, Any] | None = None,
) -> Any:
    """By the moments over some axes, with a ``beta`` and a ``gamma`` of a shape, which are used in another."""
    first = {"beta": tf.compat.v1.zeros_initializer(), "gamma": tf.compat.v1.ones_initializer(), **(initializers or {})}
    made = {
        name: tf.compat.v1.get_variable(name, shape, inputs.dtype.base_dtype, first[name], trainable=trainable)
        for name, wanted in (("beta", center), ("gamma", scale))
        if wanted
    }
    used = {name: variable if spread is None else tf.reshape(variable, spread) for name, variable in made.items()}
    mean, variance = tf.nn.moments(inputs, list(axes), keepdims=True)
    outputs = tf.nn.batch_normalization(inputs, mean, variance, used.get("beta"), used.get("gamma"), epsilon)
    outputs.set_shape(inputs.shape)
    return outputs
