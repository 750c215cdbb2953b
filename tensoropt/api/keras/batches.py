"""The specs of a Keras model's batches, derived from the model before there is a batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tensoropt.api.functions.leaves import leaf_of, opened, spec_of
from tensoropt.api.keras import keras_internals
from tensoropt.errors import PlanError

__all__ = ["batch_of", "size_of"]

_EXAMPLE = "Give example=(x, y), a batch as fit takes it, of arrays or tf.TensorSpec."


def batch_of(model: Any, example: Any = None) -> Any:
    """Specs of a batch, whose first dimensions are open.

    Args:
        model: a compiled model.
        example: a batch; by default what the model says of its inputs and losses.

    Raises:
        PlanError: the model does not say it.
    """
    if example is not None:
        return tf.nest.map_structure(_opened, tuple(example) if isinstance(example, list) else example)
    ends = keras_internals.ends_of(model)
    if ends is None:
        raise PlanError(f"'{model.name}': does not say what it takes, as a subclassed model does not. {_EXAMPLE}")
    inputs, outputs = ends
    losses = _losses(model, outputs)
    targets = [_target(model, output, loss) for output, loss in zip(tf.nest.flatten(outputs), losses, strict=True)]
    return tf.nest.map_structure(_spec, inputs), tf.nest.pack_sequence_as(outputs, targets)


def size_of(example: Any) -> int | None:
    """The first dimension that all tensors of an example have; None without one."""
    shapes = [tuple(np.shape(leaf)) if not hasattr(leaf, "shape") else tuple(leaf.shape) for leaf in _leaves(example)]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _leaves(example: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(example) if leaf is not None]


def _opened(leaf: Any) -> Any:
    if leaf is None:
        return None
    spec = spec_of(leaf_of(leaf))
    if spec is None:
        spec = tf.TensorSpec(np.shape(leaf), np.asarray(leaf).dtype)
    spec = opened(spec)
    if isinstance(spec, tf.TensorSpec) and spec.dtype == tf.float64:
        return tf.TensorSpec(spec.shape, tf.as_dtype(keras.backend.floatx()))  # as fit takes arrays
    return spec


def _spec(tensor: Any) -> Any:
    shape, dtype = [None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype)
    return tf.SparseTensorSpec(shape, dtype) if getattr(tensor, "sparse", False) else tf.TensorSpec(shape, dtype)


def _losses(model: Any, outputs: Any) -> list[Any]:
    """The loss of each output, in the order of a flat structure."""
    count, given = len(tf.nest.flatten(outputs)), model.loss
    if not isinstance(given, dict | list | tuple):
        return [given] * count
    if isinstance(given, dict) and not isinstance(outputs, dict):
        losses = [given.get(name) for name in model.output_names]
    else:
        losses = tf.nest.flatten(given)
    if len(losses) != count:
        raise PlanError(f"'{model.name}': has {count} outputs and losses for {len(losses)} of them. {_EXAMPLE}")
    return losses


def _target(model: Any, output: Any, loss: Any) -> Any:
    """Returns the spec of the target that a loss compares with an output."""
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", None)
    if name is None:
        raise PlanError(
            f"'{model.name}': what is compared with '{output.name}' is unknown, as it has no loss. {_EXAMPLE}"
        )
    if "sparse" in name.lower():
        return tf.TensorSpec([None, *output.shape[1:-1]], tf.int64)
    return tf.TensorSpec([None, *output.shape[1:]], tf.as_dtype(keras.backend.floatx()))
