"""Dilated convolutions, which TensorFlow makes of ordinary ones between images moved into the batch and back.

In the moved batch the places of a block come before the examples, so it cannot be split as the images' batch is. As one
operator of the images before and after, a dilated convolution is split like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensoropt.graph.gradient_graphs import GRADIENT_TYPE
from tensoropt.graph.registry import traits

__all__ = ["Dilated", "dilated_convolution"]


@dataclass(frozen=True)
class Dilated:
    """A convolution of images that are moved into the batch.

    Attributes:
        convolution: TensorFlow's operation of it.
        image: the tensor that is moved.
        attrs: block, paddings and crops of the moves, as attributes of an operator.
        between: the operations that the operator stands for, beside the convolution and the last one.
    """

    convolution: Any
    image: Any
    attrs: dict[str, tuple[Any, ...]]
    between: tuple[Any, ...]


def dilated_convolution(tf_op: Any) -> Dilated | None:
    """The dilated convolution that ends with an operation; None if there is none, or another one than TensorFlow's."""
    if not traits(tf_op).from_batch or not tf_op.inputs[0].shape.is_fully_defined():
        return None
    convolution, after = _before_views(tf_op.inputs[0])
    if not traits(convolution).is_convolution or len(convolution.inputs) != 2 or not _is_plain(convolution):
        return None
    entry, before = _before_views(convolution.inputs[0])
    if not traits(entry).to_batch:
        return None
    block, crops = (tf.get_static_value(tensor) for tensor in tf_op.inputs[1:])
    other, paddings = (tf.get_static_value(tensor) for tensor in entry.inputs[1:])
    if any(value is None for value in (block, crops, other, paddings)) or block.tolist() != other.tolist():
        return None
    image = entry.inputs[0]
    shapes = [entry.outputs[0].shape, convolution.inputs[0].shape, convolution.outputs[0].shape, tf_op.inputs[0].shape]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    moved, read, made, left = (shape.as_list() for shape in shapes)
    lines = len(block) == 1 and [moved[0], 1, *moved[1:]] == read and [left[0], 1, *left[1:]] == made
    if not lines and (moved, left, len(block)) != (read, made, len(read) - 2):
        return None
    attrs = {
        "block": tuple(block.tolist()),
        "block_paddings": tuple(map(tuple, paddings.tolist())),
        "block_crops": tuple(map(tuple, crops.tolist())),
    }
    return Dilated(convolution, image, attrs, (*after, convolution, *before, entry))


def _before_views(tensor: Any) -> tuple[Any, list[Any]]:
    """Returns the operation that computes a tensor, before all reshapes, and the operations that only reshape it."""
    views = []
    while _is_view(tensor.op):
        views.append(tensor.op)
        tensor = tensor.op.inputs[0]
    return tensor.op, views


def _is_view(op: Any) -> bool:
    """Tells whether an operation gives what it takes in another shape, and what comes back for it."""
    own = traits(op)
    passes = own.alias and own.passes_gradient and not (own.has_effect or own.may_fail)
    return passes and len(op.outputs) == 1 and GRADIENT_TYPE not in op.node_def.attr


def _is_plain(convolution: Any) -> bool:
    """Tells whether a convolution has no strides, padding or dilations of its own, and channels come last."""
    attrs = {name: convolution.get_attr(name) for name in ("strides", "dilations", "padding", "data_format")}
    steps = {*attrs["strides"], *attrs["dilations"]}
    return steps == {1} and attrs["padding"] == b"VALID" and attrs["data_format"].endswith(b"C")
