"""What scripts call around a model: graphs, seeds, switches between versions, modes, queues."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import begin_model, current_model
from tensoropt.api.mirror.random_counters import count_random_ops_apart
from tensoropt.api.mirror.shapes import unknown_sizes_are_dimensions
from tensoropt.errors import GraphError

__all__ = [
    "Graph",
    "LearnModeKeys",
    "ModeKeys",
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_control_flow_v2",
    "enable_resource_variables",
    "enable_v2_tensorshape",
    "report_uninitialized_variables",
    "set_random_seed",
    "set_seed",
    "start_queue_runners",
]


_is_version_1 = False  # whether the script has said so


class Graph(tf.Graph):
    """``tf.Graph`` as a model: while it is the default graph, mirrored calls build in it.

    The steps of a job (``find_strategy`` and those after it) are for the model of the default graph or, where that is
    empty, for the last one with operations.
    """

    def __init__(self) -> None:
        """Makes an empty graph, whose variables are resource variables."""
        super().__init__()
        self.tensoropt_model = begin_model(self)


def report_uninitialized_variables(var_list: Any = None, name: str = "report_uninitialized_variables") -> Any:
    """A tensor of no names: all variables have values from ``build_execution_graph`` on."""
    del var_list
    with current_model().enter():
        return tf.constant([], tf.string, name=name)


class ModeKeys:
    """``tf.estimator.ModeKeys``."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class LearnModeKeys:
    """``tf.contrib.learn.ModeKeys``."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"


def enable_resource_variables() -> None:
    """Does nothing: variables are resource variables anyway, and tensors compare by identity."""


disable_tensor_equality = enable_resource_variables


def disable_control_flow_v2() -> None:
    """Makes random ops in branches and loops count with those around them, as they do at first."""
    count_random_ops_apart(False)


def enable_control_flow_v2() -> None:
    """Makes each branch and loop count its random ops anew. Which ops it is made of changes no other number."""
    count_random_ops_apart(True)


def disable_eager_execution() -> None:
    """Builds a graph, as mirrored calls do anyway; branches and loops are those of TensorFlow 2, whose call this is."""
    if not _is_version_1:
        enable_control_flow_v2()


def disable_v2_tensorshape() -> None:
    """Makes unknown sizes of shapes ``Dimension(None)``. Known ones are integers with a ``value`` in any case."""
    unknown_sizes_are_dimensions(True)


def disable_v2_behavior() -> None:
    """Makes sizes, and random ops in branches and loops, those of TensorFlow 1; all else that it asks for is so."""
    global _is_version_1
    _is_version_1 = True
    disable_v2_tensorshape()
    disable_control_flow_v2()


def enable_v2_tensorshape() -> None:
    """Makes unknown sizes of shapes None, as they are at first."""
    unknown_sizes_are_dimensions(False)


def start_queue_runners(
    sess: Any = None,
    coord: Any = None,
    daemon: bool = True,
    start: bool = True,
    collection: str = "queue_runners",
) -> list[Any]:
    """As ``tf.compat.v1.train.start_queue_runners`` where there are no queues: starts no threads.

    Returns:
        An empty list.

    Raises:
        GraphError: the model has a queue.
    """
    del sess, coord, daemon, start
    graph = current_model().graph
    queues = [op.name for op in graph.get_operations() if "Queue" in op.type]
    if queues or graph.get_collection(collection):
        named = f"'{queues[0]}' is a queue" if queues else f"the collection '{collection}' has runners"
        raise GraphError(
            f"start_queue_runners: {named}, which threads of several ranks would fill in another order on each. Read "
            "the data by tensoropt.data (from_tensor_slices, TFRecordDataset, …: shuffle, batch, repeat) instead."
        )
    return []


def set_random_seed(seed: int) -> None:
    """Set the graph-level seed, as ``tf.compat.v1.set_random_seed`` does for its default graph.

    A random op made later without a seed of its own draws from this seed and the op's place in the graph;
    neither depends on how many devices run it.

    Args:
        seed: Any integer.
    """
    current_model().seed = seed


set_seed = set_random_seed  # its name in TensorFlow 2
