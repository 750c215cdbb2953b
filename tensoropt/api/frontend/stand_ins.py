"""Stand-ins for gradients and merged rows, which devices compute in a way of their own.

The model's graph has TensorFlow's operations for them. Where the graph is made again, operations named like our
operators give their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.meta_graphs import exported, keep_said_shapes, without_hints
from tensoropt.api.frontend.walks import reached
from tensoropt.api.mirror.model import GradientCall, GradientOutput, MergedRows, Model

__all__ = ["Given", "given_in", "indices_of", "merged_from", "sized_gradients"]


@dataclass(frozen=True, slots=True)
class Given:
    """The stand-in for a tensor of gradients.

    Attributes:
        name: of the operation that gives the tensor.
        dtype: TensorFlow's.
        shape: a ``tf.TensorShape``.
        after: names of operations that the stand-in comes after.
        like: name of a tensor that always has its shape, if any.
    """

    name: str
    dtype: Any
    shape: Any
    after: tuple[str, ...]
    like: str | None = None


def given_in(graph: Any, sized: Any, calls: Sequence[GradientCall], inside: Collection[str]) -> dict[str, Given]:
    """Returns the stand-ins for gradients in a graph, by the names of TensorFlow's tensors there.

    Args:
        graph: a model's graph.
        sized: a graph in which gradients have the shapes that they are to have.
        calls: the differentiations.
        inside: the operations that TensorFlow made for gradients.
    """
    found: dict[str, Given] = {}
    for call in calls:
        losses = [graph.get_tensor_by_name(name).op.name for name in call.losses]
        for output in call.outputs:
            for name, place in ((output.values, output.name), (output.indices, indices_of(output))):
                if name is None:
                    continue
                tensor, shape = graph.get_tensor_by_name(name), sized.get_tensor_by_name(name).shape
                before = [op.name for op in tensor.op.control_inputs if op.name not in inside]
                if output.indices is None and ":" not in output.source:  # what TensorFlow may not know behind a loop
                    shape = tf.TensorShape(graph.get_operation_by_name(output.source).get_attr("shape"))
                like = output.source if output.indices is None and ":" in output.source else None
                found[name] = Given(place, tensor.dtype, shape, tuple(dict.fromkeys((*losses, *before))), like)
    return found


def merged_from(rows: Sequence[MergedRows]) -> dict[str, str]:
    """For the operations that give merged rows, the names of the tensors before."""
    values = {one.merged_values: one.values for one in rows}
    return values | {one.merged_indices: one.indices for one in rows}


def indices_of(output: GradientOutput) -> str:
    """The name of the operation that gives the indices of a gradient's rows."""
    return f"{output.name}/indices"


def sized_gradients(
    model: Model, shapes: Mapping[str, Sequence[int]], calls: Sequence[GradientCall], merged: Sequence[MergedRows]
) -> Any:
    """A graph in which TensorFlow's gradients have the shapes that follow from those of open placeholders.

    Raises:
        ValueError: TensorFlow finds that the shapes do not go together.
    """
    graph = model.graph
    by_merge = merged_from(merged)
    outputs = [output for call in calls for output in call.outputs]

    def before(name: str) -> list[str]:
        op = graph.get_operation_by_name(name)
        inputs = [x.name for x in op.inputs]
        inputs[:1] = [by_merge[name]] if name in by_merge else inputs[:1]
        return [*(x.split(":")[0] for x in inputs), *(control.name for control in op.control_inputs)]

    tensors = (name for one in outputs for name in (one.values, one.indices) if name is not None)
    needed = reached((name.split(":")[0] for name in tensors), before)
    meta = exported(graph)
    kept = without_hints(node for node in meta.graph_def.node if node.name in needed)
    for node in kept:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shapes[node.name]).as_proto())
        if node.name in by_merge:
            node.input[0] = by_merge[node.name]
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    meta.collection_def.clear()
    made = tf.Graph()
    with made.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    keep_said_shapes(graph, made)
    return made
