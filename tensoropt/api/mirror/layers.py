"""Layers with the names and signatures of ``tf.layers`` of TensorFlow 1, as classes and as functions.

They are TensorFlow's own, with its names of variables, initial values and collections, but for what would hide from
the plan what is split.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.keras.legacy_tf_layers import base, convolutional, core, pooling

from tensoropt.api.mirror.batch_normalization import BatchNormalization, batch_normalization
from tensoropt.api.mirror.layer import Layer, layer_class, layer_function
from tensoropt.errors import GraphError

__all__ = ["FUNCTIONS", "BatchNormalization", "InputSpec", "Layer", "batch_normalization", "embedding"]

InputSpec = base.InputSpec

_MODULES = (core, convolutional, pooling)
_LETTERS = "abcdefghijlmopqrstuvwxyz"  # Without k and n, the contracted and the new axis of a dense layer.

#: The functions that TensorFlow has, each with the class of the layer that it makes.
FUNCTIONS = {
    "average_pooling1d": "AveragePooling1D",
    "average_pooling2d": "AveragePooling2D",
    "average_pooling3d": "AveragePooling3D",
    "conv1d": "Conv1D",
    "conv2d": "Conv2D",
    "conv2d_transpose": "Conv2DTranspose",
    "conv3d": "Conv3D",
    "conv3d_transpose": "Conv3DTranspose",
    "dense": "Dense",
    "dropout": "Dropout",
    "flatten": "Flatten",
    "max_pooling1d": "MaxPooling1D",
    "max_pooling2d": "MaxPooling2D",
    "max_pooling3d": "MaxPooling3D",
    "separable_conv1d": "SeparableConv1D",
    "separable_conv2d": "SeparableConv2D",
}


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        return _function(name)
    if name in FUNCTIONS.values():
        return _layer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _function(name: str) -> Any:
    return layer_function(_layer(FUNCTIONS[name]), _of_tensorflow(name))


@functools.cache
def _layer(name: str) -> Any:
    return layer_class(_of_tensorflow(name), call=_CALLS.get(name))


def _of_tensorflow(name: str) -> Any:
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))


def _dense(self: Any, inputs: Any) -> Any:
    rank = inputs.shape.rank
    if rank == 2:
        outputs = tf.matmul(inputs, self.kernel)
    else:
        # TensorFlow's tensordot would wrap the product in reshapes that hide the split of the outer dimensions.
        outer = _LETTERS[: rank - 1]
        outputs = tf.einsum(f"{outer}k,kn->{outer}n", inputs, self.kernel)
    if self.use_bias:
        outputs = tf.nn.bias_add(outputs, self.bias)
    return outputs if self.activation is None else self.activation(outputs)


def _dropout(self: Any, inputs: Any, training: Any = False) -> Any:
    # TensorFlow's copy of Keras counts a random op here, by which later ones without a seed have other numbers than in
    # TensorFlow 1 and in the Keras that replaces the copy.
    if isinstance(self.rate, numbers.Real) and self.rate == 0:
        return tf.identity(inputs)
    return core.Dropout.call(self, inputs, training=training)


_CALLS: dict[str, Callable[..., Any]] = {"Dense": _dense, "Dropout": _dropout}


class Embedding(Layer):
    """A table of rows that are looked up."""

    def __init__(self, rows: int, length: int, weight: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self._shape = (int(rows), int(length))
        self._weight = weight

    def build(self, input_shape: Any) -> None:
        """Makes the table."""
        del input_shape
        self.embeddings = self.add_weight("embeddings", self._shape, **self._weight)
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Looks rows up."""
        if not inputs.dtype.is_integer:
            raise GraphError(f"Layer {self.name!r}: ids must be integers. Got {inputs.dtype.name}. Cast them.")
        return tf.gather(self.embeddings, inputs)


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
        embeddings_regularizer: Function of the table whose value joins ``REGULARIZATION_LOSSES``.
        embeddings_constraint: Function whose value the table takes after each update.
        trainable: Whether optimizers train the table by default.
        name: Name of the scope; default ``embedding``, numbered.
        reuse: Whether to use the table of an earlier layer of this name; ``AUTO_REUSE`` if there is one.

    Returns:
        Shape ``inputs.shape + [embedding_dim]``.

    Raises:
        GraphError: If the ids are not integers.
    """
    weight = {
        "initializer": embeddings_initializer,
        "regularizer": embeddings_regularizer,
        "constraint": embeddings_constraint,
    }
    layer = Embedding(vocabulary_size, embedding_dim, weight, trainable=trainable, name=name, _reuse=reuse, _scope=name)
    return layer(inputs)
