"""Sessions to measure in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["session_as_built"]


def session_as_built(graph: Any) -> Any:
    """A ``tf.compat.v1.Session`` that runs a ``tf.Graph`` as it was built.

    TensorFlow's rewriting would move and merge what is to be told apart.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return tf.compat.v1.Session(graph=graph, config=config)
