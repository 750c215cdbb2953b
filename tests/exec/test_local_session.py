"""What waits for one another does so still when TensorFlow has rewritten a local graph."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tensoropt.exec.program.local_session import session_of

pytestmark = pytest.mark.tf


def _graph() -> tuple[Any, Any]:
    """An op that waits for another one and for what reads it."""
    graph = tf.Graph()
    with graph.as_default():
        shape = tf.constant([4, 3])
        met = tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, seed=1, name="met")
        read = tf.exp(met)
        with tf.control_dependencies([met, read]):
            later = tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, seed=1, name="later")
        return graph, read + later


def _waits_for(session: Any, fetched: Any) -> list[str]:
    metadata = tf.compat.v1.RunMetadata()
    session.run(fetched, options=tf.compat.v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    (run,) = metadata.partition_graphs
    (later,) = (node for node in run.node if node.name == "later")
    return [source for source in later.input if source.startswith("^")]


def test_an_op_waits_for_another_one_itself() -> None:
    graph, fetched = _graph()
    with session_of(graph, None) as session:
        assert "^met" in _waits_for(session, fetched)
    with tf.compat.v1.Session(graph=graph) as session:
        assert "^met" not in _waits_for(session, fetched)  # else TensorFlow has changed, and nothing is to be done


def test_what_a_script_says_of_its_session_stays() -> None:
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
    graph, fetched = _graph()
    with session_of(graph, config) as session:
        assert "^met" in _waits_for(session, fetched)
        assert session._config.inter_op_parallelism_threads == 1
    assert not config.HasField("graph_options")
