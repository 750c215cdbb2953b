"""A graph as TensorFlow's ``MetaGraphDef``, of which copies are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.attributes import HINTS
from tensoropt.graph.registry import traits

__all__ = ["clear_devices", "exported", "keep_said_shapes", "without_hints"]


def clear_devices(definition: Any) -> None:
    """Removes the devices that the script names from a ``GraphDef`` and its functions: they may not be here."""
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            node.device = ""


def exported(graph: Any, copy: Any = None) -> Any:
    """A graph with its collections.

    Args:
        graph: the graph.
        copy: a graph that the collections alone are for; by default they are ``graph``'s, which comes with them. They
            name what is in it only: an optimizer's step in a branch is a member of the graph around it, which has it
            not.
    """
    definition = None if copy is None else tf.compat.v1.GraphDef()
    with graph.as_default():  # TensorFlow exports no graph of a thread that is in eager mode
        meta = tf.compat.v1.train.export_meta_graph(graph=graph, graph_def=definition)
    there = {op.name for op in (graph if copy is None else copy).get_operations()}
    for collection in meta.collection_def.values():
        if collection.HasField("node_list"):
            known = [name for name in collection.node_list.value if name.split(":")[0] in there]
            del collection.node_list.value[:]
            collection.node_list.value.extend(known)
    return meta


def without_hints(nodes: Iterable[Any]) -> list[Any]:
    """Copies of nodes, without what TensorFlow has noted of them where they are."""
    found = []
    for node in nodes:
        copy = tf.compat.v1.NodeDef()
        copy.CopyFrom(node)
        for name in HINTS:
            copy.attr.pop(name, None)
        found.append(copy)
    return found


def keep_said_shapes(graph: Any, copy: Any) -> None:
    """Gives tensors of a copy the shapes that the user has said (``set_shape``), which no operation has.

    Not where placeholders are to have others than those that the user gave them.
    """
    pairs = [
        (tensor, graph.get_tensor_by_name(tensor.name))
        for op in copy.get_operations()
        for tensor in op.outputs
        if _has(graph, op)
    ]
    if any(traits(tensor.op).is_input and not tensor.shape.is_compatible_with(own.shape) for tensor, own in pairs):
        return
    for tensor, own in pairs:
        if not tensor.shape.is_fully_defined() and tensor.shape.is_compatible_with(own.shape):
            tensor.set_shape(own.shape)


def _has(graph: Any, op: Any) -> bool:
    """Tells whether a graph has an operation of this name and type; the placeholders of gradients differ in type."""
    try:
        return bool(graph.get_operation_by_name(op.name).type == op.type)
    except KeyError:
        return False
