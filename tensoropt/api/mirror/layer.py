"""TensorFlow 1's layers and cells as classes of the mirror: TensorFlow's own, constructed and called in the model.

TensorFlow still brings the code of ``tf.layers`` and ``tf.nn.rnn_cell``, though Keras 3 took away their public names.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.smart_cond import smart_constant_value
from tensorflow.python.keras.legacy_tf_layers import base

from tensoropt.api.mirror.model import current_model

__all__ = ["Layer", "chosen", "layer_class", "layer_function", "static_bool"]


class _InModel(type):
    """The type of a mirrored class: constructing it works in the private graph."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow would advise Keras.
        with current_model().enter(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return super().__call__(*args, **kwargs)


class Layer(base.Layer, metaclass=_InModel):
    """``tf.layers.Layer`` in the model's graph; layers of one's own are made of it as there."""

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow: makes the variables in the first call, and what is computed of the inputs."""
        with current_model().enter():
            return super().__call__(inputs, *args, **kwargs)

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As a call."""
        return self(inputs, *args, **kwargs)

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """As ``add_weight``."""
        return self.add_weight(*args, **kwargs)


def layer_class(
    twin: Any, parent: type = Layer, *, module: str = "tensoropt.layers", call: Callable[..., Any] | None = None
) -> Any:
    """TensorFlow's class of layers or cells, as one of ours.

    Args:
        twin: TensorFlow's.
        parent: the mirrored class that it descends from.
        module: where it is public.
        call: what it computes, in the place of TensorFlow's ``call``.
    """
    # Its name is where names of variables come from.
    own = {"__doc__": twin.__doc__, "__module__": module, **({} if call is None else {"call": call})}
    made: Any = _InModel(twin.__name__, (parent, twin), own)
    made.__signature__ = inspect.signature(twin.__init__)
    return made


def layer_function(layer: Callable[..., Any], twin: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that makes a layer and calls it: ``tf.layers.dense`` for ``tf.layers.Dense``.

    Args:
        layer: the class.
        twin: TensorFlow's function, or one without a body, which gives the signature.
    """
    signature = inspect.signature(twin)
    has_variables = "reuse" in signature.parameters

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        inputs = arguments.pop("inputs")
        at_call = {"training": arguments.pop("training")} if "training" in arguments else {}
        if has_variables:
            arguments["_reuse"] = arguments.pop("reuse", None)
            arguments["_scope"] = arguments.get("name")
        return layer(**arguments)(inputs, **at_call)

    call.__name__ = call.__qualname__ = twin.__name__
    call.__module__, call.__doc__ = "tensoropt.layers", twin.__doc__
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def static_bool(flag: Any) -> bool | None:
    """The flag's value, or None if only the run knows it; as in TensorFlow, what constants decide is known."""
    if isinstance(flag, tf.Variable):
        return None
    value = smart_constant_value(flag) if isinstance(flag, tf.Tensor) else flag
    return None if value is None else bool(value)


def chosen(flag: Any, one: Any, other: Any) -> Any:
    """``one`` where the flag is true, ``other`` where it is not, whether or not it is known before a run.

    TensorFlow 1 takes a branch of the graph for a flag that only a run knows. Selecting one of two tensors gives the
    same value, and devices can split both.
    """
    known = static_bool(flag)
    if known is None:
        if flag.shape.rank is None:  # placeholder(tf.bool): with it the result would have no shape, either
            flag = tf.reshape(flag, [])
        return tf.where(flag, one, other)
    return one if known else other
