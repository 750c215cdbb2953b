"""The TensorFlow session of a local graph."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

__all__ = ["has_one_thread", "ordered", "session_of"]


def session_of(graph: Any, config: Any) -> Any:
    """A ``tf.compat.v1.Session`` that keeps the order of what waits for one another."""
    return tf.compat.v1.Session(graph=graph, config=ordered(config))


def ordered(config: Any) -> Any:
    """A ``tf.compat.v1.ConfigProto``, or that by default, which keeps the order of what waits for one another.

    TensorFlow's rewriting leaves out that an op waits for another one where it waits for what reads that, and then may
    have what reads it do something else: of a constant times a product of two, it takes the constant times the first.
    So a collective lost the one before it, and ranks met in different ones (TensorFlow 2.21).

    It goes over a graph once, unless the given config says how often: a second time finds nothing that makes steps
    faster, and takes a third of the time that a session takes to get ready.
    """
    own = tf.compat.v1.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    rewriting = own.graph_options.rewrite_options
    rewriting.dependency_optimization = rewriter_config_pb2.RewriterConfig.OFF
    rewriting.meta_optimizer_iterations = rewriting.meta_optimizer_iterations or rewriter_config_pb2.RewriterConfig.ONE
    return own


def has_one_thread(config: Any) -> bool:
    """Tells whether a session of the config runs one op at a time."""
    given = 0 if config is None else config.inter_op_parallelism_threads
    return (given or os.environ.get("TF_NUM_INTEROP_THREADS")) in (1, "1")
