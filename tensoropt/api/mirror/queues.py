"""Threads that fill queues, of which a job's model has none."""

from __future__ import annotations

from typing import Any

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["start_queue_runners"]


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
