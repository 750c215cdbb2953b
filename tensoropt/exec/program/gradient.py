"""Gradients of our own inside TensorFlow's automatic differentiation of v1 graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.graph.gradient_graphs import GRADIENT_TYPE

__all__ = ["late", "with_gradient"]

Backward = Callable[..., Sequence[Any]]
_GRADIENT = "TensoroptGradient"
_lock = threading.Lock()


def with_gradient(inputs: Sequence[Any], outputs: Sequence[Any], backward: Backward) -> list[Any]:
    """``outputs`` whose gradient with respect to ``inputs`` is ``backward``'s, in the default graph.

    One ``IdentityN`` over outputs and inputs carries the gradient: its outputs stand for ``outputs``, and what
    ``backward`` returns flows to ``inputs``. Unlike ``tf.custom_gradient`` it passes ``tf.IndexedSlices`` through.

    Args:
        inputs: tensors that the outputs depend on.
        outputs: tensors; their own gradient is cut.
        backward: takes a gradient per output (None where none arrived), gives one per input (None for none). Either
            may be of another dtype than the tensor.
    """
    _register()
    graph = tf.compat.v1.get_default_graph()
    # Kept by the graph itself, so that the closures (and the tensors they hold) go when it goes.
    table = graph.get_collection_ref(_GRADIENT)
    key = len(table)
    table.append((len(outputs), backward))
    cut = [tf.stop_gradient(tensor) for tensor in outputs]
    tensors = tf.identity_n([*cut, *inputs])
    op = tensors[0].op
    # As Graph.gradient_override_map does.
    op._set_attr(GRADIENT_TYPE, tf.compat.v1.AttrValue(s=_GRADIENT.encode()))
    op._set_attr("_tensoropt_gradient", tf.compat.v1.AttrValue(i=key))
    return list(tensors[: len(outputs)])


def late(tensor: Any, after: Iterable[Any]) -> Any:
    """``tensor``, but not before ``after``.

    TensorFlow's optimizer merges ops that are alike, and ops that wait for different things are not: what is made of
    this one is not merged with what was made in the forward pass, which would be kept until then.
    """
    ops = [each.values.op if isinstance(each, tf.IndexedSlices) else each.op for each in after]
    with tf.control_dependencies(ops):
        return tf.identity(tensor)


def _gradient(op: Any, *incoming: Any) -> list[Any]:
    count, backward = op.graph.get_collection_ref(_GRADIENT)[op.get_attr("_tensoropt_gradient")]
    made = list(backward(*incoming[:count]))
    return [None] * count + made


def _register() -> None:
    with _lock:
        if not getattr(_register, "done", False):
            tf.RegisterGradient(_GRADIENT)(_gradient)
            _register.done = True  # type: ignore[attr-defined]
