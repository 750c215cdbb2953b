"""A graph as TensorFlow's ``MetaGraphDef``, of which copies are made."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["exported"]


def exported(graph: Any, copy: Any = None) -> Any:
    """A graph with its collections.

    Args:
        graph: the graph.
        copy: a graph that the collections are for; ``graph`` by default. They name what is in it only: an optimizer's
            step in a branch is a member of the graph around it, which has it not.
    """
    with graph.as_default():  # TensorFlow exports no graph of a thread that is in eager mode
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    there = {op.name for op in (graph if copy is None else copy).get_operations()}
    for collection in meta.collection_def.values():
        if collection.HasField("node_list"):
            known = [name for name in collection.node_list.value if name.split(":")[0] in there]
            del collection.node_list.value[:]
            collection.node_list.value.extend(known)
    return meta
