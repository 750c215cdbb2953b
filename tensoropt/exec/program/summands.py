"""Parts of sums over devices: those of 16-bit floats are made, sent and added in float32.

Rounded to 16 bits, every device's part would add an error of its own to a sum that one process rounds once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.graph.gradient_graphs import GRAPH
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import sum_dtype
from tensoropt.layout import Layout

__all__ = ["held_dtype", "in_sum_dtype", "widened_operator"]


def held_dtype(dtype: Any, layout: Layout) -> Any:
    """The dtype of a device's piece of a tensor of ``dtype``, or of a gradient of one, that has a layout."""
    return tf.as_dtype(sum_dtype(tf.as_dtype(dtype).name)) if layout.partial else tf.as_dtype(dtype)


def in_sum_dtype(tensor: Any) -> Any:
    """A tensor in the dtype in which parts of sums are made: the tensor itself but for 16-bit floats."""
    return tf.cast(tensor, sum_dtype(tensor.dtype.name))


def widened_operator(op: Operator) -> Operator:
    """The same operator on float32 wherever it is on 16-bit floats."""
    return replace(
        op,
        outputs=tuple(spec.widened for spec in op.outputs),
        static={position: _widened_value(value) for position, value in op.static.items()},
        node=None if op.node is None else _widened_node(op.node),
    )


def _widened_value(value: Any) -> Any:
    array = np.asarray(value)
    wide = sum_dtype(array.dtype.name)
    return value if wide == array.dtype.name else array.astype(wide)


def _widened_node(attrs: Mapping[str, Any]) -> dict[str, Any]:
    widened = {name: _widened_attr(value) for name, value in attrs.items()}
    if GRAPH in attrs:  # a gradient of the script's own, which is computed on the same floats
        widened[GRAPH] = tf.compat.v1.AttrValue(s=_widened_graph(attrs[GRAPH].s))
    return widened


def _widened_graph(serialized: bytes) -> bytes:
    """A ``GraphDef`` with float32 for each 16-bit float."""
    graph = tf.compat.v1.GraphDef.FromString(serialized)
    for function in graph.library.function:
        for arg in (*function.signature.input_arg, *function.signature.output_arg):
            arg.type = _widened_enum(arg.type) if arg.type else arg.type
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        for value in node.attr.values():
            value.CopyFrom(_widened_attr(value))
    return bytes(graph.SerializeToString())


def _widened_attr(value: Any) -> Any:
    """An AttrValue with float32 for each 16-bit float."""
    if value.WhichOneof("value") == "type":
        return tf.compat.v1.AttrValue(type=_widened_enum(value.type))
    if value.WhichOneof("value") == "list" and value.list.type:
        types = [_widened_enum(one) for one in value.list.type]
        return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(type=types))
    if value.WhichOneof("value") == "tensor" and _widened_enum(value.tensor.dtype) != value.tensor.dtype:
        wide = _widened_value(tf.make_ndarray(value.tensor))
        return tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(wide))
    return value


def _widened_enum(enum: int) -> int:
    return int(tf.as_dtype(sum_dtype(tf.as_dtype(enum).name)).as_datatype_enum)
