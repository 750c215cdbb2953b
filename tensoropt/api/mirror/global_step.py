"""The global step: also a variable that the script calls so without telling TensorFlow of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model

__all__ = ["collect_global_step", "create_global_step", "get_global_step", "get_or_create_global_step"]

_KEYS = tf.compat.v1.GraphKeys
_NAME = "global_step"


def collect_global_step(graph: Any = None) -> Any:
    """Makes TensorFlow find a variable called ``global_step``, as it finds its own non-resource variable.

    Args:
        graph: of the variable; by default the current model's.

    Returns:
        The graph.
    """
    graph = current_model().graph if graph is None else graph
    if not graph.get_collection(_KEYS.GLOBAL_STEP):
        known = (*graph.get_collection(_KEYS.GLOBAL_VARIABLES), *graph.get_collection(_KEYS.LOCAL_VARIABLES))
        graph.get_collection_ref(_KEYS.GLOBAL_STEP).extend([each for each in known if each.op.name == _NAME][:1])
    return graph


def get_global_step(graph: Any = None) -> Any:
    """``tf.compat.v1.train.get_global_step``."""
    return tf.compat.v1.train.get_global_step(collect_global_step(graph))


def create_global_step(graph: Any = None) -> Any:
    """``tf.compat.v1.train.create_global_step``."""
    graph = collect_global_step(graph)
    with graph.as_default():  # in eager mode TensorFlow would make an eager variable, whatever the graph
        return tf.compat.v1.train.create_global_step(graph)


def get_or_create_global_step(graph: Any = None) -> Any:
    """``tf.compat.v1.train.get_or_create_global_step``."""
    graph = collect_global_step(graph)
    with graph.as_default():  # see create_global_step
        return tf.compat.v1.train.get_or_create_global_step(graph)
