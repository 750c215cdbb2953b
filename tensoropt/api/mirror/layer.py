"""What every layer is made of: its scope, its variables, and the checks of its arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.lookup import lookup
from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "ONES",
    "ZEROS",
    "checked_rank",
    "finish",
    "known_size",
    "layer_scope",
    "layer_variable",
    "pair",
    "static_bool",
    "tensorflow_layout",
    "tensorflow_padding",
]

#: The default initializers that TensorFlow's signatures show. They have no state.
ZEROS = tf.compat.v1.zeros_initializer()
ONES = tf.compat.v1.ones_initializer()

_get_variable = lookup("", "get_variable")


@contextlib.contextmanager
def layer_scope(kind: str, name: str | None, reuse: Any) -> Iterator[str]:
    """Enter the layer's variable scope, which is also its ops' name scope; yields the scope's name."""
    with (
        current_model().enter(),
        # Variables to reuse are those of a name: without one, of the first layer of the kind, as in
        # TensorFlow 1.
        tf.compat.v1.variable_scope(kind if name is None and reuse else name, default_name=kind, reuse=reuse) as scope,
    ):
        yield scope.name


def layer_variable(
    name: str,
    shape: Sequence[int],
    dtype: Any,
    initializer: Any,
    regularizer: Any,
    constraint: Any,
    trainable: bool,
) -> Any:
    return _get_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        constraint=constraint,
        trainable=trainable,
    )


def finish(outputs: Any, activation: Any, activity_regularizer: Any, scope: str) -> Any:
    """The activated outputs; their regularization joins the collection of losses."""
    if isinstance(activation, str):
        known = getattr(tf.nn, activation, None)
        if known is None:
            raise GraphError(f"Layer {scope!r}: tf.nn has no activation {activation!r}. Pass a function.")
        activation = known
    if activation is not None:
        outputs = activation(outputs)
    if activity_regularizer is not None:
        loss = activity_regularizer(outputs)
        loss = loss / tf.cast(tf.shape(outputs)[0], loss.dtype)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.REGULARIZATION_LOSSES, loss)
    return outputs


def checked_rank(inputs: Any, scope: str, allowed: Sequence[int]) -> int:
    rank = inputs.shape.rank
    if rank not in allowed:
        wanted = f"{allowed[0]}" if len(allowed) == 1 else f"{allowed[0]} to {allowed[-1]}"
        raise GraphError(
            f"Layer {scope!r}: its input must have {wanted} dimensions. Got {inputs.name!r} of shape {inputs.shape}."
        )
    return int(rank)


def known_size(inputs: Any, axis: int, scope: str) -> int:
    size = inputs.shape[axis]
    if size is None:
        raise GraphError(
            f"Layer {scope!r}: the size of dimension {axis} of its input must be known. Got shape "
            f"{inputs.shape}. "
            "Give the placeholder a fuller shape."
        )
    return int(size)


def pair(value: Any, what: str, scope: str) -> list[int]:
    values = [value, value] if isinstance(value, int) else list(value)
    if len(values) != 2 or any(int(each) != each or each < 1 for each in values):
        raise GraphError(f"Layer {scope!r}: {what} must be one or two integers of at least 1. Got {value!r}.")
    return [int(each) for each in values]


def tensorflow_padding(padding: str, scope: str) -> str:
    if padding.upper() not in ("VALID", "SAME"):
        raise GraphError(f"Layer {scope!r}: padding must be 'valid' or 'same'. Got {padding!r}.")
    return padding.upper()


def tensorflow_layout(data_format: str, scope: str) -> str:
    layouts = {"channels_last": "NHWC", "channels_first": "NCHW"}
    if data_format not in layouts:
        raise GraphError(
            f"Layer {scope!r}: data_format must be 'channels_last' or 'channels_first'. Got {data_format!r}."
        )
    return layouts[data_format]


def static_bool(training: Any) -> bool | None:
    """The flag's value, or None if only the run knows it."""
    if isinstance(training, tf.Tensor | tf.Variable):
        value = tf.get_static_value(training)
        return None if value is None else bool(value)
    return bool(training)
