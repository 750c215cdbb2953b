"""Layers with the signatures of ``tf.layers`` of TensorFlow 1.15, which Keras 3 no longer has.

A layer makes its variables with ``get_variable`` in a variable scope of its own name, as TensorFlow 1 named
them (``dense/kernel``, then ``dense_1/kernel``), so ``reuse``, regularizers and initializers of enclosing
scopes work. No layer makes control flow: what TensorFlow 1 chose with ``tf.cond`` on a ``training`` tensor is
chosen with a select, which has the same value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.batch_normalization import batch_normalization
from tensoropt.api.mirror.layer import (
    ZEROS,
    checked_rank,
    finish,
    known_size,
    layer_scope,
    layer_variable,
    pair,
    static_bool,
    tensorflow_layout,
    tensorflow_padding,
)
from tensoropt.errors import GraphError

__all__ = [
    "average_pooling2d",
    "batch_normalization",
    "conv2d",
    "dense",
    "dropout",
    "embedding",
    "flatten",
    "max_pooling2d",
]

_LETTERS = "abcdefghijlmopqrstuvwxyz"  # Without k and n, the contracted and the new axis of a dense layer.


def dense(
    inputs: Any,
    units: int,
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """``activation(inputs @ kernel + bias)`` over the last dimension.

    Args:
        inputs: Shape ``[..., depth]``, 2 or more dimensions, depth known. Above 2 it is one ``Einsum`` op.
        units: Size of the last dimension of the result.
        activation: A function of a tensor, or the name of one in ``tf.nn``.
        use_bias: Whether there is a ``bias`` of shape ``[units]``.
        kernel_initializer: For ``kernel`` of shape ``[depth, units]``; default the scope's, or else glorot
            uniform.
        bias_initializer: For the bias.
        kernel_regularizer: Function of the kernel whose value joins ``REGULARIZATION_LOSSES``.
        bias_regularizer: The same of the bias.
        activity_regularizer: The same of the result, divided by the batch size.
        kernel_constraint: Kept on the variable; optimizers refuse a variable that has one.
        bias_constraint: The same of the bias.
        trainable: Whether optimizers train the variables by default.
        name: Name of the scope; default ``dense``, numbered.
        reuse: Whether to use the variables of an earlier layer of this name; ``AUTO_REUSE`` if there is one.

    Returns:
        Shape ``[..., units]``.

    Raises:
        GraphError: If the inputs have less than 2 dimensions or an unknown depth.
    """
    with layer_scope("dense", name, reuse) as scope:
        inputs = tf.convert_to_tensor(inputs)
        rank = checked_rank(inputs, scope, range(2, len(_LETTERS)))
        depth = known_size(inputs, -1, scope)
        kernel = layer_variable(
            "kernel",
            (depth, int(units)),
            inputs.dtype,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            trainable,
        )
        if rank == 2:
            outputs = tf.matmul(inputs, kernel)
        else:
            # A tensordot would wrap the product in reshapes that hide the split of the outer dimensions.
            outer = _LETTERS[: rank - 1]
            outputs = tf.einsum(f"{outer}k,kn->{outer}n", inputs, kernel)
        if use_bias:
            bias = layer_variable(
                "bias",
                (int(units),),
                inputs.dtype,
                bias_initializer,
                bias_regularizer,
                bias_constraint,
                trainable,
            )
            outputs = tf.nn.bias_add(outputs, bias)
        return finish(outputs, activation, activity_regularizer, scope)


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = ZEROS,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """A 2-d convolution with a bias.

    Args:
        inputs: ``[batch, height, width, channels]``, or ``[batch, channels, height, width]`` with
            ``channels_first``, which TensorFlow's CPU kernels build but cannot run.
        filters: Number of channels of the result.
        kernel_size: One size or (height, width).
        strides: One stride or (height, width).
        padding: ``valid`` or ``same``.
        data_format: ``channels_last`` or ``channels_first``.
        dilation_rate: One rate or (height, width); only with strides of 1.
        activation: See :func:`dense`, as all arguments that follow. The kernel's shape is
            ``[height, width, channels, filters]``.

    Returns:
        Four dimensions in the same format.

    Raises:
        GraphError: If an argument is malformed or the number of channels is unknown.
    """
    with layer_scope("conv2d", name, reuse) as scope:
        inputs = tf.convert_to_tensor(inputs)
        checked_rank(inputs, scope, (4,))
        layout = tensorflow_layout(data_format, scope)
        steps, dilations = pair(strides, "strides", scope), pair(dilation_rate, "dilation_rate", scope)
        if max(steps) > 1 and max(dilations) > 1:
            raise GraphError(
                f"Layer {scope!r}: strides and dilation_rate cannot both be above 1. Got {steps} and {dilations}."
            )
        channels = known_size(inputs, layout.index("C"), scope)
        kernel = layer_variable(
            "kernel",
            (*pair(kernel_size, "kernel_size", scope), channels, int(filters)),
            inputs.dtype,
            kernel_initializer,
            kernel_regularizer,
            kernel_constraint,
            trainable,
        )
        outputs = tf.nn.conv2d(
            inputs, kernel, steps, tensorflow_padding(padding, scope), data_format=layout, dilations=dilations
        )
        if use_bias:
            bias = layer_variable(
                "bias",
                (int(filters),),
                inputs.dtype,
                bias_initializer,
                bias_regularizer,
                bias_constraint,
                trainable,
            )
            outputs = tf.nn.bias_add(outputs, bias, data_format=layout)
        return finish(outputs, activation, activity_regularizer, scope)


def max_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The largest value of each window.

    Args:
        inputs: See :func:`conv2d`.
        pool_size: One size or (height, width) of the window.
        strides: One stride or (height, width).
        padding: ``valid`` or ``same``.
        data_format: ``channels_last`` or ``channels_first``.
        name: Name of the scope; default ``max_pooling2d``, numbered.

    Raises:
        GraphError: If an argument is malformed.
    """
    return _pool(tf.nn.max_pool2d, "MaxPool", "max_pooling2d", inputs, pool_size, strides, padding, data_format, name)


def average_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Any:
    """The mean of each window; padding does not count. The arguments are those of :func:`max_pooling2d`."""
    return _pool(
        tf.nn.avg_pool2d, "AvgPool", "average_pooling2d", inputs, pool_size, strides, padding, data_format, name
    )


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Any:
    """All dimensions but the first made one.

    Args:
        inputs: One or more dimensions.
        name: Name of the scope; default ``flatten``, numbered.
        data_format: With ``channels_first``, channels are moved last beforehand, so that both formats give
            the same.

    Returns:
        Shape ``[batch, size]``.

    Raises:
        GraphError: If more than one size, that of the batch included, is unknown.
    """
    with layer_scope("flatten", name, None) as scope:
        inputs = tf.convert_to_tensor(inputs)
        rank = checked_rank(inputs, scope, range(1, 9))
        if tensorflow_layout(data_format, scope) == "NCHW" and rank > 2:
            inputs = tf.transpose(inputs, [0, *range(2, rank), 1])
        batch, *inner = inputs.shape.as_list()
        if None not in inner:
            return tf.reshape(inputs, [-1 if batch is None else batch, math.prod(inner)])
        if batch is None:
            raise GraphError(
                f"Layer {scope!r}: at most one size of its input may be unknown. Got shape {inputs.shape}. "
                "Give the placeholder a fuller shape."
            )
        return tf.reshape(inputs, [batch, -1])


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Any:
    """Set a share of the values to 0 and scale up the others, so that the expected sum stays.

    Args:
        inputs: Floating point.
        rate: The share dropped, from 0 up to, but not including, 1; may be a scalar tensor.
        noise_shape: Shape of the mask, which is broadcast; default the inputs' shape.
        seed: The op's seed; default from the graph's.
        training: A bool, or a boolean scalar tensor. If false, the inputs are returned as they are.
        name: Name of the scope; default ``dropout``, numbered.

    Raises:
        GraphError: If the rate is out of range.
    """
    with layer_scope("dropout", name, None) as scope:
        inputs = tf.convert_to_tensor(inputs)
        if not isinstance(rate, tf.Tensor) and not 0.0 <= rate < 1.0:
            raise GraphError(f"Layer {scope!r}: rate must be from 0 up to, but not including, 1. Got {rate!r}.")
        fixed = static_bool(training)
        if fixed is False:
            return tf.identity(inputs)
        if fixed is None:
            # Nothing is dropped, and the scale is 1, at rate 0.
            rate = tf.where(training, tf.cast(rate, inputs.dtype), tf.zeros([], inputs.dtype))
        return tf.compat.v1.nn.dropout(inputs, rate=rate, noise_shape=noise_shape, seed=seed)


def embedding(
    inputs: Any,
    vocabulary_size: int,
    embedding_dim: int,
    embeddings_initializer: Any = None,
    embeddings_regularizer: Any = None,
    embeddings_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Any:
    """Look up a row of ``embeddings`` for each id. (Ours; ``tf.layers`` had none.)

    Args:
        inputs: Integer ids from 0 up to ``vocabulary_size``, any shape.
        vocabulary_size: Number of rows.
        embedding_dim: Length of a row.
        embeddings_initializer: Default the scope's, or else glorot uniform.
        embeddings_regularizer: See :func:`dense`, as all arguments that follow.

    Returns:
        Shape ``inputs.shape + [embedding_dim]``.

    Raises:
        GraphError: If the ids are not integers.
    """
    with layer_scope("embedding", name, reuse) as scope:
        inputs = tf.convert_to_tensor(inputs)
        if not inputs.dtype.is_integer:
            raise GraphError(f"Layer {scope!r}: ids must be integers. Got {inputs.dtype.name}. Cast them.")
        table = layer_variable(
            "embeddings",
            (int(vocabulary_size), int(embedding_dim)),
            tf.float32,
            embeddings_initializer,
            embeddings_regularizer,
            embeddings_constraint,
            trainable,
        )
        return tf.gather(table, inputs)


def _pool(
    op: Callable[..., Any],
    op_name: str,
    kind: str,
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str,
    data_format: str,
    name: str | None,
) -> Any:
    with layer_scope(kind, name, None) as scope:
        inputs = tf.convert_to_tensor(inputs)
        checked_rank(inputs, scope, (4,))
        return op(
            inputs,
            pair(pool_size, "pool_size", scope),
            pair(strides, "strides", scope),
            tensorflow_padding(padding, scope),
            data_format=tensorflow_layout(data_format, scope),
            name=op_name,
        )
