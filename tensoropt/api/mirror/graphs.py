"""``tensoropt.Graph``: a graph of a script's own, which is a model like the one of the default graph."""

from __future__ import annotations

import tensorflow as tf

from tensoropt.api.mirror.model import begin_model

__all__ = ["Graph"]


class Graph(tf.Graph):
    """``tf.Graph`` as a model: while it is the default graph, mirrored calls build in it.

    The steps of a job (``find_strategy`` and those after it) are for the model of the default graph or, where that is
    empty, for the last one with operations.
    """

    def __init__(self) -> None:
        """Makes an empty graph, whose variables are resource variables."""
        super().__init__()
        self.tensoropt_model = begin_model(self)
