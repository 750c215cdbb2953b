"""Graphs beside the job's model, such as a network whose features are wanted: each rank runs them by itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import Model
from tensoropt.api.session.job import current_job
from tensoropt.api.session.seeds import resolve_seeds
from tensoropt.stages import announce

__all__ = ["Apart", "is_apart"]


def is_apart(graph: Any) -> bool:
    """Tells whether a session of a graph needs no execution graph.

    This is so if the script made the graph itself, none is built of it, and it trains nothing.
    """
    model, built = getattr(graph, "tensoropt_model", None), current_job().model
    return isinstance(model, Model) and model is not built and not model.gradient_calls


class Apart:
    """TensorFlow's own session of such a graph, on this rank. What draws without a seed draws alike on all ranks."""

    def __init__(self, graph: Any, config: Any) -> None:
        """Opens the session.

        Args:
            graph: made by ``tensoropt.Graph()``.
            config: a ``tf.compat.v1.ConfigProto``, or None.
        """
        self._graph = graph
        self._version = -1
        self.session = tf.compat.v1.Session(graph=graph, config=config)
        announce("Session: of a graph beside the job's model, which trains nothing; each rank runs it by itself")

    def run(self, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any) -> Any:
        """Runs the fetches in TensorFlow, with the job's seeds, and returns their values."""
        if self._version != self._graph.version:
            for name, seeds in resolve_seeds(self._graph, current_job().world.base_seed).items():
                op = self._graph.get_operation_by_name(name)
                for key, seed in zip(("seed", "seed2"), seeds, strict=True):
                    op._set_attr(key, tf.compat.v1.AttrValue(i=seed))
            self._version = self._graph.version
        return self.session.run(fetches, feed_dict, options, run_metadata)
