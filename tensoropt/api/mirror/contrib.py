"""``tensoropt.contrib.layers``: what scripts of 2016 to 2018 take most of TensorFlow's removed ``tf.contrib.layers``.

Names of variables (``fully_connected/weights``), defaults (an activation of relu, padding ``SAME``) and initial values
are those of ``tf.contrib``. Each layer is one of ``tensoropt.layers`` beneath.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror import layers
from tensoropt.api.mirror.contrib_scopes import CHANNELS, finished, layer_scope
from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "avg_pool2d",
    "bias_add",
    "conv2d",
    "convolution2d",
    "dropout",
    "embed_sequence",
    "flatten",
    "fully_connected",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "linear",
    "max_pool2d",
    "relu",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]

Initializer = Callable[..., Any]
Regularizer = Callable[[Any], Any]

_ZEROS = tf.compat.v1.zeros_initializer()


def variance_scaling_initializer(
    factor: float = 2.0, mode: str = "FAN_IN", uniform: bool = False, seed: int | None = None, dtype: Any = tf.float32
) -> Initializer:
    """Random values whose variance is ``factor`` by the number of inputs, of outputs, or the mean of both.

    Args:
        factor: of the variance.
        mode: ``FAN_IN``, ``FAN_OUT`` or ``FAN_AVG``.
        uniform: whether values are drawn evenly; by default from a normal distribution cut at two deviations.
        seed: of the draw.
        dtype: of the values where a variable gives none.

    Raises:
        GraphError: for another mode.
    """
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise GraphError(f"variance_scaling_initializer: mode must be FAN_IN, FAN_OUT or FAN_AVG. Got {mode!r}.")
    default = dtype

    def initialize(shape: Any, dtype: Any = default, partition_info: Any = None) -> Any:
        del partition_info
        sizes = [float(size) for size in tf.TensorShape(shape).as_list()]
        field = math.prod(sizes[:-2])
        fans = field * sizes[-2 if len(sizes) > 1 else -1], field * sizes[-1]
        count = {"FAN_IN": fans[0], "FAN_OUT": fans[1], "FAN_AVG": sum(fans) / 2}[mode]
        if uniform:
            limit = math.sqrt(3.0 * factor / count)
            return tf.compat.v1.random_uniform(shape, -limit, limit, dtype, seed=seed)
        # A normal distribution that is cut at two deviations has less than its variance.
        return tf.compat.v1.truncated_normal(shape, 0.0, math.sqrt(1.3 * factor / count), dtype, seed=seed)

    return initialize


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = tf.float32) -> Initializer:
    """Random values of the variance that keeps that of activations and gradients (Glorot and Bengio, 2010)."""
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """``scale`` times the sum of absolute values; None for a scale of 0."""
    return _regularizer(scale, scope or "l1_regularizer", lambda weights: tf.reduce_sum(tf.abs(weights)))


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """``scale`` times half the sum of squares; None for a scale of 0."""
    return _regularizer(scale, scope or "l2_regularizer", tf.nn.l2_loss)


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None) -> Regularizer:
    """The sum of :func:`l1_regularizer` and :func:`l2_regularizer`."""
    parts = l1_regularizer(scale_l1), l2_regularizer(scale_l2)

    def regularize(weights: Any) -> Any:
        with current_model().enter(), tf.name_scope(scope or "l1_l2_regularizer"):
            found = [value for value in (part(weights) for part in parts) if value is not None]
            return tf.add_n(found) if found else None

    return regularize


def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008  # it has no state
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """``activation_fn(inputs @ weights + biases)`` over the last dimension.

    Args:
        inputs: ``(..., depth)``.
        num_outputs: the last dimension of the result.
        activation_fn: None for none.
        normalizer_fn: makes what stands in the place of a bias, such as :func:`batch_norm`.
        normalizer_params: its arguments.
        weights_initializer: of ``weights``.
        weights_regularizer: its value joins ``REGULARIZATION_LOSSES``.
        biases_initializer: of ``biases``; None for no bias.
        biases_regularizer: see ``weights_regularizer``.
        reuse: whether variables of an earlier layer are taken.
        variables_collections: names of collections that variables join.
        outputs_collections: names of collections that the result joins.
        trainable: whether optimizers train the variables by default.
        scope: name of the variable scope; default ``fully_connected``, numbered.
    """
    with layer_scope(scope, "fully_connected", reuse, variables_collections) as entered:
        layer = layers.Dense(
            num_outputs,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            name=entered.name,
            _scope=entered,
            _reuse=reuse,
        )
        outputs = layer(tf.convert_to_tensor(inputs))
        return finished(outputs, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


def linear(inputs: Any, num_outputs: int, *args: Any, **kwargs: Any) -> Any:
    """:func:`fully_connected` without an activation."""
    return fully_connected(inputs, num_outputs, *(None, *args[1:]) if args else (None,), **kwargs)


def relu(inputs: Any, num_outputs: int, **kwargs: Any) -> Any:
    """:func:`fully_connected` with an activation of relu."""
    return fully_connected(inputs, num_outputs, tf.nn.relu, **kwargs)


def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Any = tf.nn.relu,
    normalizer_fn: Any = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A 2-d convolution.

    Args:
        inputs: ``(batch, height, width, channels)``.
        num_outputs: channels of the result.
        kernel_size: one size, or height and width.
        stride: one, or of height and width.
        padding: ``SAME`` or ``VALID``.
        data_format: ``NHWC`` or ``NCHW``.
        rate: of dilation.
        activation_fn: see :func:`fully_connected`, as all that follow; the default scope is ``Conv``.
    """
    with layer_scope(scope, "Conv", reuse, variables_collections) as entered:
        layer = layers.Conv2D(
            num_outputs,
            kernel_size,
            stride,
            padding.lower(),
            CHANNELS[data_format],
            rate,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            name=entered.name,
            _scope=entered,
            _reuse=reuse,
        )
        outputs = layer(tf.convert_to_tensor(inputs))
        return finished(outputs, normalizer_fn, normalizer_params, activation_fn, outputs_collections)


convolution2d = conv2d


def max_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """The largest value of each window; arguments are those of :func:`conv2d`."""
    with layer_scope(scope, "MaxPool2D", None, None):
        made = layers.MaxPooling2D(kernel_size, stride, padding.lower(), CHANNELS[data_format])
        return finished(made(tf.convert_to_tensor(inputs)), None, None, None, outputs_collections)


def avg_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """The mean of each window; arguments are those of :func:`conv2d`."""
    with layer_scope(scope, "AvgPool2D", None, None):
        made = layers.AveragePooling2D(kernel_size, stride, padding.lower(), CHANNELS[data_format])
        return finished(made(tf.convert_to_tensor(inputs)), None, None, None, outputs_collections)


def flatten(inputs: Any, outputs_collections: Any = None, scope: Any = None) -> Any:
    """All dimensions but the first made one."""
    with layer_scope(scope, "Flatten", None, None):
        made = layers.Flatten()(tf.convert_to_tensor(inputs))
        return finished(made, None, None, None, outputs_collections)


def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Sets a share of ``1 - keep_prob`` of the values to 0, and scales up the others."""
    with layer_scope(scope, "Dropout", None, None):
        layer = layers.Dropout(1 - keep_prob, noise_shape, seed)
        made = layer(tf.convert_to_tensor(inputs), training=is_training)
        return finished(made, None, None, None, outputs_collections)


def bias_add(
    inputs: Any,
    activation_fn: Any = None,
    initializer: Any = _ZEROS,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str | None = None,
    scope: Any = None,
) -> Any:
    """Adds ``biases`` to the channels.

    Args:
        inputs: 2 or more dimensions.
        activation_fn: see :func:`fully_connected`, as all that follow but ``data_format``; the default scope is
            ``BiasAdd``.
        data_format: ``NHWC``, where channels come last, or ``NCHW``.
    """
    with layer_scope(scope, "BiasAdd", reuse, variables_collections):
        inputs = tf.convert_to_tensor(inputs)
        channels = inputs.shape[-1 if CHANNELS[data_format] == "channels_last" else 1]
        biases = tf.compat.v1.get_variable(
            "biases", [channels], inputs.dtype.base_dtype, initializer, regularizer, trainable
        )
        outputs = tf.nn.bias_add(inputs, biases, data_format)
        return finished(outputs, None, None, activation_fn, outputs_collections)


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
    """A row of ``embeddings`` for each id.

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
    with layer_scope(scope, "EmbedSequence", reuse, None):
        table = tf.compat.v1.get_variable(
            "embeddings", shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return tf.nn.embedding_lookup(table, ids)


def _regularizer(scale: float, name: str, norm: Callable[[Any], Any]) -> Regularizer:
    if not isinstance(scale, float | int) or scale < 0:
        raise GraphError(f"contrib.layers.{name}: scale must be a number of at least 0. Got {scale!r}.")

    def regularize(weights: Any) -> Any:
        if scale == 0:
            return None
        with current_model().enter(), tf.name_scope(name):
            return tf.multiply(tf.constant(scale, weights.dtype.base_dtype), norm(weights))

    return regularize
